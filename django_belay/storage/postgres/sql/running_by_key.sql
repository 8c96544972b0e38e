-- running_by_key · contract §6, partitioned · belay_jobs_lease_idx
SELECT COALESCE(CASE %(field)s::text WHEN 'input' THEN j.input ELSE j.meta END ->> %(key)s::text, ''), count(*)
  FROM belay_jobs AS j
 WHERE j.state = 'running' AND j.lease_until > %(now)s::timestamptz AND j.queue = %(queue)s::text
 GROUP BY 1
