INSERT OR REPLACE INTO belay_queues (name, opts, updated_at) VALUES (?, ?, ?)
