-- Counts and listings of held and frozen jobs.
CREATE INDEX belay_x_jobs_parked_idx
  ON belay_jobs (queue, state, id) WHERE state IN ('held', 'paused')
