-- find_wait_records · rules 26, 27 · belay_steps primary key
SELECT s.job_id, s.name, s.value FROM belay_steps AS s
 WHERE s.job_id = ANY(%(ids)s::bigint[]) AND starts_with(s.name, '$await:') AND right(s.name, 6) = ':until'
