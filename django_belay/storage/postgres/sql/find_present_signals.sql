-- find_present_signals · contract §7, park-and-wake; rules 23, 27 · belay_signals primary key
-- Which parks find their signal; asked under the locks of all scopes that they read.
SELECT DISTINCT p.job_id
  FROM unnest(%(job_ids)s::bigint[], %(scopes)s::text[], %(names)s::text[], %(newer_thans)s::timestamptz[])
         AS p(job_id, scope, name, newer_than)
  JOIN belay_signals AS s ON s.scope = p.scope AND s.name = p.name
 WHERE p.newer_than IS NULL OR s.inserted_at > p.newer_than
