-- reset_retried · contract §8.6; rule 34 · belay_jobs primary key; the rows are locked
UPDATE belay_jobs AS j
   SET cancel_requested = false, max_attempts = GREATEST(j.max_attempts, LEAST(j.attempt, 2147483646) + 1)
 WHERE j.id = ANY(%(ids)s::bigint[])
