-- dump_events · no clause · belay_events primary key
SELECT e.job_id, e.seq, e.payload, e.inserted_at
  FROM belay_events AS e
 WHERE e.job_id = ANY(%(ids)s::bigint[])
 ORDER BY e.job_id, e.seq
