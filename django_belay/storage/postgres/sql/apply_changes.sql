-- apply_changes · contract §7, §8.3, §8.6 · belay_jobs primary key
-- Column effects that the contract's functions decided, on rows that lock_rows locked.
-- Each array stands in a SELECT, which the planner does not look into: the plan is made once.
UPDATE belay_jobs AS j
   SET state = c.state,
       lease_until = NULL,
       leased_by = NULL,
       attempt = j.attempt + c.attempt_delta,
       ready_at = CASE WHEN c.keep_ready_at THEN j.ready_at ELSE c.ready_at END,
       result = CASE WHEN c.state = 'succeeded' THEN c.result ELSE j.result END,
       errors = {errors},
       finished_at = c.finished_at,
       await_scope = CASE WHEN c.keep_await THEN j.await_scope ELSE c.await_scope END,
       await_name = CASE WHEN c.keep_await THEN j.await_name ELSE c.await_name END
  FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(states)s::text[]), (SELECT %(attempt_deltas)s::int[]),
              (SELECT %(ready_ats)s::timestamptz[]), (SELECT %(keep_ready_ats)s::bool[]),
              (SELECT %(results)s::bytea[]),
              (SELECT %(errors)s::text[]), (SELECT %(finished_ats)s::timestamptz[]),
              (SELECT %(await_scopes)s::text[]), (SELECT %(await_names)s::text[]),
              (SELECT %(keep_awaits)s::bool[]))
         AS c(id, state, attempt_delta, ready_at, keep_ready_at, result, error, finished_at,
              await_scope, await_name, keep_await)
 WHERE j.id = c.id
