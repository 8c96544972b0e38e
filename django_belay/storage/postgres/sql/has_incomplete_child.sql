-- has_incomplete_child · contract §8.4, rule 32 · belay_x_jobs_open_children_idx
SELECT EXISTS (
  SELECT FROM belay_jobs AS j
   WHERE j.parent_id = %(parent_id)s::bigint
     AND j.state IN ('ready', 'running', 'awaiting', 'held', 'paused'))
