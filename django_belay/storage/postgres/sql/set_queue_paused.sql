-- set_queue_paused · rule 2 · belay_x_queues primary key
INSERT INTO belay_x_queues (name, paused, updated_at)
VALUES (%(name)s::text, %(paused)s::boolean, %(now)s::timestamptz)
ON CONFLICT (name) DO UPDATE SET paused = excluded.paused, updated_at = excluded.updated_at
