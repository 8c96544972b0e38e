-- lock_prunable · contract §8.7; rules 19, 30 · belay_jobs primary key
-- A statement of its own: what a step or event committed before the row was locked is
-- seen by the deletion that follows only with a snapshot taken after the lock. Rows that
-- somebody holds are left for the next sweep.
SELECT j.id FROM belay_jobs AS j
 WHERE j.id = ANY(%(ids)s::bigint[])
   AND j.state = %(state)s::text AND j.finished_at <= %(before)s::timestamptz
 ORDER BY j.id FOR UPDATE SKIP LOCKED
