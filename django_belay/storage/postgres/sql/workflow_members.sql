-- workflow_members · contract §8.3; rule 33 · belay_jobs_workflow_idx
-- Deps only of members that are held, or are about to be held again by a retry.
SELECT j.workflow_id, j.id, j.wf_name, j.state,
       CASE WHEN j.state = 'held' OR j.id = ANY(%(reheld)s::bigint[]) THEN j.wf_deps ELSE '{}' END,
       CASE WHEN j.state = 'held' OR j.id = ANY(%(reheld)s::bigint[]) THEN j.wf_ignore ELSE '{}' END,
       j.parent_id
  FROM belay_jobs AS j
 WHERE j.workflow_id = ANY(%(workflow_ids)s::text[])
 ORDER BY j.id
