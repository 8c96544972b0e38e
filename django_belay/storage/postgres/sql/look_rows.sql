-- look_rows · rule 19 · belay_jobs primary key
-- The unlocked look before a transition chooses its locks; lock_rows checks again.
-- Each array stands in a SELECT, which the planner does not look into: the plan is made once.
SELECT j.id, j.state, j.attempt, j.max_attempts, j.leased_by, j.lease_until, j.ready_at,
       j.cancel_requested, j.queue, j.workflow_id, j.wf_name, cardinality(j.wf_deps) > 0, j.parent_id,
       j.await_scope, j.await_name, j.unique_key, j.unique_mode
  FROM belay_jobs AS j
 WHERE j.id = ANY ((SELECT %(ids)s::bigint[])::bigint[])
 ORDER BY j.id
