DELETE FROM belay_events WHERE job_id = ?
