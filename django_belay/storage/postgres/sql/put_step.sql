-- put_step · contract §8.2; rules 29, 30 · belay_jobs and belay_steps primary keys
-- Journal through the job row, charge, and read the standing in one round trip. KEY SHARE
-- keeps pruning away and lets renewals pass. A body that ran twice is charged twice.
WITH job AS (
  SELECT j.id, j.state, j.leased_by, j.cancel_requested, j.budget_usd_micros, j.budget_tokens,
         j.spent_usd_micros, j.spent_tokens
    FROM belay_jobs AS j
   WHERE j.id = %(job_id)s::bigint
     FOR KEY SHARE
), written AS (
  INSERT INTO belay_steps (job_id, seq, name, value, usd_micros, tokens, inserted_at)
  SELECT job.id,
         (SELECT COALESCE(MAX(s.seq), 0) + 1 FROM belay_steps AS s WHERE s.job_id = job.id),
         %(name)s::text, %(value)s::bytea, %(usd_micros)s::bigint, %(tokens)s::bigint,
         %(now)s::timestamptz
    FROM job
  ON CONFLICT (job_id, name) DO NOTHING
  RETURNING job_id
), charged AS (
  UPDATE belay_jobs AS j
     SET spent_usd_micros = j.spent_usd_micros + %(usd_micros)s::bigint,
         spent_tokens = j.spent_tokens + %(tokens)s::bigint
    FROM job
   WHERE j.id = job.id AND (%(usd_micros)s::bigint <> 0 OR %(tokens)s::bigint <> 0)
  RETURNING j.spent_usd_micros, j.spent_tokens
)
SELECT EXISTS (SELECT 1 FROM written),
       (SELECT s.value FROM belay_steps AS s WHERE s.job_id = job.id AND s.name = %(name)s::text),
       EXISTS (SELECT 1 FROM belay_steps AS s WHERE s.job_id = job.id AND s.name = %(name)s::text),
       job.state, job.leased_by, job.cancel_requested, job.budget_usd_micros, job.budget_tokens,
       COALESCE(charged.spent_usd_micros, job.spent_usd_micros),
       COALESCE(charged.spent_tokens, job.spent_tokens)
  FROM job LEFT JOIN charged ON true
