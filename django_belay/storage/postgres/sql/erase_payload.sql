-- erase_payload · Storage.erase_payload · belay_jobs, belay_steps, belay_events, belay_signals primary keys
-- Everything of an ended job that its author or its user wrote; shape and numbers stay.
WITH job AS (
  SELECT j.id, j.state FROM belay_jobs AS j WHERE j.id = %(job_id)s::bigint FOR UPDATE
), erased AS (
  UPDATE belay_jobs AS j
     SET input = '{"$erased": true}',
         meta = '{"$erased": true}',
         result = CASE WHEN j.result IS NOT NULL THEN convert_to('{"$erased":true}', 'UTF8') END,
         errors = (
           SELECT COALESCE(jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
                    'error', '$erased',
                    'attempt', CASE WHEN jsonb_typeof(e.entry -> 'attempt') = 'number'
                                    THEN e.entry -> 'attempt' END)) ORDER BY e.n), '[]')
             FROM jsonb_array_elements(CASE jsonb_typeof(j.errors) WHEN 'array' THEN j.errors ELSE '[]' END)
                    WITH ORDINALITY AS e(entry, n))
    FROM job WHERE j.id = job.id AND job.state IN ('succeeded', 'failed', 'cancelled')
  RETURNING j.id, j.state, j.queue
), steps AS (
  UPDATE belay_steps AS s SET value = convert_to('{"$erased":true}', 'UTF8')
    FROM erased WHERE s.job_id = erased.id AND s.value IS NOT NULL
), events AS (
  UPDATE belay_events AS e SET payload = '{"$erased": true}'
    FROM erased WHERE e.job_id = erased.id
), signals AS (
  DELETE FROM belay_signals AS s USING erased WHERE s.scope = 'job:' || erased.id
)
SELECT job.state, erased.state, erased.queue FROM job LEFT JOIN erased ON true
