-- One row a bucket is updated at every claim: keep its page free of dead versions.
ALTER TABLE belay_rate SET (
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 500,
  fillfactor = 50
)
