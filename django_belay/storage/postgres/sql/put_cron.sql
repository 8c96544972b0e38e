-- put_cron · contract §3, §8.5; rule 2 · primary keys
WITH own AS (
  INSERT INTO belay_x_crons (name, timezone, catch_up)
  VALUES (%(name)s::text, %(timezone)s::text, %(catch_up)s::text)
  ON CONFLICT (name) DO UPDATE SET timezone = excluded.timezone, catch_up = excluded.catch_up
)
INSERT INTO belay_crons (name, expression, worker, input, opts, paused, updated_at)
VALUES (%(name)s::text, %(expression)s::text, %(kind)s::text, %(input)s::jsonb, %(opts)s::jsonb,
        %(paused)s::boolean, %(now)s::timestamptz)
ON CONFLICT (name) DO UPDATE
   SET expression = excluded.expression, worker = excluded.worker, input = excluded.input,
       opts = excluded.opts, paused = excluded.paused, updated_at = excluded.updated_at
