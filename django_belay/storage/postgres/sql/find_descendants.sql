-- find_descendants · contract §8.6; rule 19 · belay_jobs_parent_idx
-- Descendants that have not ended, through those that have. UNION ends on a cycle.
WITH RECURSIVE tree AS (
  SELECT j.id FROM belay_jobs AS j WHERE j.parent_id = %(job_id)s::bigint
  UNION
  SELECT j.id FROM tree JOIN belay_jobs AS j ON j.parent_id = tree.id
)
SELECT j.id FROM tree JOIN belay_jobs AS j ON j.id = tree.id
 WHERE j.state IN ('ready', 'running', 'awaiting', 'held', 'paused')
   AND j.id <> %(job_id)s::bigint
 ORDER BY j.id
