-- wake_awaiting · contract §8.1; rules 10, 19, 23 · belay_signals primary key,
-- belay_jobs_await_wake_idx, belay_jobs primary key, belay_jobs_workflow_idx
-- The wake of a signal whose row was committed before, under its scope's lock. The ||
-- keep out indexes that look as good on a table without statistics.
WITH waiting AS (
  SELECT j.id FROM belay_jobs AS j
   WHERE j.state || '' = 'awaiting'
     AND EXISTS (SELECT 1 FROM belay_signals AS s
                  WHERE s.scope = %(scope)s::text AND s.name = %(name)s::text)
     AND j.id = ANY(ARRAY(
       SELECT w.id FROM belay_jobs AS w
        WHERE w.state = 'awaiting' AND w.await_name || '' = %(name)s::text AND w.await_scope = %(scope)s::text
       UNION
       SELECT w.id FROM belay_jobs AS w
        WHERE w.state = 'awaiting' AND w.await_name = %(name)s::text AND w.id = %(job_id)s::bigint
       UNION
       SELECT w.id FROM belay_jobs AS w
        WHERE w.state = 'awaiting' AND w.await_name = %(name)s::text
          AND w.workflow_id = %(workflow_id)s::text))
   ORDER BY j.id FOR UPDATE
)
UPDATE belay_jobs AS j
   SET state = 'ready', ready_at = %(now)s::timestamptz, await_scope = NULL, await_name = NULL
  FROM waiting WHERE j.id = waiting.id
RETURNING j.id, j.queue
