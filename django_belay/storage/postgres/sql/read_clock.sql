-- read_clock · rule 18
-- The one statement that reads the server's clock: a node compares its own with it.
SELECT clock_timestamp()
