-- put_steps · contract §8.2; rules 29, 30 · belay_jobs and belay_steps primary keys
-- put_step for free steps of different jobs at once: nothing is charged, so no row is changed
-- and KEY SHARE, taken in id order, is all that is locked. A row that somebody holds is passed
-- over, so that it keeps no other job from its steps.
-- Each array stands in a SELECT, which the planner does not look into: the plan is made once.
WITH given AS MATERIALIZED (
  SELECT g.job_id, g.name, g.value, g.inserted_at, g.n
    FROM unnest((SELECT %(job_ids)s::bigint[]), (SELECT %(names)s::text[]), (SELECT %(values)s::bytea[]),
                (SELECT %(nows)s::timestamptz[]))
           WITH ORDINALITY AS g (job_id, name, value, inserted_at, n)
), job AS MATERIALIZED (
  SELECT j.id, j.state, j.leased_by, j.cancel_requested, j.budget_usd_micros, j.budget_tokens,
         j.spent_usd_micros, j.spent_tokens
    FROM belay_jobs AS j
   WHERE j.id = ANY ((SELECT %(job_ids)s::bigint[])::bigint[])
   ORDER BY j.id FOR KEY SHARE SKIP LOCKED
), written AS (
  INSERT INTO belay_steps (job_id, seq, name, value, usd_micros, tokens, inserted_at)
  SELECT job.id,
         (SELECT COALESCE(MAX(s.seq), 0) + 1 FROM belay_steps AS s WHERE s.job_id = job.id),
         g.name, g.value, 0, 0, g.inserted_at
    FROM job JOIN given AS g ON g.job_id = job.id
  ON CONFLICT (job_id, name) DO NOTHING
  RETURNING job_id
)
SELECT g.n, w.job_id IS NOT NULL, s.value, s.job_id IS NOT NULL,
       job.state, job.leased_by, job.cancel_requested, job.budget_usd_micros, job.budget_tokens,
       job.spent_usd_micros, job.spent_tokens
  FROM given AS g
  JOIN job ON job.id = g.job_id
  LEFT JOIN written AS w ON w.job_id = g.job_id
  LEFT JOIN belay_steps AS s ON s.job_id = g.job_id AND s.name = g.name
