-- list_queues · contract §3, rule 2 · a few rows
-- A queue has options, a pause for every node, pauses for single ones, or any of them.
SELECT n.name, COALESCE(q.opts, '{}'), COALESCE(x.paused, false),
       greatest(q.updated_at, x.updated_at, p.updated_at), COALESCE(p.nodes, '{}')
  FROM (SELECT q.name FROM belay_queues AS q
         UNION SELECT x.name FROM belay_x_queues AS x WHERE x.paused
         UNION SELECT p.name FROM belay_x_queue_pauses AS p) AS n
  LEFT JOIN belay_queues AS q ON q.name = n.name
  LEFT JOIN belay_x_queues AS x ON x.name = n.name
  LEFT JOIN (SELECT p.name, array_agg(p.node ORDER BY p.node) AS nodes, max(p.updated_at) AS updated_at
               FROM belay_x_queue_pauses AS p GROUP BY p.name) AS p ON p.name = n.name
 ORDER BY 1
