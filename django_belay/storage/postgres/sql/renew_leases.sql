-- renew_leases · contract §6, rules 15, 16, 19 · belay_jobs primary key
-- Locks in id order and skips rows an ack holds; the caller asks again for those. Whether a
-- job is still ours is read from the statement's snapshot by a plain SELECT: a lease
-- that it does not show is lost for good, since no claim round's name comes back.
-- The || keeps out the index of what runs: dead entries of all that has run fill it up.
-- Each array stands in a SELECT, which the planner does not look into: the plan is made once.
WITH held AS MATERIALIZED (
  SELECT h.id, h.leased_by
    FROM unnest((SELECT %(ids)s::bigint[]), (SELECT %(leases)s::text[])) AS h (id, leased_by)
),
mine AS MATERIALIZED (
  SELECT j.id, j.leased_by
    FROM belay_jobs AS j
   WHERE j.id = ANY ((SELECT %(ids)s::bigint[])::bigint[]) AND j.state || '' = 'running'
     AND j.leased_by = ANY ((SELECT %(leases)s::text[])::text[])
   ORDER BY j.id FOR UPDATE OF j SKIP LOCKED
),
renewed AS (
  UPDATE belay_jobs AS j
     SET lease_until = %(until)s::timestamptz
   WHERE j.id = ANY (ARRAY (
           SELECT m.id FROM mine AS m JOIN held AS h ON h.id = m.id AND h.leased_by = m.leased_by))
  RETURNING j.id
),
seen AS MATERIALIZED (
  SELECT j.id, j.leased_by
    FROM belay_jobs AS j
   WHERE j.id = ANY ((SELECT %(ids)s::bigint[])::bigint[]) AND j.state || '' = 'running'
)
SELECT h.id,
       EXISTS (SELECT FROM renewed AS r WHERE r.id = h.id),
       EXISTS (SELECT FROM seen AS s WHERE s.id = h.id AND s.leased_by = h.leased_by)
  FROM held AS h
