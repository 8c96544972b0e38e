-- get_steps_of · contract §8.2 · belay_steps primary key
-- get_steps for several jobs at once.
SELECT s.job_id, s.seq, s.name, s.value, s.usd_micros, s.tokens, s.inserted_at
  FROM belay_steps AS s
 WHERE s.job_id = ANY (%(job_ids)s::bigint[])
 ORDER BY s.job_id, s.seq, s.inserted_at, s.name
