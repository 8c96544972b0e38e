-- rank_candidates · contract §6, partitioned; rule 14 · belay_x_jobs_ready_idx, belay_x_jobs_awaiting_idx
-- unprepared
-- The first rows of the queue in claim order with their partition's key; the walk is the one
-- of "claim". Runs under the queue's lock, so nothing is locked here. A row beyond the limit
-- of its key within this prefix is dropped here already; "seen" says how long the prefix was.
WITH RECURSIVE ready_walk AS (
  (SELECT j.priority, j.ready_at, j.id FROM belay_jobs AS j
    WHERE j.state = 'ready' AND j.queue = %(queue)s::text
    ORDER BY j.priority, j.ready_at NULLS FIRST, j.id LIMIT 1)
  UNION ALL
  SELECT f.priority, f.ready_at, f.id
    FROM ready_walk AS w
   CROSS JOIN LATERAL (
     SELECT j.priority, j.ready_at, j.id FROM belay_jobs AS j
      WHERE j.state = 'ready' AND j.queue = %(queue)s::text AND j.priority > w.priority
      ORDER BY j.priority, j.ready_at NULLS FIRST, j.id LIMIT 1) AS f
),
awaiting_walk AS (
  (SELECT j.priority, j.ready_at, j.id FROM belay_jobs AS j
    WHERE j.state = 'awaiting' AND j.queue = %(queue)s::text
    ORDER BY j.priority, j.ready_at, j.id LIMIT 1)
  UNION ALL
  SELECT f.priority, f.ready_at, f.id
    FROM awaiting_walk AS w
   CROSS JOIN LATERAL (
     SELECT j.priority, j.ready_at, j.id FROM belay_jobs AS j
      WHERE j.state = 'awaiting' AND j.queue = %(queue)s::text AND j.priority > w.priority
      ORDER BY j.priority, j.ready_at, j.id LIMIT 1) AS f
),
prefix AS MATERIALIZED (
  SELECT b.id, b.priority, b.ready_at,
         COALESCE(CASE %(field)s::text WHEN 'input' THEN b.input ELSE b.meta END ->> %(key)s::text, '') AS key
    FROM (
      (SELECT r.id, r.priority, r.ready_at, r.input, r.meta
         FROM ready_walk AS w
        CROSS JOIN LATERAL (
          (SELECT j.id, j.priority, j.ready_at, j.input, j.meta FROM belay_jobs AS j
            WHERE w.ready_at IS NULL
              AND j.state = 'ready' AND j.queue = %(queue)s::text AND j.priority = w.priority
              AND j.ready_at IS NULL AND j.id >= w.id
            ORDER BY j.ready_at NULLS FIRST, j.id LIMIT %(width)s::bigint)
          UNION ALL
          (SELECT j.id, j.priority, j.ready_at, j.input, j.meta FROM belay_jobs AS j
            WHERE w.ready_at IS NULL
              AND j.state = 'ready' AND j.queue = %(queue)s::text AND j.priority = w.priority
              AND j.ready_at <= %(now)s::timestamptz
            ORDER BY j.ready_at NULLS FIRST, j.id LIMIT %(width)s::bigint)
          UNION ALL
          (SELECT j.id, j.priority, j.ready_at, j.input, j.meta FROM belay_jobs AS j
            WHERE w.ready_at <= %(now)s::timestamptz
              AND j.state = 'ready' AND j.queue = %(queue)s::text AND j.priority = w.priority
              AND j.ready_at <= %(now)s::timestamptz AND (j.ready_at, j.id) >= (w.ready_at, w.id)
            ORDER BY j.ready_at NULLS FIRST, j.id LIMIT %(width)s::bigint)
        ) AS r
        LIMIT %(width)s::bigint)
      UNION ALL
      (SELECT r.id, r.priority, r.ready_at, r.input, r.meta
         FROM awaiting_walk AS w
        CROSS JOIN LATERAL (
          SELECT j.id, j.priority, j.ready_at, j.input, j.meta FROM belay_jobs AS j
           WHERE w.ready_at <= %(now)s::timestamptz
             AND j.state = 'awaiting' AND j.queue = %(queue)s::text AND j.priority = w.priority
             AND j.ready_at <= %(now)s::timestamptz AND (j.ready_at, j.id) >= (w.ready_at, w.id)
           ORDER BY j.ready_at, j.id LIMIT %(width)s::bigint
        ) AS r
        LIMIT %(width)s::bigint)
    ) AS b
   ORDER BY b.priority, b.ready_at NULLS FIRST, b.id
   LIMIT %(width)s::bigint
),
ranked AS (
  SELECT p.*, row_number() OVER (PARTITION BY p.key ORDER BY p.priority, p.ready_at NULLS FIRST, p.id) AS rank
    FROM prefix AS p
)
SELECT r.id, r.key, (SELECT count(*) FROM prefix) AS seen
  FROM ranked AS r
 WHERE r.rank <= %(per_key_limit)s::bigint
 ORDER BY r.priority, r.ready_at NULLS FIRST, r.id
