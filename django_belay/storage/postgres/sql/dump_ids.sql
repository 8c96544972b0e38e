-- dump_ids · no clause · belay_jobs primary key
SELECT j.id FROM belay_jobs AS j WHERE j.id > %(after)s::bigint ORDER BY j.id LIMIT %(limit)s::int
