-- workflow_jobs · contract §8.3 · belay_jobs_workflow_idx
SELECT {job} FROM belay_jobs AS j WHERE j.workflow_id = %(workflow_id)s::text ORDER BY j.id
