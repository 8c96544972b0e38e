-- list_nodes · no clause · a few rows
SELECT n.incarnation, n.node, n.started_at, n.beat_at, n.claimed_at, n.facts
  FROM belay_x_nodes AS n
 ORDER BY n.node, n.started_at, n.incarnation
