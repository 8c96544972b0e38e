-- prune_nodes · rule 2 · a sequential scan: a row a worker process
DELETE FROM belay_x_nodes AS n
 WHERE n.beat_at < %(older_than)s::timestamptz
RETURNING n.incarnation
