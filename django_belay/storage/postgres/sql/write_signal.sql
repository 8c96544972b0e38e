-- write_signal · contract §8.1; rule 10 · belay_signals primary key
-- The upsert alone, in the caller's transaction; the wake follows its commit.
INSERT INTO belay_signals AS s (scope, name, payload, inserted_at)
VALUES (%(scope)s::text, %(name)s::text, %(payload)s::jsonb, %(now)s::timestamptz)
ON CONFLICT (scope, name) DO UPDATE
   SET payload = EXCLUDED.payload,
       inserted_at = GREATEST(EXCLUDED.inserted_at, s.inserted_at + interval '1 microsecond')
