INSERT OR REPLACE INTO belay_events (job_id, seq, payload, inserted_at) VALUES (?, ?, ?, ?)
