-- workflow_members · contract §8.3; rule 33 · belay_jobs_workflow_idx
SELECT j.workflow_id, j.id, j.wf_name, j.state,
       CASE WHEN j.state = 'held' THEN j.wf_deps ELSE '{}' END,
       CASE WHEN j.state = 'held' THEN j.wf_ignore ELSE '{}' END,
       j.parent_id
  FROM belay_jobs AS j
 WHERE j.workflow_id = ANY(%(workflow_ids)s::text[])
 ORDER BY j.id
