-- dump_running · no clause · belay_jobs_lease_idx
SELECT count(*) FROM belay_jobs AS j WHERE j.state = 'running'
