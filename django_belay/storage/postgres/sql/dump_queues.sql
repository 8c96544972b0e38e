-- dump_queues · contract §3, rule 2 · a few rows
-- As list_queues, but options that were never set are NULL.
SELECT n.name, q.opts, COALESCE(x.paused, false), COALESCE(p.nodes, '{}'),
       greatest(q.updated_at, x.updated_at, p.updated_at)
  FROM (SELECT q.name FROM belay_queues AS q
         UNION SELECT x.name FROM belay_x_queues AS x WHERE x.paused
         UNION SELECT p.name FROM belay_x_queue_pauses AS p) AS n
  LEFT JOIN belay_queues AS q ON q.name = n.name
  LEFT JOIN belay_x_queues AS x ON x.name = n.name
  LEFT JOIN (SELECT p.name, array_agg(p.node ORDER BY p.node) AS nodes, max(p.updated_at) AS updated_at
               FROM belay_x_queue_pauses AS p GROUP BY p.name) AS p ON p.name = n.name
 ORDER BY 1
