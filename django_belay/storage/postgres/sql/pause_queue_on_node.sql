-- pause_queue_on_node · rule 2 · belay_x_queue_pauses primary key
INSERT INTO belay_x_queue_pauses (name, node, updated_at)
VALUES (%(name)s::text, %(node)s::text, %(now)s::timestamptz)
ON CONFLICT (name, node) DO UPDATE SET updated_at = excluded.updated_at
