DELETE FROM belay_signals WHERE scope = ? AND name = ?
