-- The triggers of one table, for SQLite. They need sqlite.sql. Write the table's name, without quotes, for TABLE_NAME:
--
--   sed 's/TABLE_NAME/invoice/g' sqlite-triggers.sql | sqlite3 -bail shop.db
--
-- The table must have a rowid, and no column of that name.

-- Runs once. Leave it out if the table has the column.
ALTER TABLE "TABLE_NAME" ADD COLUMN fence INTEGER NOT NULL DEFAULT 0;

CREATE TRIGGER "TABLE_NAME_dlock_insert" BEFORE INSERT ON "TABLE_NAME"
BEGIN
    INSERT INTO dlock_check (least_fence) VALUES (0);
END;

CREATE TRIGGER "TABLE_NAME_dlock_update" BEFORE UPDATE ON "TABLE_NAME"
BEGIN
    INSERT INTO dlock_check (least_fence) VALUES (OLD.fence);
END;

CREATE TRIGGER "TABLE_NAME_dlock_delete" BEFORE DELETE ON "TABLE_NAME"
BEGIN
    INSERT INTO dlock_check (least_fence) VALUES (OLD.fence);
END;

-- A trigger of SQLite cannot change the row that is being written. These write the fence afterwards.
CREATE TRIGGER "TABLE_NAME_dlock_inserted" AFTER INSERT ON "TABLE_NAME"
    WHEN NEW.fence IS NOT (SELECT fence FROM dlock_carried)
BEGIN
    UPDATE "TABLE_NAME" SET fence = (SELECT fence FROM dlock_carried) WHERE rowid = NEW.rowid;
END;

CREATE TRIGGER "TABLE_NAME_dlock_updated" AFTER UPDATE ON "TABLE_NAME"
    WHEN NEW.fence IS NOT (SELECT fence FROM dlock_carried)
BEGIN
    UPDATE "TABLE_NAME" SET fence = (SELECT fence FROM dlock_carried) WHERE rowid = NEW.rowid;
END;
