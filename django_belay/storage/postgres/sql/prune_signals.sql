-- prune_signals · contract §8.7 · belay_x_signals_age_idx, belay_signals primary key
WITH old AS (
  SELECT s.scope, s.name FROM belay_signals AS s
   WHERE s.inserted_at <= %(older_than)s::timestamptz
   ORDER BY s.inserted_at
   LIMIT %(limit)s::int
     FOR UPDATE SKIP LOCKED
)
DELETE FROM belay_signals AS s USING old WHERE s.scope = old.scope AND s.name = old.name
RETURNING s.scope
