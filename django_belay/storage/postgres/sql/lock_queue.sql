-- lock_queue · contract §6; rules 12, 19, 20 · taken first
SELECT pg_advisory_xact_lock(hashtext(%(queue_lock)s::text))
