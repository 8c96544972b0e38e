-- awaiting -> ready of the rows in waiting (§8.1).
UPDATE belay_jobs AS j
   SET state = 'ready', ready_at = %(now)s::timestamptz, await_scope = NULL, await_name = NULL
  FROM waiting WHERE j.id = waiting.id
RETURNING j.id, j.queue
