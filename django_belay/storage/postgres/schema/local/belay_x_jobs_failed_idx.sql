-- Counts and listings of failed jobs among millions of succeeded ones.
CREATE INDEX belay_x_jobs_failed_idx
  ON belay_jobs (queue, id) WHERE state = 'failed'
