-- What never changes of a job is not written again, so that its indexes are left alone.
INSERT INTO belay_jobs (
  id, kind, queue, state, input, meta, priority, attempt, max_attempts, partition_key, ready_at,
  lease_until, leased_by, await_scope, await_name, workflow_id, wf_name, wf_deps, wf_ignore, cron_name,
  cron_slot, unique_key, unique_mode, parent_id, budget_usd_micros, budget_tokens, spent_usd_micros,
  spent_tokens, result, errors, cancel_requested, inserted_at, started_at, finished_at
) VALUES (
  ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
)
ON CONFLICT (id) DO UPDATE SET
  queue = excluded.queue, state = excluded.state, input = excluded.input, meta = excluded.meta,
  priority = excluded.priority, attempt = excluded.attempt, max_attempts = excluded.max_attempts,
  ready_at = excluded.ready_at, lease_until = excluded.lease_until, leased_by = excluded.leased_by,
  await_scope = excluded.await_scope, await_name = excluded.await_name, wf_deps = excluded.wf_deps,
  wf_ignore = excluded.wf_ignore, partition_key = excluded.partition_key,
  unique_key = excluded.unique_key, unique_mode = excluded.unique_mode,
  budget_usd_micros = excluded.budget_usd_micros, budget_tokens = excluded.budget_tokens,
  spent_usd_micros = excluded.spent_usd_micros, spent_tokens = excluded.spent_tokens,
  result = excluded.result, errors = excluded.errors, cancel_requested = excluded.cancel_requested,
  started_at = excluded.started_at, finished_at = excluded.finished_at
