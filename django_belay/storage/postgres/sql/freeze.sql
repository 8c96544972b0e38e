-- freeze · rule 5 · belay_jobs primary key
-- A wait that timed out into ready is forgotten; one that still waits goes on after unfreeze.
WITH job AS (
  SELECT j.id, j.state FROM belay_jobs AS j WHERE j.id = %(job_id)s::bigint FOR UPDATE
), changed AS (
  UPDATE belay_jobs AS j
     SET state = 'paused',
         await_scope = CASE WHEN job.state = 'awaiting' THEN j.await_scope END,
         await_name = CASE WHEN job.state = 'awaiting' THEN j.await_name END
    FROM job WHERE j.id = job.id AND job.state IN ('ready', 'awaiting')
  RETURNING j.state, j.queue
)
SELECT job.state, changed.state, changed.queue FROM job LEFT JOIN changed ON true
