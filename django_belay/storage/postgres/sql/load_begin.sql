-- load_begin · no clause · no index
-- Rows are read, or written, as they stood at one moment: everybody else waits.
LOCK TABLE belay_jobs, belay_steps, belay_events, belay_signals, belay_rate, belay_queues, belay_crons
    IN SHARE ROW EXCLUSIVE MODE
