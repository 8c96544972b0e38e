INSERT OR REPLACE INTO belay_index (id, format, store, generation, through) VALUES (1, ?, ?, ?, ?)
