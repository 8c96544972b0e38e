-- find_key_holder · contract §5.2; rule 9 · belay_jobs_unique_incomplete_idx
SELECT j.id FROM belay_jobs AS j
 WHERE j.unique_key = %(unique_key)s::text AND j.unique_key IS NOT NULL
   AND j.unique_mode = 'incomplete'
   AND j.state IN ('ready', 'running', 'awaiting', 'held', 'paused')
   AND j.id <> %(job_id)s::bigint
