-- deliver_signals · contract §8.1; rules 19, 23 · belay_signals primary key,
-- belay_jobs_await_wake_idx, belay_jobs primary key, belay_jobs_workflow_idx
-- Runs under the locks of these scopes, so whoever parked is visible and nobody parks
-- meanwhile. The || keep out indexes that look as good on a table without statistics:
-- all waiters of a name, all that wait. A payload is always newer than the one it replaces, whatever the clocks say:
-- a wait for a newer one compares instants (rule 27).
WITH sent AS (
  SELECT d.scope, d.name, d.payload, d.job_id, d.workflow_id
    FROM unnest(%(scopes)s::text[], %(names)s::text[], %(payloads)s::text[], %(job_ids)s::bigint[],
                %(workflow_ids)s::text[]) AS d(scope, name, payload, job_id, workflow_id)
), written AS (
  INSERT INTO belay_signals AS s (scope, name, payload, inserted_at)
  SELECT sent.scope, sent.name, sent.payload::jsonb, %(now)s::timestamptz
    FROM sent ORDER BY sent.scope, sent.name
  ON CONFLICT (scope, name) DO UPDATE
     SET payload = EXCLUDED.payload,
         inserted_at = {newer}
), waiting AS (
  SELECT j.id FROM belay_jobs AS j
   WHERE j.state || '' = 'awaiting'
     AND j.id = ANY(ARRAY(
       SELECT w.id FROM sent JOIN belay_jobs AS w ON w.await_scope = sent.scope AND w.await_name || '' = sent.name
        WHERE w.state = 'awaiting'
       UNION
       SELECT w.id FROM sent JOIN belay_jobs AS w ON w.id = sent.job_id
        WHERE w.state = 'awaiting' AND w.await_name = sent.name
       UNION
       SELECT w.id FROM sent JOIN belay_jobs AS w ON w.workflow_id = sent.workflow_id
        WHERE w.state = 'awaiting' AND w.await_name = sent.name))
   ORDER BY j.id FOR UPDATE
)
{wake}
