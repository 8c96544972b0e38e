-- delete_queue · contract §3 · primary keys
-- A pause that was taken back is nothing: its row is left of it.
WITH own AS (DELETE FROM belay_x_queues AS x WHERE x.name = %(name)s::text RETURNING x.name, x.paused),
     pauses AS (DELETE FROM belay_x_queue_pauses AS p WHERE p.name = %(name)s::text RETURNING p.name),
     row AS (DELETE FROM belay_queues AS q WHERE q.name = %(name)s::text RETURNING q.name)
SELECT name FROM own WHERE own.paused UNION SELECT name FROM pauses UNION SELECT name FROM row
