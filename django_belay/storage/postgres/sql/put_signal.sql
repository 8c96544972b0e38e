-- put_signal · contract §8.1; rules 19, 23, 27 · belay_signals primary key,
-- belay_jobs_await_wake_idx, belay_jobs primary key, belay_x_jobs_open_members_idx
-- deliver_signals for one signal: without arrays the server keeps its plan, and planning
-- took twice as long as the rest. Runs under the scope's lock.
WITH written AS (
  INSERT INTO belay_signals AS s (scope, name, payload, inserted_at)
  VALUES (%(scope)s::text, %(name)s::text, %(payload)s::jsonb, %(now)s::timestamptz)
  ON CONFLICT (scope, name) DO UPDATE
     SET payload = EXCLUDED.payload,
         inserted_at = GREATEST(EXCLUDED.inserted_at,
                  CASE WHEN s.inserted_at >= timestamptz '9999-12-01 00:00:00+00' THEN timestamptz '9999-01-01 00:00:00+00'
                       ELSE s.inserted_at + interval '1 microsecond' END)
), waiting AS (
  SELECT j.id FROM belay_jobs AS j
   WHERE j.state || '' = 'awaiting'
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
