-- find_held_workflows · contract §8.3; rule 33 · belay_x_jobs_open_members_idx
-- From the one after the given on; NULL begins with the first, whose id may be empty.
SELECT DISTINCT j.workflow_id
  FROM belay_jobs AS j
 WHERE j.workflow_id >= COALESCE(%(after)s::text, '') AND j.workflow_id IS DISTINCT FROM %(after)s::text
   AND j.state = 'held'
 ORDER BY j.workflow_id
 LIMIT %(limit)s::int
