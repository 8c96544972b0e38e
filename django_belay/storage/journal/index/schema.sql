-- The inspection index (mapping page "Memory, index"): the wire tables' names and columns (§3) in the
-- types that Django's SQLite backend reads. Instants are text in UTC, JSON and text arrays are JSON
-- text with sorted keys. Statements are separated by empty lines.

CREATE TABLE belay_jobs (
  id integer NOT NULL PRIMARY KEY,
  kind text NOT NULL,
  queue text NOT NULL,
  state text NOT NULL,
  input text NOT NULL,
  meta text NOT NULL,
  priority integer NOT NULL,
  attempt integer NOT NULL,
  max_attempts integer NOT NULL,
  partition_key text,
  ready_at datetime,
  lease_until datetime,
  leased_by text,
  await_scope text,
  await_name text,
  workflow_id text,
  wf_name text,
  wf_deps text NOT NULL,
  wf_ignore text NOT NULL,
  cron_name text,
  cron_slot datetime,
  unique_key text,
  unique_mode text,
  parent_id bigint,
  budget_usd_micros bigint,
  budget_tokens bigint,
  spent_usd_micros bigint NOT NULL,
  spent_tokens bigint NOT NULL,
  result blob,
  errors text NOT NULL,
  cancel_requested bool NOT NULL,
  inserted_at datetime NOT NULL,
  started_at datetime,
  finished_at datetime
)

CREATE TABLE belay_steps (
  job_id bigint NOT NULL,
  seq integer NOT NULL,
  name text NOT NULL,
  value blob,
  usd_micros bigint NOT NULL,
  tokens bigint NOT NULL,
  inserted_at datetime,
  PRIMARY KEY (job_id, seq)
) WITHOUT ROWID

CREATE TABLE belay_events (
  job_id bigint NOT NULL,
  seq integer NOT NULL,
  payload text,
  inserted_at datetime,
  PRIMARY KEY (job_id, seq)
) WITHOUT ROWID

CREATE TABLE belay_signals (
  scope text NOT NULL,
  name text NOT NULL,
  payload text,
  inserted_at datetime,
  PRIMARY KEY (scope, name)
) WITHOUT ROWID

CREATE TABLE belay_rate (
  bucket text NOT NULL,
  window_start bigint NOT NULL,
  count integer NOT NULL,
  PRIMARY KEY (bucket, window_start)
) WITHOUT ROWID

CREATE TABLE belay_queues (
  name text NOT NULL PRIMARY KEY,
  opts text NOT NULL,
  updated_at datetime
) WITHOUT ROWID

CREATE TABLE belay_crons (
  name text NOT NULL PRIMARY KEY,
  expression text NOT NULL,
  worker text NOT NULL,
  input text NOT NULL,
  opts text NOT NULL,
  paused bool NOT NULL,
  updated_at datetime
) WITHOUT ROWID

CREATE TABLE belay_meta (version integer NOT NULL PRIMARY KEY, contract_major integer NOT NULL)

INSERT INTO belay_meta (version, contract_major) VALUES (1, 1), (2, 1), (3, 1)

-- What the index holds: everything of this store through this sequence of this generation.
CREATE TABLE belay_index (
  id integer NOT NULL PRIMARY KEY CHECK (id = 1),
  format integer NOT NULL,
  store text NOT NULL,
  generation text NOT NULL,
  through bigint NOT NULL
)
