-- list_queues · contract §3, rule 2 · a few rows
SELECT COALESCE(q.name, x.name), COALESCE(q.opts, '{}'), COALESCE(x.paused, false),
       greatest(q.updated_at, x.updated_at)
  FROM belay_queues AS q
  FULL JOIN belay_x_queues AS x ON x.name = q.name
 WHERE q.name IS NOT NULL OR x.paused
 ORDER BY 1
