-- list_crons · contract §3, §8.5; rule 2 · a few rows
SELECT c.name, c.expression, c.worker, c.input, c.opts, c.paused, x.timezone, x.catch_up, c.updated_at
  FROM belay_crons AS c
  LEFT JOIN belay_x_crons AS x ON x.name = c.name
 ORDER BY c.name
