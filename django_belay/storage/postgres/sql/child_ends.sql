-- child_ends · contract §8.4 · belay_jobs primary key
-- Errors only of those that did not succeed: the others' are of attempts that no longer matter.
SELECT j.id, j.kind, j.state, j.attempt, j.max_attempts, j.result,
       CASE WHEN j.state = 'succeeded' THEN '[]'::jsonb ELSE j.errors END
  FROM (SELECT DISTINCT asked.id FROM unnest(%(ids)s::bigint[]) AS asked(id)) AS c
  JOIN belay_jobs AS j ON j.id = c.id
 WHERE j.parent_id = %(parent_id)s::bigint
