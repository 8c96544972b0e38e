-- get_job · contract §3 · belay_jobs primary key
SELECT {job} FROM belay_jobs AS j WHERE j.id = %(id)s::bigint
