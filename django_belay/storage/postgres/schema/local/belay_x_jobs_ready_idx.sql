-- The claim order of §6, which belay_jobs_claim_idx cannot give: it has nulls last.
CREATE INDEX belay_x_jobs_ready_idx
  ON belay_jobs (queue, priority, ready_at NULLS FIRST, id) WHERE state = 'ready'
