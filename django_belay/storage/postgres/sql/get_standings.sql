-- get_standings · contract §8.2 · belay_jobs primary key
SELECT j.id, j.state, j.leased_by, j.cancel_requested, j.budget_usd_micros, j.budget_tokens,
       j.spent_usd_micros, j.spent_tokens
  FROM belay_jobs AS j
 WHERE j.id = ANY (%(job_ids)s::bigint[])
