-- is_uncommitted · rule 10 · belay_jobs primary key
-- Whether the row as we see it was written by the transaction that asks, or in a savepoint of it. Such a
-- writer is not older than the transaction's own number, and still in progress.
SELECT CASE WHEN age(j.xmin) <= 0
            THEN txid_status(txid_current_if_assigned() - age(j.xmin)) = 'in progress'
            ELSE false
       END
  FROM belay_jobs AS j
 WHERE j.id = %(id)s::bigint AND txid_current_if_assigned() IS NOT NULL
