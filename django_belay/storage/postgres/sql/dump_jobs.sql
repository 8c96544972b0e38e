-- dump_jobs · no clause · belay_jobs primary key
SELECT {job} FROM belay_jobs AS j WHERE j.id > %(after)s::bigint ORDER BY j.id LIMIT %(limit)s::int
