-- write_signal · contract §8.1; rule 10 · belay_signals primary key
-- The upsert alone, in the caller's transaction; the wake follows its commit. No row: the signal is to
-- a job, and that is gone.
INSERT INTO belay_signals AS s (scope, name, payload, inserted_at)
SELECT %(scope)s::text, %(name)s::text, %(payload)s::jsonb, %(now)s::timestamptz
 WHERE NOT %(to_job)s::bool OR EXISTS (SELECT FROM belay_jobs AS j WHERE j.id = %(job_id)s::bigint)
ON CONFLICT (scope, name) DO UPDATE
   SET payload = EXCLUDED.payload,
       inserted_at = GREATEST(EXCLUDED.inserted_at,
                CASE WHEN s.inserted_at >= timestamptz '9999-12-01 00:00:00+00' THEN timestamptz '9999-01-01 00:00:00+00'
                     ELSE s.inserted_at + interval '1 microsecond' END)
RETURNING s.name
