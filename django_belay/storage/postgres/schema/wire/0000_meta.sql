-- The migrations' own table, made before the first of them (contract §3).
CREATE TABLE IF NOT EXISTS belay_meta (version int NOT NULL);
