-- flag_cancel · contract §8.6 · belay_jobs primary key; the rows are locked
-- The || keeps out the index of what runs: dead entries of all that has run fill it up.
UPDATE belay_jobs AS j SET cancel_requested = true
 WHERE j.id = ANY(%(ids)s::bigint[]) AND j.state || '' = 'running'
