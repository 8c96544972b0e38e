-- clear_signal · contract §8.1 · belay_signals primary key
DELETE FROM belay_signals AS s
 WHERE s.scope = %(scope)s::text AND s.name = %(name)s::text
RETURNING s.name
