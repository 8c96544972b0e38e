-- load_events · no clause · belay_events primary key
INSERT INTO belay_events (job_id, seq, payload, inserted_at)
SELECT g.job_id, g.seq, g.payload, g.inserted_at
  FROM json_populate_recordset(NULL::belay_events, %(rows)s::json) AS g
