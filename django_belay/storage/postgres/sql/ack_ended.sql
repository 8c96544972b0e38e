-- ack_ended · contract §7; rules 15, 19, 21, 24 · belay_jobs primary key
-- The hot path: ends of runs that have neither workflow nor parent, each behind its own
-- fence, in one statement. These outcomes do not depend on cancel_requested (rule 22).
-- A row that somebody holds, if only to look at it, must not keep the others from ending:
-- it is passed over, and find_held tells it from a stale one.
-- Each parameter stands in a SELECT, which the planner does not look into: the plan is made once.
-- The || keeps out the index of what runs: dead entries of all that has run fill it up.
WITH c AS (
  SELECT j.id, a.state, a.result, a.error
    FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(attempts)s::int[]), (SELECT %(leases)s::text[]),
                (SELECT %(states)s::text[]), (SELECT %(results)s::bytea[]), (SELECT %(errors)s::text[]))
           AS a(id, attempt, leased_by, state, result, error)
    JOIN belay_jobs AS j
      ON j.id = a.id AND j.attempt = a.attempt AND j.leased_by = a.leased_by
   WHERE j.state || '' = 'running'
   ORDER BY j.id FOR UPDATE OF j SKIP LOCKED
), written AS (
  UPDATE belay_jobs AS j
     SET state = c.state,
         lease_until = NULL,
         leased_by = NULL,
         result = CASE WHEN c.state = 'succeeded' THEN c.result ELSE j.result END,
         errors = {errors},
         finished_at = %(now)s::timestamptz,
         await_scope = CASE WHEN c.state = 'succeeded' THEN NULL ELSE j.await_scope END,
         await_name = CASE WHEN c.state = 'succeeded' THEN NULL ELSE j.await_name END
    FROM c WHERE j.id = c.id
  RETURNING j.id
)
SELECT written.id,
       (SELECT pg_notify({channel}, '{"t":"r","id":' || w.job_id || '}')::text
          FROM belay_x_waiters AS w WHERE w.job_id = written.id)
  FROM written
