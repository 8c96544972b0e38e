-- debit_rate · contract §6, rate; rule 13 · belay_rate primary key
-- The column is int4: a count stays at its bound rather than overflow.
INSERT INTO belay_rate AS r (bucket, window_start, count)
VALUES (%(bucket)s::text, %(window)s::bigint,
        greatest(least(%(amount)s::bigint, 2147483647), -2147483647)::int)
ON CONFLICT (bucket, window_start) DO UPDATE
   SET count = greatest(least(r.count::bigint + %(amount)s::bigint, 2147483647), -2147483647)::int
