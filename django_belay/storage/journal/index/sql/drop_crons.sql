DELETE FROM belay_crons WHERE name = ?
