-- delete_jobs · contract §8.7; rules 19, 30, 36 · belay_jobs, belay_steps, belay_events primary keys
-- Rows that somebody holds are left for the next sweep. Steps and events are deleted
-- while the job's row is locked, so none is inserted behind.
WITH job AS (
  SELECT j.id FROM belay_jobs AS j
   WHERE j.id = ANY(%(ids)s::bigint[])
     AND j.state = %(state)s::text AND j.finished_at <= %(before)s::timestamptz
   ORDER BY j.id FOR UPDATE SKIP LOCKED
), steps AS (
  DELETE FROM belay_steps AS s USING job WHERE s.job_id = job.id
), events AS (
  DELETE FROM belay_events AS e USING job WHERE e.job_id = job.id
)
DELETE FROM belay_jobs AS j USING job WHERE j.id = job.id
RETURNING j.id
