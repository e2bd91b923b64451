-- Fences that PostgreSQL 13 or later enforces. README.md explains the three forms.
--
--   psql -f postgresql.sql DATABASE                             installs the gate and the function below
--   psql -c "SELECT dlock_fence_table('invoice')" DATABASE      the triggers, for each table that needs them
--
-- The file can run again: it changes nothing that is installed.

BEGIN;

-- The gate: one row for each lock, with the greatest fence that has passed. Each transaction begins with
--   INSERT INTO dlock_gate (name, fence) VALUES ('invoice:42', 1795179170661711)
--       ON CONFLICT (name) DO UPDATE SET fence = excluded.fence
CREATE TABLE IF NOT EXISTS dlock_gate (
    name text PRIMARY KEY,
    fence bigint NOT NULL CHECK (fence BETWEEN 1 AND 9007199254740991)
);

-- Aborts a transaction that would lower a fence of the gate.
CREATE OR REPLACE FUNCTION dlock_gate_rises() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.fence < OLD.fence THEN
        RAISE EXCEPTION 'dlock: fence % is below %, the fence of a later holder of %', NEW.fence, OLD.fence, OLD.name
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END
$$;
DROP TRIGGER IF EXISTS dlock_gate_rises ON dlock_gate;
CREATE TRIGGER dlock_gate_rises BEFORE UPDATE ON dlock_gate FOR EACH ROW EXECUTE FUNCTION dlock_gate_rises();

-- The triggers: a transaction writes to their tables only after
--   SELECT set_config('dlock.fence', '1795179170661711', true)      -- SET LOCAL, with a parameter
CREATE OR REPLACE FUNCTION dlock_check_fence() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    carried text := current_setting('dlock.fence', true);
    fence bigint;
BEGIN
    -- If an earlier transaction of the session has set `dlock.fence`, the setting is the empty string, not NULL.
    IF carried IS NULL OR carried !~ '^[1-9][0-9]{0,15}$' THEN
        RAISE EXCEPTION 'dlock: the transaction carries no fence: %', coalesce(quote_literal(carried), 'not set')
            USING ERRCODE = 'check_violation', HINT = 'Begin with SELECT set_config(''dlock.fence'', :fence, true).';
    END IF;
    fence := carried;
    IF fence > 9007199254740991 THEN
        RAISE EXCEPTION 'dlock: % is no fence: fences are below 2^53', fence USING ERRCODE = 'check_violation';
    END IF;
    IF TG_OP <> 'INSERT' AND fence < OLD.fence THEN
        RAISE EXCEPTION 'dlock: fence % is below %, which a later holder has written to a row of %',
            fence, OLD.fence, TG_TABLE_NAME USING ERRCODE = 'check_violation';
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    NEW.fence := fence;
    RETURN NEW;
END
$$;

-- TRUNCATE fires no row triggers, so a statement trigger refuses it.
CREATE OR REPLACE FUNCTION dlock_refuse_truncate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'dlock: TRUNCATE checks no fence of %: use DELETE', TG_TABLE_NAME USING ERRCODE = 'check_violation';
END
$$;

-- Adds the column and the triggers to a table: SELECT dlock_fence_table('billing.invoice').
CREATE OR REPLACE FUNCTION dlock_fence_table(fenced regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('ALTER TABLE %s ADD COLUMN IF NOT EXISTS fence bigint NOT NULL DEFAULT 0', fenced);
    EXECUTE format('DROP TRIGGER IF EXISTS dlock_check_fence ON %s', fenced);
    EXECUTE format('CREATE TRIGGER dlock_check_fence BEFORE INSERT OR UPDATE OR DELETE ON %s '
        'FOR EACH ROW EXECUTE FUNCTION dlock_check_fence()', fenced);
    EXECUTE format('DROP TRIGGER IF EXISTS dlock_refuse_truncate ON %s', fenced);
    EXECUTE format('CREATE TRIGGER dlock_refuse_truncate BEFORE TRUNCATE ON %s '
        'FOR EACH STATEMENT EXECUTE FUNCTION dlock_refuse_truncate()', fenced);
END
$$;

COMMIT;
