-- insert_jobs · contract §5.1, §5.2; rules 7, 8, 9, 11 · belay_jobs_unique_incomplete_idx,
-- belay_jobs_unique_window_idx, belay_jobs_cron_slot_idx
-- Ids are drawn here, in input order, so an answer finds its input by id and not by the
-- order of RETURNING, and a row whose key is held already burns no sequence value. The
-- rows go in sorted by key: two callers with a,b and b,a would deadlock otherwise. Of rows that want one
-- key the first one given has it.
WITH given AS MATERIALIZED (
  SELECT g.*
    FROM ROWS FROM (
      json_to_recordset(%(rows)s::json) AS (
        kind text, queue text, input jsonb, meta jsonb, state text, priority int,
        max_attempts int, partition_key text, ready_at timestamptz, workflow_id text,
        wf_name text, wf_deps text[], wf_ignore text[], cron_name text,
        cron_slot timestamptz, unique_key text, unique_mode text, parent_id bigint,
        budget_usd_micros bigint, budget_tokens bigint)
    ) WITH ORDINALITY AS g (
      kind, queue, input, meta, state, priority,
      max_attempts, partition_key, ready_at, workflow_id,
      wf_name, wf_deps, wf_ignore, cron_name,
      cron_slot, unique_key, unique_mode, parent_id,
      budget_usd_micros, budget_tokens, n)
),
drawn AS MATERIALIZED (
  SELECT g.*, h.id AS holder_id, h.state AS holder_state,
         CASE WHEN h.id IS NULL THEN nextval(s.name) END AS id
    FROM given AS g
   CROSS JOIN (SELECT pg_get_serial_sequence('belay_jobs', 'id')::regclass AS name) AS s
    LEFT JOIN LATERAL (
      (SELECT j.id, j.state FROM belay_jobs AS j
        WHERE g.unique_mode = 'incomplete' AND j.unique_key = g.unique_key
          AND j.unique_mode = 'incomplete'
          AND j.state IN ('ready', 'running', 'awaiting', 'held', 'paused')
        LIMIT 1)
      UNION ALL
      (SELECT j.id, j.state FROM belay_jobs AS j
        WHERE g.unique_mode IN ('window', 'always') AND j.unique_key = g.unique_key
          AND j.unique_mode IN ('window', 'always')
        LIMIT 1)
      UNION ALL
      (SELECT j.id, j.state FROM belay_jobs AS j
        WHERE j.cron_name = g.cron_name AND j.cron_slot = g.cron_slot
        LIMIT 1)
      LIMIT 1
    ) AS h ON g.unique_key IS NOT NULL OR g.cron_name IS NOT NULL
),
added AS (
  INSERT INTO belay_jobs (
    id, kind, queue, state, input, meta, priority, attempt, max_attempts, partition_key,
    ready_at, workflow_id, wf_name, wf_deps, wf_ignore, cron_name, cron_slot,
    unique_key, unique_mode, parent_id, budget_usd_micros, budget_tokens,
    spent_usd_micros, spent_tokens, errors, cancel_requested, inserted_at)
  SELECT d.id, d.kind, d.queue, d.state, d.input, d.meta, d.priority, 0, d.max_attempts, d.partition_key,
         COALESCE(d.ready_at, %(now)s::timestamptz), d.workflow_id, d.wf_name,
         COALESCE(d.wf_deps, '{}'), COALESCE(d.wf_ignore, '{}'), d.cron_name, d.cron_slot,
         d.unique_key, d.unique_mode, d.parent_id, d.budget_usd_micros, d.budget_tokens,
         0, 0, '[]', false, %(now)s::timestamptz
    FROM drawn AS d
   WHERE d.id IS NOT NULL
   ORDER BY d.unique_key COLLATE "C", d.unique_mode = 'incomplete',
            CASE WHEN d.unique_key IS NULL THEN d.cron_name END COLLATE "C",
            CASE WHEN d.unique_key IS NULL THEN d.cron_slot END, d.n
  ON CONFLICT DO NOTHING
  RETURNING id, queue, state, ready_at
)
SELECT d.id, a.id IS NOT NULL, d.holder_id, d.holder_state,
       (SELECT count(pg_notify({channel}, p.payload))
          FROM unnest(%(poked)s::text[], %(pokes)s::text[]) AS p (queue, payload)
         WHERE p.queue IN (SELECT b.queue FROM added AS b
                            WHERE b.state = 'ready' AND b.ready_at <= %(now)s::timestamptz))
  FROM drawn AS d
  LEFT JOIN added AS a ON a.id = d.id
 ORDER BY d.n
