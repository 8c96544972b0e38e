-- has_open_member · contract §8.3 · belay_x_jobs_open_members_idx
SELECT EXISTS (
  SELECT 1 FROM belay_jobs AS j
   WHERE j.workflow_id = %(workflow_id)s::text
     AND j.state IN ('ready', 'running', 'awaiting', 'held', 'paused'))
