-- claim_ids · contract §6, partitioned; rules 14, 19 · belay_jobs primary key
-- The ranking pass locked nothing: a row that changed since, or that somebody holds, is left.
WITH picked AS MATERIALIZED (
  SELECT j.id, j.priority, j.ready_at FROM belay_jobs AS j
   WHERE j.id = ANY (%(ids)s::bigint[]) AND j.queue = %(queue)s::text
     AND ((j.state = 'ready' AND (j.ready_at IS NULL OR j.ready_at <= %(now)s::timestamptz))
       OR (j.state = 'awaiting' AND j.ready_at <= %(now)s::timestamptz))
   ORDER BY j.id FOR UPDATE SKIP LOCKED
),
claimed AS (
  UPDATE belay_jobs AS j
     SET state = 'running', attempt = LEAST(j.attempt, 2147483646) + 1,
         lease_until = %(lease_until)s::timestamptz, leased_by = %(leased_by)s::text,
         started_at = COALESCE(j.started_at, %(now)s::timestamptz)
   WHERE j.id = ANY (ARRAY (SELECT p.id FROM picked AS p))
  RETURNING {job}
)
SELECT {job}
  FROM claimed AS j JOIN picked AS p ON p.id = j.id
 ORDER BY p.priority, p.ready_at NULLS FIRST, p.id
