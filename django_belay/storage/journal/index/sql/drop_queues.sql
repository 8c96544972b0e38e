DELETE FROM belay_queues WHERE name = ?
