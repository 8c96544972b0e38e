-- Who waits for a signal (rule 23): on its scope, the job that job:<id> names, members of wf:<id>.
ARRAY(
       SELECT w.id FROM belay_jobs AS w
        WHERE w.state = 'awaiting' AND w.await_name || '' = %(name)s::text AND w.await_scope = %(scope)s::text
       UNION
       SELECT w.id FROM belay_jobs AS w
        WHERE w.state = 'awaiting' AND w.await_name = %(name)s::text AND w.id = %(job_id)s::bigint
       UNION
       SELECT w.id FROM belay_jobs AS w
        WHERE w.state = 'awaiting' AND w.await_name = %(name)s::text
          AND w.workflow_id = %(workflow_id)s::text)
