-- put_signal · contract §8.1; rules 19, 23, 27 · belay_signals primary key,
-- belay_jobs_await_wake_idx, belay_jobs primary key, belay_x_jobs_open_members_idx
-- deliver_signals for one signal: without arrays the server keeps its plan, and planning
-- took twice as long as the rest. Runs under the scope's lock.
WITH written AS (
  INSERT INTO belay_signals AS s (scope, name, payload, inserted_at)
  VALUES (%(scope)s::text, %(name)s::text, %(payload)s::jsonb, %(now)s::timestamptz)
  ON CONFLICT (scope, name) DO UPDATE
     SET payload = EXCLUDED.payload,
         inserted_at = {newer}
), waiting AS (
  SELECT j.id FROM belay_jobs AS j
   WHERE j.state || '' = 'awaiting'
     AND j.id = ANY({waiters})
   ORDER BY j.id FOR UPDATE
)
{wake}
