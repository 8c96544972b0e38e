-- has_index · rule 14 · catalog
SELECT EXISTS (SELECT FROM pg_catalog.pg_index AS i
                WHERE i.indexrelid = to_regclass(%(name)s::text) AND i.indisvalid)
