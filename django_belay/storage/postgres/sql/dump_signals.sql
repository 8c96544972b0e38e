-- dump_signals · no clause · belay_signals primary key
SELECT s.scope, s.name, s.payload, s.inserted_at
  FROM belay_signals AS s
 WHERE (s.scope, s.name) > (%(scope)s::text, %(name)s::text)
 ORDER BY s.scope, s.name
 LIMIT %(limit)s::int
