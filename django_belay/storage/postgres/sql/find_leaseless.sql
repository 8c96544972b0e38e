-- find_leaseless · contract §4, §6; rules 4, 19 · belay_jobs_lease_idx
-- Running rows under no lease, which no transition leaves behind: a hand wrote them, nobody
-- renews them, and their parents and workflows would wait for ever. As find_expired.
SELECT j.id, j.kind, j.attempt, j.max_attempts, j.leased_by, j.workflow_id, j.parent_id, j.lease_until
  FROM belay_jobs AS j
 WHERE j.state = 'running' AND j.lease_until IS NULL
   AND j.id > %(after_id)s::bigint
 ORDER BY j.id
 LIMIT %(limit)s::int
   FOR UPDATE SKIP LOCKED
