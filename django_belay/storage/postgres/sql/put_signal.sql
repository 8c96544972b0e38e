-- put_signal · contract §8.1; rules 19, 23, 27 · belay_signals primary key,
-- belay_jobs_await_wake_idx, belay_jobs primary key, belay_x_jobs_open_members_idx
-- deliver_signals for one signal: without arrays the server keeps its plan, and planning
-- took twice as long as the rest. Runs under the scope's lock.
-- A row without id: the signal is to a job, and that is gone; nothing was written.
WITH there AS MATERIALIZED (
  SELECT NOT %(to_job)s::bool
         OR EXISTS (SELECT FROM belay_jobs AS j WHERE j.id = %(job_id)s::bigint) AS is_there
), written AS (
  INSERT INTO belay_signals AS s (scope, name, payload, inserted_at)
  SELECT %(scope)s::text, %(name)s::text, %(payload)s::jsonb, %(now)s::timestamptz
    FROM there WHERE there.is_there
  ON CONFLICT (scope, name) DO UPDATE
     SET payload = EXCLUDED.payload,
         inserted_at = {newer}
), waiting AS (
  SELECT j.id FROM belay_jobs AS j
   WHERE j.state || '' = 'awaiting'
     AND j.id = ANY({waiters})
   ORDER BY j.id FOR UPDATE
), woken AS (
{wake}
)
SELECT woken.id, woken.queue FROM woken
UNION ALL
SELECT NULL, NULL FROM there WHERE NOT there.is_there
