-- child_ends · contract §8.4 · belay_jobs primary key
-- Errors only of those that did not succeed: the others' are of attempts that no longer matter.
SELECT j.id, j.kind, j.state, j.attempt, j.max_attempts, j.result,
       CASE WHEN j.state = 'succeeded' THEN '[]'::jsonb ELSE j.errors END
  FROM unnest(%(ids)s::bigint[]) AS c(id)
  JOIN belay_jobs AS j ON j.id = c.id
 WHERE j.parent_id = %(parent_id)s::bigint
