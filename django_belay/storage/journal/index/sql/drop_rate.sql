DELETE FROM belay_rate WHERE bucket = ? AND window_start = ?
