-- remember_cron_slot · contract §8.5, rule 35 · belay_x_cron_slots primary key
-- No row comes back for a slot that is not newer than the newest: a clock set back fires
-- nothing twice.
INSERT INTO belay_x_cron_slots AS s (name, slot, fired_at)
VALUES (%(name)s::text, %(slot)s::timestamptz, %(now)s::timestamptz)
ON CONFLICT (name) DO UPDATE SET slot = excluded.slot, fired_at = excluded.fired_at
 WHERE s.slot < excluded.slot
RETURNING s.name
