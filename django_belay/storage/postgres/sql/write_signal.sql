-- write_signal · contract §8.1; rule 10 · belay_signals primary key
-- The upsert alone, in the caller's transaction; the wake follows its commit.
INSERT INTO belay_signals AS s (scope, name, payload, inserted_at)
VALUES (%(scope)s::text, %(name)s::text, %(payload)s::jsonb, %(now)s::timestamptz)
ON CONFLICT (scope, name) DO UPDATE
   SET payload = EXCLUDED.payload,
       inserted_at = GREATEST(EXCLUDED.inserted_at,
                CASE WHEN s.inserted_at >= timestamptz '9999-12-01 00:00:00+00' THEN timestamptz '9999-01-01 00:00:00+00'
                     ELSE s.inserted_at + interval '1 microsecond' END)
