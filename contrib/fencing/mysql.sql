-- Fences that MariaDB 10.6 or MySQL 8.0.29 or later enforces. README.md explains the three forms.
--
--   mariadb DATABASE <mysql.sql                                         installs the gate and the function below
--   sed 's/TABLE_NAME/invoice/g' mysql-triggers.sql | mariadb DATABASE  the triggers, for each table that needs them
--
-- The file can run again: it changes nothing that is installed. With the binary log on, MySQL asks for the privilege
-- SUPER, or for log_bin_trust_function_creators = 1.

-- The gate: one row for each lock, with the greatest fence that has passed. Each transaction begins with
--   INSERT INTO dlock_gate (name, fence) VALUES ('invoice:42', 1795179170661711)
--       ON DUPLICATE KEY UPDATE fence = VALUES(fence)
CREATE TABLE IF NOT EXISTS dlock_gate (
    name VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY,
    fence BIGINT NOT NULL CHECK (fence BETWEEN 1 AND 9007199254740991)
) ENGINE = InnoDB;

DELIMITER $$

-- Refuses a statement that would lower a fence of the gate. MySQL then undoes the statement, not the transaction: the
-- program must roll back.
CREATE TRIGGER IF NOT EXISTS dlock_gate_rises BEFORE UPDATE ON dlock_gate FOR EACH ROW
BEGIN
    IF NEW.fence < OLD.fence THEN
        SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 4025,
            MESSAGE_TEXT = 'dlock: the fence is below that of a later holder';
    END IF;
END$$

-- Returns the fence that the session carries in @dlock_fence. Refuses the statement if there is none, or if it is below
-- `least_fence`. A transaction writes to the tables with triggers only after
--   SET @dlock_fence = 1795179170661711
-- Neither COMMIT nor ROLLBACK resets the variable.
CREATE FUNCTION IF NOT EXISTS dlock_carried_fence(least_fence BIGINT) RETURNS BIGINT NOT DETERMINISTIC NO SQL
BEGIN
    IF @dlock_fence IS NULL OR CAST(@dlock_fence AS CHAR) NOT REGEXP '^[1-9][0-9]{0,15}$'
        OR CAST(@dlock_fence AS UNSIGNED) > 9007199254740991 THEN
        SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 4025, MESSAGE_TEXT = 'dlock: the session carries no fence';
    END IF;
    IF CAST(@dlock_fence AS UNSIGNED) < least_fence THEN
        SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 4025,
            MESSAGE_TEXT = 'dlock: the fence is below that of a later holder';
    END IF;
    RETURN CAST(@dlock_fence AS UNSIGNED);
END$$

DELIMITER ;
