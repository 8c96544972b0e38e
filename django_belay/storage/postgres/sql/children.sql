-- children · contract §8.4 · belay_jobs_parent_idx
SELECT {job} FROM belay_jobs AS j WHERE j.parent_id = %(parent_id)s::bigint ORDER BY j.id
