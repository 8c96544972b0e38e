-- get_steps · contract §8.2 · belay_steps primary key
SELECT s.job_id, s.seq, s.name, s.value, s.usd_micros, s.tokens, s.inserted_at
  FROM belay_steps AS s
 WHERE s.job_id = %(job_id)s::bigint
 ORDER BY s.seq, s.inserted_at, s.name
