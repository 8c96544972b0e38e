-- lock_scope · contract §8.1; rules 19, 20
-- lock_names for one scope; a statement of its own, before the one that wakes.
SELECT count(pg_advisory_xact_lock(hashtext(%(lock)s::text)::bigint))
