-- has_incomplete_spawned · contract §8.4, rule 32 · belay_x_jobs_open_children_idx
-- A key is its stem, a colon and the child's index; a name may hold colons itself.
SELECT EXISTS (
  SELECT FROM belay_jobs AS j
   WHERE j.parent_id = %(parent_id)s::bigint
     AND j.state IN ('ready', 'running', 'awaiting', 'held', 'paused')
     AND substring(j.unique_key FROM '^(.*):[0-9]+$') = ANY(%(stems)s::text[]))
