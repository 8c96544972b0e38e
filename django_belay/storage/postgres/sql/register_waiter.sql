-- register_waiter · rule 11 · belay_x_waiters primary key
-- Clears away a few waits that are over, so that the table needs no sweeper.
WITH over AS (
  DELETE FROM belay_x_waiters AS w
   WHERE w.job_id IN (SELECT o.job_id FROM belay_x_waiters AS o
                       WHERE o.wait_until < %(now)s::timestamptz AND o.job_id <> %(job_id)s::bigint
                       ORDER BY o.job_id LIMIT 20 FOR UPDATE SKIP LOCKED)
)
INSERT INTO belay_x_waiters AS w (job_id, wait_until)
VALUES (%(job_id)s::bigint, %(until)s::timestamptz)
ON CONFLICT (job_id) DO UPDATE SET wait_until = greatest(w.wait_until, excluded.wait_until)
