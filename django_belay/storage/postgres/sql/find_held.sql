-- find_held · contract §7; rule 15 · belay_jobs primary key
-- Which of these leases are still in force, whoever holds a lock on their rows.
-- The || keeps out the index of what runs: dead entries of all that has run fill it up.
SELECT j.id
  FROM unnest(%(ids)s::bigint[], %(attempts)s::int[], %(leases)s::text[]) AS a(id, attempt, leased_by)
  JOIN belay_jobs AS j
    ON j.id = a.id AND j.attempt = a.attempt AND j.leased_by = a.leased_by
 WHERE j.state || '' = 'running'
