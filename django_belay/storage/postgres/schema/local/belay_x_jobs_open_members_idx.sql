-- Whether a workflow has an unfinished, or a held, member (rules 33, 36).
CREATE INDEX belay_x_jobs_open_members_idx
  ON belay_jobs (workflow_id, state)
  WHERE workflow_id IS NOT NULL AND state IN ('ready', 'running', 'awaiting', 'held', 'paused')
