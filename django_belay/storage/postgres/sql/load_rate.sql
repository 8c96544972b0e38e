-- load_rate · no clause · belay_rate primary key
INSERT INTO belay_rate (bucket, window_start, count)
SELECT g.bucket, g.window_start, g.count
  FROM json_populate_recordset(NULL::belay_rate, %(rows)s::json) AS g
