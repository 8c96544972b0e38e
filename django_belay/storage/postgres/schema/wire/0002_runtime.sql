-- Wire migration 2 (contract §3): queues and crons that are set at run time.
CREATE TABLE IF NOT EXISTS belay_queues (
  name text PRIMARY KEY,
  opts jsonb NOT NULL DEFAULT '{}',
  updated_at timestamptz
);

CREATE TABLE IF NOT EXISTS belay_crons (
  name text PRIMARY KEY,
  expression text NOT NULL,
  worker text NOT NULL,
  input jsonb NOT NULL DEFAULT '{}',
  opts jsonb NOT NULL DEFAULT '{}',
  paused boolean NOT NULL DEFAULT false,
  updated_at timestamptz
);

INSERT INTO belay_meta (version) SELECT 2
 WHERE NOT EXISTS (SELECT FROM belay_meta WHERE version = 2);
