-- send_hints · contract §9.2; rule 11 · belay_x_waiters
-- Pokes that the policy let through, and results somebody waits for.
SELECT count(pg_notify({channel}, h.payload))
  FROM (
    SELECT unnest(%(pokes)s::text[]) AS payload
    UNION
    SELECT '{"t":"r","id":' || w.job_id || '}' FROM belay_x_waiters AS w
     WHERE w.job_id = ANY(%(ended)s::bigint[])
  ) AS h
