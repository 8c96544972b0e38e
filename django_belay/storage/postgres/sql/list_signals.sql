-- list_signals · contract §8.1 · belay_signals primary key
SELECT s.scope, s.name, s.payload, s.inserted_at
  FROM belay_signals AS s
 WHERE s.scope = %(scope)s::text
 ORDER BY s.name
