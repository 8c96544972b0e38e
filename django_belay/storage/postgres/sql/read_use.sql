-- read_use · contract §6, admission · belay_jobs_lease_idx, belay_rate primary key
-- Live-leased jobs of the queue, and the counts of the rate's current and previous window.
SELECT (SELECT count(*) FROM belay_jobs AS j
         WHERE j.state = 'running' AND j.lease_until > %(now)s::timestamptz AND j.queue = %(queue)s::text),
       (SELECT r.count FROM belay_rate AS r
         WHERE r.bucket = %(bucket)s::text AND r.window_start = %(window)s::bigint),
       (SELECT r.count FROM belay_rate AS r
         WHERE r.bucket = %(bucket)s::text AND r.window_start = %(previous)s::bigint)
