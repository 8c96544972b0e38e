-- dump_steps · no clause · belay_steps primary key
SELECT s.job_id, s.seq, s.name, s.value, s.usd_micros, s.tokens, s.inserted_at
  FROM belay_steps AS s
 WHERE s.job_id = ANY(%(ids)s::bigint[])
 ORDER BY s.job_id, s.seq, s.name
