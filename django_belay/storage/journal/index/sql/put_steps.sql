INSERT OR REPLACE INTO belay_steps (job_id, seq, name, value, usd_micros, tokens, inserted_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
