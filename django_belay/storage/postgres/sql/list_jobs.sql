-- list_jobs · contract §10 · belay_jobs primary key, belay_jobs_workflow_idx, belay_jobs_parent_idx,
-- belay_x_jobs_failed_idx
-- unprepared
-- A part that is not given is a NULL that the planner folds away, so each mix of parts
-- gets the plan of its own that a keyset page needs.
SELECT {job}
  FROM belay_jobs AS j
 WHERE (%(ids)s::bigint[] IS NULL OR j.id = ANY (%(ids)s::bigint[]))
   AND (%(states)s::text[] IS NULL OR j.state = ANY (%(states)s::text[]))
   AND (%(queue)s::text IS NULL OR j.queue = %(queue)s::text)
   AND (%(kind)s::text IS NULL OR j.kind = %(kind)s::text)
   AND (%(workflow_id)s::text IS NULL OR j.workflow_id = %(workflow_id)s::text)
   AND (%(parent_id)s::bigint IS NULL OR j.parent_id = %(parent_id)s::bigint)
   AND (%(since)s::timestamptz IS NULL OR j.inserted_at >= %(since)s::timestamptz)
   AND (%(before_id)s::bigint IS NULL OR j.id < %(before_id)s::bigint)
 ORDER BY j.id DESC
 LIMIT %(limit)s::bigint
