-- Wire migration 3 (contract §1): the contract's major stands apart from the migration's version.
ALTER TABLE belay_meta ADD COLUMN IF NOT EXISTS contract_major int NOT NULL DEFAULT 1;

INSERT INTO belay_meta (version, contract_major) SELECT 3, 1
 WHERE NOT EXISTS (SELECT FROM belay_meta WHERE version = 3);
