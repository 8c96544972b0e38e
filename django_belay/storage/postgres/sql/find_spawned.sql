-- find_spawned · contract §8.4 · belay_jobs_unique_window_idx
SELECT j.id, j.unique_key
  FROM unnest(%(keys)s::text[]) AS k(unique_key)
  JOIN belay_jobs AS j ON j.unique_key = k.unique_key
 WHERE j.unique_key IS NOT NULL AND j.unique_mode IN ('window', 'always')
   AND j.parent_id = %(parent_id)s::bigint
