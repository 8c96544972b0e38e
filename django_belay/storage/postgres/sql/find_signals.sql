-- find_signals · contract §8.1; rules 23, 27 · belay_signals primary key
-- find_signal for several waits at once: of each, the first of its scopes that has one wins.
SELECT DISTINCT ON (r.n) r.n, s.scope, s.name, s.payload, s.inserted_at
  FROM unnest(%(ns)s::int[], %(scopes)s::text[], %(names)s::text[], %(newer_thans)s::timestamptz[])
         WITH ORDINALITY AS r (n, scope, name, newer_than, rank)
  JOIN belay_signals AS s ON s.scope = r.scope AND s.name = r.name
 WHERE r.newer_than IS NULL OR s.inserted_at > r.newer_than
 ORDER BY r.n, r.rank
