-- is_cron_slot · contract §8.5 · belay_jobs primary key
SELECT j.id FROM belay_jobs AS j
 WHERE j.id = %(id)s::bigint AND j.cron_name = %(name)s::text AND j.cron_slot = %(slot)s::timestamptz
