INSERT OR REPLACE INTO belay_rate (bucket, window_start, count) VALUES (?, ?, ?)
