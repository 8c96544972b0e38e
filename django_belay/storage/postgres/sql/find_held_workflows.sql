-- find_held_workflows · contract §8.3; rule 33 · belay_x_jobs_open_members_idx
SELECT DISTINCT j.workflow_id
  FROM belay_jobs AS j
 WHERE j.workflow_id > %(after)s::text AND j.state = 'held'
 ORDER BY j.workflow_id
 LIMIT %(limit)s::int
