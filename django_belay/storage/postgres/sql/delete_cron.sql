-- delete_cron · contract §3 · primary keys
-- The slot memory stays: an entry made again under the name fires no slot twice.
WITH own AS (DELETE FROM belay_x_crons AS x WHERE x.name = %(name)s::text)
DELETE FROM belay_crons AS c WHERE c.name = %(name)s::text RETURNING c.name
