-- rank_by_key · contract §6, partitioned; rule 14 · belay_x_jobs_part_*, belay_x_jobs_awaiting_idx
-- unprepared
-- A loose scan over the hashes of the keys that have a ready row; of each with room, its first
-- rows. Full keys cost one step however long their backlog. Two keys of one hash share its
-- room here: one may wait, and neither gets too much, since the caller counts by key.
-- Runs under the queue's lock.
WITH RECURSIVE keys AS (
  (SELECT hashtextextended(COALESCE(CASE %(field)s::text WHEN 'input' THEN j.input ELSE j.meta END ->> %(key)s::text, ''), 0) AS hash
     FROM belay_jobs AS j
    WHERE j.state = 'ready' AND j.queue = %(queue)s::text
    ORDER BY 1 LIMIT 1)
  UNION ALL
  SELECT (SELECT hashtextextended(COALESCE(CASE %(field)s::text WHEN 'input' THEN j.input ELSE j.meta END ->> %(key)s::text, ''), 0)
            FROM belay_jobs AS j
           WHERE j.state = 'ready' AND j.queue = %(queue)s::text
             AND hashtextextended(COALESCE(CASE %(field)s::text WHEN 'input' THEN j.input ELSE j.meta END ->> %(key)s::text, ''), 0) > k.hash
           ORDER BY 1 LIMIT 1)
    FROM keys AS k WHERE k.hash IS NOT NULL
),
live AS MATERIALIZED (
  SELECT hashtextextended(l.key, 0) AS hash, sum(l.running)::bigint AS running
    FROM unnest(%(live_keys)s::text[], %(live_counts)s::bigint[]) AS l (key, running)
   GROUP BY 1
)
SELECT c.id, c.key
  FROM (
    SELECT r.id, r.key, r.priority, r.ready_at
      FROM keys AS k
      LEFT JOIN live AS l ON l.hash = k.hash
     CROSS JOIN LATERAL (
       SELECT j.id, j.priority, j.ready_at,
              COALESCE(CASE %(field)s::text WHEN 'input' THEN j.input ELSE j.meta END ->> %(key)s::text, '') AS key
         FROM belay_jobs AS j
        WHERE j.state = 'ready' AND j.queue = %(queue)s::text
          AND hashtextextended(COALESCE(CASE %(field)s::text WHEN 'input' THEN j.input ELSE j.meta END ->> %(key)s::text, ''), 0) = k.hash
          AND (j.ready_at IS NULL OR j.ready_at <= %(now)s::timestamptz)
        ORDER BY j.priority, j.ready_at NULLS FIRST, j.id
        LIMIT least(%(per_key_limit)s::bigint - COALESCE(l.running, 0), %(take)s::bigint)
     ) AS r
     WHERE k.hash IS NOT NULL AND COALESCE(l.running, 0) < %(per_key_limit)s::bigint
    UNION ALL
    SELECT j.id, COALESCE(CASE %(field)s::text WHEN 'input' THEN j.input ELSE j.meta END ->> %(key)s::text, ''),
           j.priority, j.ready_at
      FROM belay_jobs AS j
     WHERE j.state = 'awaiting' AND j.queue = %(queue)s::text AND j.ready_at <= %(now)s::timestamptz
       AND j.ready_at IS NOT NULL
  ) AS c
 ORDER BY c.priority, c.ready_at NULLS FIRST, c.id
