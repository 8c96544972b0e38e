-- Whether an incomplete child is left (§8.4, rules 32, 36).
CREATE INDEX belay_x_jobs_open_children_idx
  ON belay_jobs (parent_id)
  WHERE parent_id IS NOT NULL AND state IN ('ready', 'running', 'awaiting', 'held', 'paused')
