-- Fences that SQLite enforces. README.md explains the three forms.
--
--   sqlite3 -bail shop.db <sqlite.sql                                          installs all that is below
--   sed 's/TABLE_NAME/invoice/g' sqlite-triggers.sql | sqlite3 -bail shop.db   the triggers, for each table that needs them
--
-- The file can run again: it changes nothing that is installed.

-- The gate: one row for each lock, with the greatest fence that has passed. Each transaction begins with
--   BEGIN IMMEDIATE;
--   INSERT INTO dlock_gate (name, fence) VALUES ('invoice:42', 1795179170661711)
--       ON CONFLICT (name) DO UPDATE SET fence = excluded.fence
CREATE TABLE IF NOT EXISTS dlock_gate (
    name TEXT PRIMARY KEY NOT NULL CHECK (typeof(name) = 'text'),
    fence INTEGER NOT NULL CHECK (typeof(fence) = 'integer' AND fence BETWEEN 1 AND 9007199254740991)
);

CREATE TRIGGER IF NOT EXISTS dlock_gate_rises BEFORE UPDATE ON dlock_gate WHEN NEW.fence < OLD.fence
BEGIN
    SELECT RAISE(ABORT, 'dlock: the fence is below that of a later holder');
END;

-- The fence of the transaction that is writing, for the triggers: at most one row, which no other transaction sees.
--   BEGIN IMMEDIATE;
--   INSERT OR REPLACE INTO dlock_carried (id, fence) VALUES (1, 1795179170661711);
--   ...
--   DELETE FROM dlock_carried;
--   COMMIT
CREATE TABLE IF NOT EXISTS dlock_carried (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    fence INTEGER NOT NULL CHECK (typeof(fence) = 'integer' AND fence BETWEEN 1 AND 9007199254740991)
);

-- An INSERT into this view fails unless the transaction carries a fence that is at least `least_fence`. The triggers of a
-- table insert into this view to check the fence.
CREATE VIEW IF NOT EXISTS dlock_check AS SELECT 0 AS least_fence;
CREATE TRIGGER IF NOT EXISTS dlock_check_fence INSTEAD OF INSERT ON dlock_check
BEGIN
    SELECT RAISE(ABORT, 'dlock: the transaction carries no fence') WHERE NOT EXISTS (SELECT 1 FROM dlock_carried);
    SELECT RAISE(ABORT, 'dlock: the fence is below that of a later holder')
        WHERE NEW.least_fence > (SELECT fence FROM dlock_carried);
END;
