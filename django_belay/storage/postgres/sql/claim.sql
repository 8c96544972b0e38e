-- claim · contract §6, rules 12, 14, 19 · belay_x_jobs_ready_idx, belay_x_jobs_awaiting_idx
-- An attempt at the column's bound stays there: an overflow would fail the round (rule 4).
-- For each queue in turn: a loose scan finds the first live row of each priority, best
-- first; from it on, the rows without ready_at and then those due are range scans of their
-- own. So neither the backlog nor rows due later are read or sorted, and dead entries at
-- the head of a priority are passed once. The scans are pulled lazily: the LIMIT of a queue ends them,
-- and only rows pulled are locked. The same walk goes over the awaiting rows whose
-- deadline is due; a sort merges the few candidates.
-- Every parameter stands in a SELECT of its own, which the planner does not look into, and the
-- inner LIMITs are constants (a queue gives at most that many rows of a priority in a round): so a
-- generic plan is the same as a custom one, costs no more in the planner's eyes, and is taken
-- once the statement is prepared. Planning takes longer than the claim itself.
WITH wanted AS MATERIALIZED (
  SELECT w.queue, w.take, w.n
    FROM unnest((SELECT %(queues)s::text[]), (SELECT %(takes)s::int[])) WITH ORDINALITY AS w (queue, take, n)
),
picked AS MATERIALIZED (
  SELECT w.n, c.id, c.priority, c.ready_at
    FROM wanted AS w
   CROSS JOIN LATERAL (
      SELECT b.id, b.priority, b.ready_at
        FROM (
          (WITH RECURSIVE walk AS (
             (SELECT j.priority, j.ready_at, j.id FROM belay_jobs AS j
               WHERE j.state = 'ready' AND j.queue = w.queue
               ORDER BY j.priority, j.ready_at NULLS FIRST, j.id LIMIT 1)
             UNION ALL
             SELECT f.priority, f.ready_at, f.id
               FROM walk
              CROSS JOIN LATERAL (
                SELECT j.priority, j.ready_at, j.id FROM belay_jobs AS j
                 WHERE j.state = 'ready' AND j.queue = w.queue AND j.priority > walk.priority
                 ORDER BY j.priority, j.ready_at NULLS FIRST, j.id LIMIT 1) AS f
           )
           SELECT r.id, r.priority, r.ready_at
             FROM walk
            CROSS JOIN LATERAL (
              SELECT u.* FROM (
                SELECT j.id, j.priority, j.ready_at FROM belay_jobs AS j
                 WHERE walk.ready_at IS NULL
                   AND j.state = 'ready' AND j.queue = w.queue AND j.priority = walk.priority
                   AND j.ready_at IS NULL AND j.id >= walk.id
                 ORDER BY j.ready_at NULLS FIRST, j.id LIMIT 1000 FOR UPDATE SKIP LOCKED) AS u
              UNION ALL
              SELECT d.* FROM (
                SELECT j.id, j.priority, j.ready_at FROM belay_jobs AS j
                 WHERE walk.ready_at IS NULL
                   AND j.state = 'ready' AND j.queue = w.queue AND j.priority = walk.priority
                   AND j.ready_at <= (SELECT %(now)s::timestamptz)
                 ORDER BY j.ready_at NULLS FIRST, j.id LIMIT 1000 FOR UPDATE SKIP LOCKED) AS d
              UNION ALL
              SELECT d.* FROM (
                SELECT j.id, j.priority, j.ready_at FROM belay_jobs AS j
                 WHERE walk.ready_at <= (SELECT %(now)s::timestamptz)
                   AND j.state = 'ready' AND j.queue = w.queue AND j.priority = walk.priority
                   AND j.ready_at <= (SELECT %(now)s::timestamptz) AND (j.ready_at, j.id) >= (walk.ready_at, walk.id)
                 ORDER BY j.ready_at NULLS FIRST, j.id LIMIT 1000 FOR UPDATE SKIP LOCKED) AS d
            ) AS r
            LIMIT w.take)
          UNION ALL
          (WITH RECURSIVE walk AS (
             (SELECT j.priority, j.ready_at, j.id FROM belay_jobs AS j
               WHERE j.state = 'awaiting' AND j.queue = w.queue
               ORDER BY j.priority, j.ready_at, j.id LIMIT 1)
             UNION ALL
             SELECT f.priority, f.ready_at, f.id
               FROM walk
              CROSS JOIN LATERAL (
                SELECT j.priority, j.ready_at, j.id FROM belay_jobs AS j
                 WHERE j.state = 'awaiting' AND j.queue = w.queue AND j.priority > walk.priority
                 ORDER BY j.priority, j.ready_at, j.id LIMIT 1) AS f
           )
           SELECT r.id, r.priority, r.ready_at
             FROM walk
            CROSS JOIN LATERAL (
              SELECT j.id, j.priority, j.ready_at FROM belay_jobs AS j
               WHERE walk.ready_at <= (SELECT %(now)s::timestamptz)
                 AND j.state = 'awaiting' AND j.queue = w.queue AND j.priority = walk.priority
                 AND j.ready_at <= (SELECT %(now)s::timestamptz) AND (j.ready_at, j.id) >= (walk.ready_at, walk.id)
               ORDER BY j.ready_at, j.id LIMIT 1000 FOR UPDATE SKIP LOCKED
            ) AS r
            LIMIT w.take)
        ) AS b
       ORDER BY b.priority, b.ready_at NULLS FIRST, b.id
       LIMIT w.take
   ) AS c
),
claimed AS (
  UPDATE belay_jobs AS j
     SET state = 'running', attempt = LEAST(j.attempt, 2147483646) + 1,
         lease_until = (SELECT %(lease_until)s::timestamptz), leased_by = %(leased_by)s::text,
         started_at = COALESCE(j.started_at, (SELECT %(now)s::timestamptz))
   WHERE j.id = ANY (ARRAY (SELECT p.id FROM picked AS p))
  RETURNING {job}
),
claimable AS MATERIALIZED (
  SELECT ARRAY (
    SELECT l.queue
      FROM unnest((SELECT %(limited)s::text[])) AS l (queue)
     WHERE EXISTS (
       WITH RECURSIVE walk AS (
         (SELECT j.priority, j.ready_at FROM belay_jobs AS j
           WHERE j.state = 'ready' AND j.queue = l.queue
           ORDER BY j.priority, j.ready_at NULLS FIRST, j.id LIMIT 1)
         UNION ALL
         SELECT f.priority, f.ready_at
           FROM walk
          CROSS JOIN LATERAL (
            SELECT j.priority, j.ready_at FROM belay_jobs AS j
             WHERE j.state = 'ready' AND j.queue = l.queue AND j.priority > walk.priority
             ORDER BY j.priority, j.ready_at NULLS FIRST, j.id LIMIT 1) AS f
       )
       SELECT FROM walk WHERE walk.ready_at IS NULL OR walk.ready_at <= (SELECT %(now)s::timestamptz))
       -- No EXISTS: PostgreSQL might hash all awaiting rows that are due to answer it.
       OR (SELECT true FROM belay_jobs AS j
            WHERE j.state = 'awaiting' AND j.queue = l.queue AND j.ready_at IS NOT NULL
              AND j.ready_at <= (SELECT %(now)s::timestamptz)
            ORDER BY j.ready_at LIMIT 1)
  ) AS queues
)
SELECT {job}, l.queues
  FROM claimable AS l
  LEFT JOIN (claimed AS j JOIN picked AS p ON p.id = j.id) ON true
 ORDER BY p.n, p.priority, p.ready_at NULLS FIRST, p.id
