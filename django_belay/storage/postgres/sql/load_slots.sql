-- load_slots · no clause · belay_x_cron_slots primary key
INSERT INTO belay_x_cron_slots (name, slot, fired_at)
SELECT g.name, g.slot, g.fired_at
  FROM json_populate_recordset(NULL::belay_x_cron_slots, %(rows)s::json) AS g
