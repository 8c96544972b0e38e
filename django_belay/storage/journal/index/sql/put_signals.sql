INSERT OR REPLACE INTO belay_signals (scope, name, payload, inserted_at) VALUES (?, ?, ?, ?)
