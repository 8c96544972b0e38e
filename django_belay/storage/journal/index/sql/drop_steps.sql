DELETE FROM belay_steps WHERE job_id = ? AND seq = ?
