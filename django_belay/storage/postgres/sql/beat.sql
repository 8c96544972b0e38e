-- beat · no clause · belay_x_nodes primary key
INSERT INTO belay_x_nodes (incarnation, node, started_at, beat_at, claimed_at, facts)
VALUES (%(incarnation)s::text, %(node)s::text, %(started_at)s::timestamptz, %(beat_at)s::timestamptz,
        %(claimed_at)s::timestamptz, %(facts)s::jsonb)
ON CONFLICT (incarnation) DO UPDATE
   SET node = excluded.node, started_at = excluded.started_at, beat_at = excluded.beat_at,
       claimed_at = excluded.claimed_at, facts = excluded.facts
