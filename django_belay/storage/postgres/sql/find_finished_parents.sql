-- find_finished_parents · contract §8.4 R2 · belay_x_jobs_await_name_idx, belay_jobs_parent_idx,
-- belay_x_jobs_open_children_idx
-- Jobs that wait for children of which none is left unfinished.
SELECT j.id
  FROM belay_jobs AS j
 WHERE j.state = 'awaiting' AND j.await_name = '$children'
   AND (%(ids)s::bigint[] IS NULL OR j.id = ANY(%(ids)s::bigint[]))
   AND EXISTS (SELECT 1 FROM belay_jobs AS c WHERE c.parent_id = j.id)
   AND NOT EXISTS (SELECT 1 FROM belay_jobs AS c
                    WHERE c.parent_id = j.id
                      AND c.state IN ('ready', 'running', 'awaiting', 'held', 'paused'))
 ORDER BY j.id
 LIMIT %(limit)s::int
