-- Tables of this SDK alone (rule 2): other SDKs neither read nor write them.

-- One row a worker process; claimed_at is when its claim loop last turned.
CREATE TABLE IF NOT EXISTS belay_x_nodes (
  incarnation text PRIMARY KEY,
  node text NOT NULL,
  started_at timestamptz NOT NULL,
  beat_at timestamptz NOT NULL,
  claimed_at timestamptz,
  facts jsonb NOT NULL DEFAULT '{}'
);

-- The newest slot that each cron entry fired: pruning jobs does not touch it (rule 35).
CREATE TABLE IF NOT EXISTS belay_x_cron_slots (
  name text PRIMARY KEY,
  slot timestamptz NOT NULL,
  fired_at timestamptz NOT NULL
);

-- Who waits for which job's result, so that only those are announced (rule 11).
CREATE TABLE IF NOT EXISTS belay_x_waiters (
  job_id bigint PRIMARY KEY,
  wait_until timestamptz NOT NULL
);

-- A queue that an operator paused; belay_queues has no room for it (rule 2).
CREATE TABLE IF NOT EXISTS belay_x_queues (
  name text PRIMARY KEY,
  paused boolean NOT NULL DEFAULT false,
  updated_at timestamptz NOT NULL
);

-- A queue that an operator paused on one node alone.
CREATE TABLE IF NOT EXISTS belay_x_queue_pauses (
  name text NOT NULL,
  node text NOT NULL,
  updated_at timestamptz NOT NULL,
  PRIMARY KEY (name, node)
);

-- What a cron entry has here beyond belay_crons (rule 2).
CREATE TABLE IF NOT EXISTS belay_x_crons (
  name text PRIMARY KEY,
  timezone text,
  catch_up text
);
