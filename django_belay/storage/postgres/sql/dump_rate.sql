-- dump_rate · no clause · belay_rate primary key
SELECT r.bucket, r.window_start, r.count FROM belay_rate AS r ORDER BY r.bucket, r.window_start
