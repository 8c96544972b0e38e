-- load_sequence · no clause · belay_jobs primary key
-- What is inserted next comes after every row.
SELECT setval(pg_get_serial_sequence('belay_jobs', 'id'), max(j.id)) FROM belay_jobs AS j HAVING max(j.id) IS NOT NULL
