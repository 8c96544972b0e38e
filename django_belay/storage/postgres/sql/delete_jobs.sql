-- delete_jobs · contract §8.7; rule 30 · belay_jobs, belay_steps, belay_events primary keys
-- Jobs that this transaction has locked, with all that belongs to them.
WITH steps AS (
  DELETE FROM belay_steps AS s WHERE s.job_id = ANY(%(ids)s::bigint[])
), events AS (
  DELETE FROM belay_events AS e WHERE e.job_id = ANY(%(ids)s::bigint[])
)
DELETE FROM belay_jobs AS j WHERE j.id = ANY(%(ids)s::bigint[])
