-- lock_resource · rules 12, 19, 20 · taken after the queue's lock
SELECT pg_advisory_xact_lock(hashtextextended(%(resource_lock)s::text, 0))
