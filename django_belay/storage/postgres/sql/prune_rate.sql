-- prune_rate · contract §8.7 · a sequential scan: a row a bucket and window of one day
WITH old AS (
  SELECT r.bucket, r.window_start FROM belay_rate AS r
   WHERE r.window_start < %(older_than)s::bigint
   ORDER BY r.bucket, r.window_start
   LIMIT 10000
     FOR UPDATE SKIP LOCKED
)
DELETE FROM belay_rate AS r USING old WHERE r.bucket = old.bucket AND r.window_start = old.window_start
RETURNING r.bucket
