-- find_signalled · contract §8.4 R2; rules 10, 23 · belay_x_jobs_await_name_idx, belay_signals primary key
-- A page of jobs that wait though a signal of that name is in a scope they read.
SELECT j.id, j.workflow_id, j.await_scope, j.await_name
  FROM belay_jobs AS j
 WHERE j.state = 'awaiting'
   AND (j.await_name, j.id) > (%(after)s::text, %(after_id)s::bigint)
   AND (EXISTS (SELECT 1 FROM belay_signals AS s WHERE s.scope = j.await_scope AND s.name = j.await_name)
     OR EXISTS (SELECT 1 FROM belay_signals AS s WHERE s.scope = 'job:' || j.id AND s.name = j.await_name)
     OR EXISTS (SELECT 1 FROM belay_signals AS s
                 WHERE s.scope = 'wf:' || j.workflow_id AND s.name = j.await_name))
 ORDER BY j.await_name, j.id
 LIMIT %(limit)s::int
