-- append_event · contract §3; rules 30, 37 · belay_jobs and belay_events primary keys
-- No row: the job is gone. A NULL: another append took the number; the caller asks again.
WITH job AS (
  SELECT j.id FROM belay_jobs AS j WHERE j.id = %(job_id)s::bigint FOR KEY SHARE
), written AS (
  INSERT INTO belay_events (job_id, seq, payload, inserted_at)
  SELECT job.id,
         (SELECT COALESCE(MAX(e.seq), 0) + 1 FROM belay_events AS e WHERE e.job_id = job.id),
         %(payload)s::jsonb, %(now)s::timestamptz
    FROM job
  ON CONFLICT (job_id, seq) DO NOTHING
  RETURNING seq
)
SELECT (SELECT written.seq FROM written) FROM job
