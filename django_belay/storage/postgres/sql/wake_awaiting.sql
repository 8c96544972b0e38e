-- wake_awaiting · contract §8.1; rules 10, 19, 23 · belay_signals primary key,
-- belay_jobs_await_wake_idx, belay_jobs primary key, belay_jobs_workflow_idx
-- The wake of a signal whose row was committed before, under its scope's lock. The ||
-- keep out indexes that look as good on a table without statistics.
WITH waiting AS (
  SELECT j.id FROM belay_jobs AS j
   WHERE j.state || '' = 'awaiting'
     AND EXISTS (SELECT 1 FROM belay_signals AS s
                  WHERE s.scope = %(scope)s::text AND s.name = %(name)s::text)
     AND j.id = ANY({waiters})
   ORDER BY j.id FOR UPDATE
)
{wake}
