-- A payload is always newer than the one it replaces, whatever the clocks say (rule 27).
GREATEST(EXCLUDED.inserted_at,
                  CASE WHEN s.inserted_at >= timestamptz '9999-12-01 00:00:00+00' THEN timestamptz '9999-01-01 00:00:00+00'
                       ELSE s.inserted_at + interval '1 microsecond' END)
