-- set_read_committed · rules 10, 19
-- First statement of a transaction of our own over a Django connection: the database's
-- default may be another level, and under REPEATABLE READ a delivery misses its awaiter.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
