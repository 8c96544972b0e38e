-- set_cron_paused · contract §8.5 · belay_crons primary key
UPDATE belay_crons AS c SET paused = %(paused)s::boolean, updated_at = %(now)s::timestamptz
 WHERE c.name = %(name)s::text
RETURNING c.name
