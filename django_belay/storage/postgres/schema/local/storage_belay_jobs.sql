-- Claims slow down with dead index entries: vacuum often and without pauses. Room in each
-- page lets the updates that touch no index (spend, cancel_requested) stay in it.
ALTER TABLE belay_jobs SET (
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0.02,
  autovacuum_analyze_threshold = 1000,
  fillfactor = 90
)
