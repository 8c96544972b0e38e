-- load_signals · no clause · belay_signals primary key
INSERT INTO belay_signals (scope, name, payload, inserted_at)
SELECT g.scope, g.name, g.payload, g.inserted_at
  FROM json_populate_recordset(NULL::belay_signals, %(rows)s::json) AS g
