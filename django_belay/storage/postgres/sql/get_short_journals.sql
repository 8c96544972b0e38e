-- get_short_journals · contract §8.2 · belay_steps primary key
-- get_steps of the jobs of one claim. Of a journal that is long one step more than a short one
-- has is read, and of a large value its size alone.
-- Each array stands in a SELECT, which the planner does not look into: the plan is made once.
SELECT s.job_id, s.seq, s.name, CASE WHEN s.size <= 4096 THEN s.value END, s.usd_micros, s.tokens, s.inserted_at,
       s.size > 4096 OR s.n > 16
  FROM unnest((SELECT %(job_ids)s::bigint[])) AS g (job_id)
 CROSS JOIN LATERAL (
   SELECT t.job_id, t.seq, t.name, t.value, t.usd_micros, t.tokens, t.inserted_at,
          COALESCE(octet_length(t.value), 0) AS size, row_number() OVER () AS n
     FROM belay_steps AS t
    WHERE t.job_id = g.job_id
    LIMIT 17) AS s
 ORDER BY s.job_id, s.seq, s.inserted_at, s.name
