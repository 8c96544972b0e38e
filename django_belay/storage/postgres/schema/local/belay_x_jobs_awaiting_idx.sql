-- Waits whose deadline is due, in claim order; counts of a queue.
CREATE INDEX belay_x_jobs_awaiting_idx
  ON belay_jobs (queue, priority, ready_at, id) WHERE state = 'awaiting'
