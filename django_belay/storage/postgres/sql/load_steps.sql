-- load_steps · no clause · belay_steps primary key
INSERT INTO belay_steps (job_id, seq, name, value, usd_micros, tokens, inserted_at)
SELECT g.job_id, g.seq, g.name, g.value, g.usd_micros, g.tokens, g.inserted_at
  FROM json_populate_recordset(NULL::belay_steps, %(rows)s::json) AS g
