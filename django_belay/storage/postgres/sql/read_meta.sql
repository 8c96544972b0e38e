-- read_meta · contract §1
-- Migration 3 adds contract_major: before it the major is 1.
SELECT max(m.version), COALESCE(max((to_jsonb(m) ->> 'contract_major')::int), 1) FROM belay_meta AS m
