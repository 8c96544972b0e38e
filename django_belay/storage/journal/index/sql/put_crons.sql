INSERT OR REPLACE INTO belay_crons (name, expression, worker, input, opts, paused, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
