-- What the admin and querysets look for, built once the rows are in. Every one ends in the job's id.

CREATE INDEX belay_jobs_state_idx ON belay_jobs (state)

CREATE INDEX belay_jobs_queue_idx ON belay_jobs (queue, state)

CREATE INDEX belay_jobs_kind_idx ON belay_jobs (kind)

CREATE INDEX belay_jobs_parent_idx ON belay_jobs (parent_id) WHERE parent_id IS NOT NULL

CREATE INDEX belay_jobs_workflow_idx ON belay_jobs (workflow_id) WHERE workflow_id IS NOT NULL

CREATE INDEX belay_jobs_key_idx ON belay_jobs (unique_key) WHERE unique_key IS NOT NULL

CREATE INDEX belay_jobs_cron_idx ON belay_jobs (cron_name) WHERE cron_name IS NOT NULL
