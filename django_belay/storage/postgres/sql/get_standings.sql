-- get_standings · contract §8.2 · belay_jobs primary key
-- Each array stands in a SELECT, which the planner does not look into: the plan is made once.
SELECT j.id, j.state, j.leased_by, j.cancel_requested, j.budget_usd_micros, j.budget_tokens,
       j.spent_usd_micros, j.spent_tokens
  FROM belay_jobs AS j
 WHERE j.id = ANY ((SELECT %(job_ids)s::bigint[])::bigint[])
