-- Pruning of signals past their TTL (§8.7).
CREATE INDEX belay_x_signals_age_idx ON belay_signals (inserted_at)
