-- lock_rows · rules 19, 23 · belay_jobs primary key, belay_jobs_await_wake_idx
-- Every row a transition may touch, in id order: its own, and the rows that wait for a
-- $children signal it delivers. Those scopes are locked, so nobody parks on them meanwhile.
-- The || keeps out the index of all who wait for $children.
SELECT j.id, j.state, j.attempt, j.max_attempts, j.leased_by, j.lease_until, j.ready_at,
       j.cancel_requested, j.queue, j.workflow_id, j.wf_name, cardinality(j.wf_deps) > 0, j.parent_id,
       j.await_scope, j.await_name, j.unique_key, j.unique_mode
  FROM belay_jobs AS j
 WHERE j.id = ANY(ARRAY(
         SELECT unnest(%(ids)s::bigint[])
         UNION
         SELECT p.id FROM belay_jobs AS p
          WHERE p.id = ANY(%(parents)s::bigint[])
            AND p.state = 'awaiting' AND p.await_name = '$children'
         UNION
         SELECT w.id FROM belay_jobs AS w
          WHERE w.state = 'awaiting' AND w.await_name || '' = '$children'
            AND w.await_scope = ANY(%(scopes)s::text[])))
   AND (j.id = ANY(%(ids)s::bigint[]) OR (j.state = 'awaiting' AND j.await_name = '$children'))
 ORDER BY j.id FOR UPDATE
