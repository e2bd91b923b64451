-- The triggers of one table of InnoDB, for MariaDB and MySQL. They need mysql.sql. Write the table's name (at most 51
-- characters), without quotes, for TABLE_NAME:
--
--   sed 's/TABLE_NAME/invoice/g' mysql-triggers.sql | mariadb DATABASE

-- Runs once. Leave it out if the table has the column.
ALTER TABLE `TABLE_NAME` ADD COLUMN fence BIGINT NOT NULL DEFAULT 0;

CREATE TRIGGER `TABLE_NAME_dlock_insert` BEFORE INSERT ON `TABLE_NAME` FOR EACH ROW
    SET NEW.fence = dlock_carried_fence(0);

CREATE TRIGGER `TABLE_NAME_dlock_update` BEFORE UPDATE ON `TABLE_NAME` FOR EACH ROW
    SET NEW.fence = dlock_carried_fence(OLD.fence);

-- The assignment changes nothing. "DO dlock_carried_fence(..)" would turn the refusal into a warning.
CREATE TRIGGER `TABLE_NAME_dlock_delete` BEFORE DELETE ON `TABLE_NAME` FOR EACH ROW
    SET @dlock_fence = dlock_carried_fence(OLD.fence);
