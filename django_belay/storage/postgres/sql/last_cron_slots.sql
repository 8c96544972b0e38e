-- last_cron_slots · contract §8.5, rule 35 · belay_jobs_cron_slot_idx
-- Our memory, and what a foreign SDK fired: a loose scan over the entries' names.
WITH RECURSIVE entry AS (
  (SELECT j.cron_name FROM belay_jobs AS j WHERE j.cron_name IS NOT NULL ORDER BY j.cron_name LIMIT 1)
  UNION ALL
  SELECT (SELECT j.cron_name FROM belay_jobs AS j WHERE j.cron_name > e.cron_name ORDER BY j.cron_name LIMIT 1)
    FROM entry AS e WHERE e.cron_name IS NOT NULL
),
slot AS (
  SELECT s.name, s.slot FROM belay_x_cron_slots AS s
  UNION ALL
  SELECT e.cron_name, (SELECT j.cron_slot FROM belay_jobs AS j
                        WHERE j.cron_name = e.cron_name AND j.cron_slot IS NOT NULL
                        ORDER BY j.cron_slot DESC LIMIT 1)
    FROM entry AS e WHERE e.cron_name IS NOT NULL
)
SELECT s.name, max(s.slot) FROM slot AS s WHERE s.slot IS NOT NULL GROUP BY s.name
