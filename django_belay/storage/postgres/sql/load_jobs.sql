-- load_jobs · no clause · belay_jobs primary key
-- Rows as another storage had them, ids included.
INSERT INTO belay_jobs (
       id, kind, queue, state, input, meta, priority, attempt, max_attempts, partition_key, ready_at,
       lease_until, leased_by, await_scope, await_name, workflow_id, wf_name, wf_deps, wf_ignore,
       cron_name, cron_slot, unique_key, unique_mode, parent_id, budget_usd_micros, budget_tokens,
       spent_usd_micros, spent_tokens, result, errors, cancel_requested, inserted_at, started_at,
       finished_at)
SELECT g.id, g.kind, g.queue, g.state, g.input, g.meta, g.priority, g.attempt, g.max_attempts,
       g.partition_key, g.ready_at, g.lease_until, g.leased_by, g.await_scope, g.await_name,
       g.workflow_id, g.wf_name, g.wf_deps, g.wf_ignore, g.cron_name, g.cron_slot, g.unique_key,
       g.unique_mode, g.parent_id, g.budget_usd_micros, g.budget_tokens, g.spent_usd_micros,
       g.spent_tokens, g.result, g.errors, g.cancel_requested, g.inserted_at, g.started_at, g.finished_at
  FROM json_populate_recordset(NULL::belay_jobs, %(rows)s::json) AS g
