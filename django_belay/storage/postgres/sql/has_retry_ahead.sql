-- has_retry_ahead · no clause · belay_x_jobs_ready_idx
-- Reads the rows due later; asked once a second at most, by a worker with nothing else to do.
SELECT EXISTS (
  SELECT FROM belay_jobs AS j
   WHERE j.state = 'ready' AND j.queue = ANY(%(queues)s::text[])
     AND j.ready_at > %(now)s::timestamptz AND j.started_at IS NOT NULL AND j.attempt > 0)
