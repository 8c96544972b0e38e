-- find_expired · contract §6; rules 4, 19 · belay_jobs_lease_idx
-- Candidates, in a statement of its own: rows that an ack holds are passed over, and the
-- locks are gone before the transition takes its own in order. The cursor lets a sweep
-- get past rows that it cannot handle.
SELECT j.id, j.kind, j.attempt, j.max_attempts, j.leased_by, j.workflow_id, j.parent_id, j.lease_until
  FROM belay_jobs AS j
 WHERE j.state = 'running' AND j.lease_until <= %(now)s::timestamptz
   AND (j.lease_until, j.id) > (%(after)s::timestamptz, %(after_id)s::bigint)
 ORDER BY j.lease_until, j.id
 LIMIT %(limit)s::int
   FOR UPDATE SKIP LOCKED
