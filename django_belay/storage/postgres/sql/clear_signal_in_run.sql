-- clear_signal_in_run · contract §8.1; rules 15, 27, 30 · belay_jobs, belay_steps and belay_signals primary keys
-- The deletion and its step stand or fall together, and only while the run holds its job.
WITH held AS MATERIALIZED (
  SELECT j.id FROM belay_jobs AS j
   WHERE j.id = %(job_id)s::bigint AND j.state = 'running' AND j.leased_by = %(leased_by)s::text
     AND NOT EXISTS (SELECT 1 FROM belay_steps AS s
                      WHERE s.job_id = %(job_id)s::bigint AND s.name = %(step)s::text)
     FOR KEY SHARE
), cleared AS (
  DELETE FROM belay_signals AS s USING held
   WHERE s.scope = %(scope)s::text AND s.name = %(name)s::text
  RETURNING s.name
), noted AS (
  INSERT INTO belay_steps (job_id, seq, name, value, usd_micros, tokens, inserted_at)
  SELECT held.id,
         (SELECT COALESCE(MAX(s.seq), 0) + 1 FROM belay_steps AS s WHERE s.job_id = held.id),
         %(step)s::text,
         convert_to(CASE WHEN EXISTS (SELECT 1 FROM cleared) THEN 'true' ELSE 'false' END, 'UTF8'),
         0, 0, %(now)s::timestamptz
    FROM held
   WHERE %(step)s::text IS NOT NULL
)
SELECT EXISTS (SELECT 1 FROM held), EXISTS (SELECT 1 FROM cleared)
