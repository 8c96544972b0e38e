-- queue_stats · no clause · belay_x_jobs_ready_idx, belay_x_jobs_awaiting_idx, belay_x_jobs_parked_idx,
-- belay_x_jobs_failed_idx, belay_jobs_lease_idx
-- unprepared
-- Queues come from loose scans of partial indexes and each count stops at the cap, so
-- neither finished rows nor a long backlog are read.
WITH RECURSIVE ready_queue AS (
  (SELECT j.queue FROM belay_jobs AS j WHERE j.state = 'ready' ORDER BY j.queue LIMIT 1)
  UNION ALL
  SELECT (SELECT j.queue FROM belay_jobs AS j WHERE j.state = 'ready' AND j.queue > q.queue
           ORDER BY j.queue LIMIT 1)
    FROM ready_queue AS q WHERE q.queue IS NOT NULL
),
awaiting_queue AS (
  (SELECT j.queue FROM belay_jobs AS j WHERE j.state = 'awaiting' ORDER BY j.queue LIMIT 1)
  UNION ALL
  SELECT (SELECT j.queue FROM belay_jobs AS j WHERE j.state = 'awaiting' AND j.queue > q.queue
           ORDER BY j.queue LIMIT 1)
    FROM awaiting_queue AS q WHERE q.queue IS NOT NULL
),
parked_queue AS (
  (SELECT j.queue FROM belay_jobs AS j WHERE j.state IN ('held', 'paused') ORDER BY j.queue LIMIT 1)
  UNION ALL
  SELECT (SELECT j.queue FROM belay_jobs AS j WHERE j.state IN ('held', 'paused') AND j.queue > q.queue
           ORDER BY j.queue LIMIT 1)
    FROM parked_queue AS q WHERE q.queue IS NOT NULL
),
failed_queue AS (
  (SELECT j.queue FROM belay_jobs AS j WHERE j.state = 'failed' ORDER BY j.queue LIMIT 1)
  UNION ALL
  SELECT (SELECT j.queue FROM belay_jobs AS j WHERE j.state = 'failed' AND j.queue > q.queue
           ORDER BY j.queue LIMIT 1)
    FROM failed_queue AS q WHERE q.queue IS NOT NULL
),
live AS MATERIALIZED (
  SELECT j.queue, count(*) AS running FROM belay_jobs AS j WHERE j.state = 'running' GROUP BY j.queue
),
queue AS (
  SELECT queue FROM ready_queue UNION SELECT queue FROM awaiting_queue UNION SELECT queue FROM parked_queue
  UNION SELECT queue FROM failed_queue UNION SELECT queue FROM live
)
SELECT q.queue,
       (SELECT count(*) FROM (
          SELECT FROM belay_jobs AS j
           WHERE j.state = 'ready' AND j.queue = q.queue
             AND (j.ready_at IS NULL OR j.ready_at <= %(now)s::timestamptz)
           LIMIT %(cap)s::bigint) AS c),
       (SELECT count(*) FROM (
          SELECT FROM belay_jobs AS j
           WHERE j.state = 'ready' AND j.queue = q.queue AND j.ready_at > %(now)s::timestamptz
           LIMIT %(cap)s::bigint) AS c),
       COALESCE((SELECT l.running FROM live AS l WHERE l.queue = q.queue), 0),
       (SELECT count(*) FROM (
          SELECT FROM belay_jobs AS j WHERE j.state = 'awaiting' AND j.queue = q.queue
           LIMIT %(cap)s::bigint) AS c),
       (SELECT count(*) FROM (
          SELECT FROM belay_jobs AS j
           WHERE j.state = 'held' AND j.state IN ('held', 'paused') AND j.queue = q.queue
           LIMIT %(cap)s::bigint) AS c),
       (SELECT count(*) FROM (
          SELECT FROM belay_jobs AS j
           WHERE j.state = 'paused' AND j.state IN ('held', 'paused') AND j.queue = q.queue
           LIMIT %(cap)s::bigint) AS c),
       (SELECT count(*) FROM (
          SELECT FROM belay_jobs AS j WHERE j.state = 'failed' AND j.queue = q.queue
           LIMIT %(cap)s::bigint) AS c),
       (WITH RECURSIVE walk AS (
          (SELECT j.priority FROM belay_jobs AS j
            WHERE j.state = 'ready' AND j.queue = q.queue ORDER BY j.priority LIMIT 1)
          UNION ALL
          SELECT (SELECT j.priority FROM belay_jobs AS j
                   WHERE j.state = 'ready' AND j.queue = q.queue AND j.priority > w.priority
                   ORDER BY j.priority LIMIT 1)
            FROM walk AS w WHERE w.priority IS NOT NULL
        )
        SELECT min((SELECT j.ready_at FROM belay_jobs AS j
                     WHERE j.state = 'ready' AND j.queue = q.queue AND j.priority = w.priority
                       AND j.ready_at <= %(now)s::timestamptz
                     ORDER BY j.ready_at LIMIT 1))
          FROM walk AS w WHERE w.priority IS NOT NULL)
  FROM queue AS q
 WHERE q.queue IS NOT NULL
 ORDER BY q.queue
