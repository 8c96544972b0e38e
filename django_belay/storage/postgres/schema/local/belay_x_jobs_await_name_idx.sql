-- The reconcilers' way from a signal's name to its waiters (§8.4 R2, rules 10, 23).
CREATE INDEX belay_x_jobs_await_name_idx
  ON belay_jobs (await_name, id) WHERE state = 'awaiting'
