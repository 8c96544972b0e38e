-- rank_by_key · contract §6, partitioned; rule 14 · belay_x_jobs_part_*, belay_x_jobs_awaiting_idx
-- unprepared
-- A loose scan over the keys that have a ready row; of each key with room, its first rows.
-- Full keys cost one step however long their backlog. Runs under the queue's lock.
WITH RECURSIVE keys AS (
  (SELECT COALESCE(CASE %(field)s::text WHEN 'input' THEN j.input ELSE j.meta END ->> %(key)s::text, '') AS key
     FROM belay_jobs AS j
    WHERE j.state = 'ready' AND j.queue = %(queue)s::text
    ORDER BY 1 LIMIT 1)
  UNION ALL
  SELECT (SELECT COALESCE(CASE %(field)s::text WHEN 'input' THEN j.input ELSE j.meta END ->> %(key)s::text, '')
            FROM belay_jobs AS j
           WHERE j.state = 'ready' AND j.queue = %(queue)s::text
             AND COALESCE(CASE %(field)s::text WHEN 'input' THEN j.input ELSE j.meta END ->> %(key)s::text, '') > k.key
           ORDER BY 1 LIMIT 1)
    FROM keys AS k WHERE k.key IS NOT NULL
),
live AS MATERIALIZED (
  SELECT l.key, l.running FROM unnest(%(live_keys)s::text[], %(live_counts)s::bigint[]) AS l (key, running)
)
SELECT c.id, c.key
  FROM (
    SELECT r.id, k.key, r.priority, r.ready_at
      FROM keys AS k
      LEFT JOIN live AS l ON l.key = k.key
     CROSS JOIN LATERAL (
       SELECT j.id, j.priority, j.ready_at FROM belay_jobs AS j
        WHERE j.state = 'ready' AND j.queue = %(queue)s::text
          AND COALESCE(CASE %(field)s::text WHEN 'input' THEN j.input ELSE j.meta END ->> %(key)s::text, '') = k.key
          AND (j.ready_at IS NULL OR j.ready_at <= %(now)s::timestamptz)
        ORDER BY j.priority, j.ready_at NULLS FIRST, j.id
        LIMIT least(%(per_key_limit)s::bigint - COALESCE(l.running, 0), %(take)s::bigint)
     ) AS r
     WHERE k.key IS NOT NULL AND COALESCE(l.running, 0) < %(per_key_limit)s::bigint
    UNION ALL
    SELECT j.id, COALESCE(CASE %(field)s::text WHEN 'input' THEN j.input ELSE j.meta END ->> %(key)s::text, ''),
           j.priority, j.ready_at
      FROM belay_jobs AS j
     WHERE j.state = 'awaiting' AND j.queue = %(queue)s::text AND j.ready_at <= %(now)s::timestamptz
       AND j.ready_at IS NOT NULL
  ) AS c
 ORDER BY c.priority, c.ready_at NULLS FIRST, c.id
