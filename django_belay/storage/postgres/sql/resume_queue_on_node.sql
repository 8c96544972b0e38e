-- resume_queue_on_node · rule 2 · belay_x_queue_pauses primary key
DELETE FROM belay_x_queue_pauses AS p WHERE p.name = %(name)s::text AND p.node = %(node)s::text
