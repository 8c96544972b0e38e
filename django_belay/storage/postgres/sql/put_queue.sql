-- put_queue · contract §3 · belay_queues primary key
INSERT INTO belay_queues (name, opts, updated_at)
VALUES (%(name)s::text, %(opts)s::jsonb, %(now)s::timestamptz)
ON CONFLICT (name) DO UPDATE SET opts = excluded.opts, updated_at = excluded.updated_at
