-- list_events · contract §3 · belay_events primary key
SELECT e.job_id, e.seq, e.payload, e.inserted_at
  FROM belay_events AS e
 WHERE e.job_id = %(job_id)s::bigint AND e.seq > %(after)s::bigint
 ORDER BY e.seq
 LIMIT %(limit)s::int
