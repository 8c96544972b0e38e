-- find_by_unique_key · contract §5.2, rule 8 · belay_x_jobs_key_idx
SELECT {job} FROM belay_jobs AS j
 WHERE j.unique_key = %(key)s::text
 ORDER BY j.id DESC LIMIT 1
