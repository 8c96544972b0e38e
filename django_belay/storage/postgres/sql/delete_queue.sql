-- delete_queue · contract §3 · primary keys
WITH own AS (DELETE FROM belay_x_queues AS x WHERE x.name = %(name)s::text RETURNING x.name),
     pauses AS (DELETE FROM belay_x_queue_pauses AS p WHERE p.name = %(name)s::text RETURNING p.name),
     row AS (DELETE FROM belay_queues AS q WHERE q.name = %(name)s::text RETURNING q.name)
SELECT name FROM own UNION SELECT name FROM pauses UNION SELECT name FROM row
