DELETE FROM belay_jobs WHERE id = ?
