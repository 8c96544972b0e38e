-- The NOTIFY channel of this database (§9.2, rule 11).
left('belay_' || regexp_replace(current_database(), '[^A-Za-z0-9_]', '_', 'g'), 63)
