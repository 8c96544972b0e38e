-- The newest row of a unique key, ended ones included (§5.2; rule 9).
CREATE INDEX belay_x_jobs_key_idx
  ON belay_jobs (unique_key, id) WHERE unique_key IS NOT NULL
