-- find_signal · contract §8.1; rules 23, 27 · belay_signals primary key
-- The first scope, in the given order, that has one wins.
-- Each array stands in a SELECT, which the planner does not look into: the plan is made once.
SELECT s.scope, s.name, s.payload, s.inserted_at
  FROM unnest((SELECT %(scopes)s::text[])) WITH ORDINALITY AS r(scope, n)
  JOIN belay_signals AS s ON s.scope = r.scope AND s.name = %(name)s::text
 WHERE %(newer_than)s::timestamptz IS NULL OR s.inserted_at > %(newer_than)s::timestamptz
 ORDER BY r.n
 LIMIT 1
