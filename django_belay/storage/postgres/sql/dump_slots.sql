-- dump_slots · rule 35 · belay_x_cron_slots primary key
SELECT s.name, s.slot, s.fired_at FROM belay_x_cron_slots AS s ORDER BY s.name
