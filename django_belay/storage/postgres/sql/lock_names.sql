-- lock_names · contract §7, §8.1; rules 19, 20
-- Advisory locks to the transaction's end: class by class, in each by ascending hash.
SELECT count(pg_advisory_xact_lock(k.hash))
  FROM (
    SELECT DISTINCT n.class, hashtext(n.name)::bigint AS hash
      FROM unnest(%(classes)s::int[], %(names)s::text[]) AS n(class, name)
     ORDER BY n.class, hash
    OFFSET 0
  ) AS k
