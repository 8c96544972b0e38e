-- move · rule 38 · belay_jobs primary key
WITH job AS (
  SELECT j.id, j.state FROM belay_jobs AS j WHERE j.id = %(job_id)s::bigint FOR UPDATE
), changed AS (
  UPDATE belay_jobs AS j
     SET queue = COALESCE(%(queue)s::text, j.queue), priority = COALESCE(%(priority)s::int, j.priority)
    FROM job WHERE j.id = job.id AND job.state IN ('ready', 'awaiting', 'held', 'paused')
  RETURNING j.state, j.queue
)
SELECT job.state, changed.state, changed.queue FROM job LEFT JOIN changed ON true
