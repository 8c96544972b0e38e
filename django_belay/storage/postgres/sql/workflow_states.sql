-- workflow_states · contract §8.3 · belay_jobs_workflow_idx
SELECT j.id, j.wf_name, j.state
  FROM belay_jobs AS j
 WHERE j.workflow_id = %(workflow_id)s::text
 ORDER BY j.id
