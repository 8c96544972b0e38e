-- dump_counts · no clause · sequential scans
SELECT (SELECT count(*) FROM belay_jobs),
       (SELECT count(*) FROM belay_steps AS s WHERE EXISTS (SELECT FROM belay_jobs AS j WHERE j.id = s.job_id)),
       (SELECT count(*) FROM belay_events AS e WHERE EXISTS (SELECT FROM belay_jobs AS j WHERE j.id = e.job_id)),
       (SELECT count(*) FROM belay_signals),
       (SELECT count(*) FROM belay_rate),
       (SELECT count(*) FROM (SELECT q.name FROM belay_queues AS q
                               UNION SELECT x.name FROM belay_x_queues AS x WHERE x.paused
                               UNION SELECT p.name FROM belay_x_queue_pauses AS p) AS n),
       (SELECT count(*) FROM belay_crons),
       (SELECT count(*) FROM belay_x_cron_slots)
