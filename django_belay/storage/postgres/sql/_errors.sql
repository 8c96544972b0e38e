-- errors with the new entry appended, bounded as contract.error_entry.with_entry says (rule 25).
CASE
           WHEN c.error IS NULL THEN j.errors
           WHEN jsonb_typeof(j.errors) <> 'array' THEN jsonb_build_array(j.errors, c.error::jsonb)
           WHEN jsonb_array_length(j.errors) < 50 THEN j.errors || jsonb_build_array(c.error::jsonb)
           WHEN jsonb_typeof(j.errors #> '{1,omitted}') = 'number' THEN
             jsonb_set(j.errors - 2, '{1,omitted}', to_jsonb((j.errors #>> '{1,omitted}')::numeric + 1))
               || jsonb_build_array(c.error::jsonb)
           ELSE jsonb_set(j.errors - 2, '{1}', '{"omitted": 2}') || jsonb_build_array(c.error::jsonb)
         END
