-- find_prunable · contract §8.7; rule 36 · belay_jobs_prune_idx, belay_x_jobs_open_members_idx,
-- belay_jobs primary key
-- A page of ended jobs past their retention, oldest first, and whether something
-- unfinished still needs them.
WITH page AS MATERIALIZED (
  SELECT j.id, j.finished_at, j.inserted_at, j.unique_key, j.unique_mode, j.parent_id, j.workflow_id
    FROM belay_jobs AS j
   WHERE j.state = %(state)s::text
     AND j.finished_at IS NOT NULL
     AND j.finished_at <= %(before)s::timestamptz
     AND (j.finished_at, j.id) > (%(after)s::timestamptz, %(after_id)s::bigint)
   ORDER BY j.finished_at, j.id
   LIMIT %(limit)s::int
), unfinished AS MATERIALIZED (
  SELECT w.workflow_id
    FROM (SELECT DISTINCT page.workflow_id FROM page WHERE page.workflow_id IS NOT NULL) AS w
   WHERE EXISTS (SELECT 1 FROM belay_jobs AS m
                  WHERE m.workflow_id = w.workflow_id
                    AND m.state IN ('ready', 'running', 'awaiting', 'held', 'paused'))
)
SELECT page.id, page.finished_at, page.inserted_at,
       CASE WHEN page.unique_mode = 'window' THEN page.unique_key END,
       EXISTS (SELECT 1 FROM unfinished AS u WHERE u.workflow_id = page.workflow_id)
         OR EXISTS (SELECT 1 FROM belay_jobs AS p
                     WHERE p.id = page.parent_id
                       AND p.state IN ('ready', 'running', 'awaiting', 'held', 'paused'))
  FROM page
 ORDER BY page.finished_at, page.id
