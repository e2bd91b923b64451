"""The rules of each form in contrib/fencing/README.md (column, triggers, gate), on PostgreSQL, MariaDB and
SQLite. With the triggers, a transaction carries a fence: it first sets the fence for all its statements."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import threading

import psycopg
import pymysql
import pytest
from conftest import until
from databases import MariaDB, PostgreSQL, SQLite, require_databases

from dlock import fencing

# PyMySQL raises OperationalError for error 4025: a violated CHECK, or a refusal of the gate or of a trigger.
REFUSED = psycopg.IntegrityError, pymysql.IntegrityError, pymysql.OperationalError, sqlite3.IntegrityError
GREATEST = 2**53 - 1


@pytest.fixture(scope="session", params=[PostgreSQL, MariaDB, SQLite], ids=lambda kind: kind.name)
def shared_database(request):
    if request.param is not SQLite:
        require_databases()
    database = request.param()
    try:
        database.execute("CREATE TABLE invoice (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")
        database.install("invoice")
        yield database
    finally:
        database.stop()


@pytest.fixture
def database(shared_database):
    """A database whose table has the invoice 42, written with the fence 10."""
    with contextlib.closing(shared_database.connect()) as connection:
        cursor = connection.cursor()
        cursor.execute("DELETE FROM dlock_gate")
        connection.commit()
        write(connection, GREATEST, "DELETE FROM invoice")
        write(connection, 10, "INSERT INTO invoice (id, total) VALUES (42, 0)")
    return shared_database


@pytest.fixture
def connection(database):
    with contextlib.closing(database.connect()) as connection:
        yield connection


def begin(connection):
    """Begins a transaction in SQLite. The drivers of the other databases begin one themselves."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("BEGIN IMMEDIATE")


def rows(connection, query):
    cursor = connection.cursor()
    cursor.execute(query)
    return [tuple(row) for row in cursor.fetchall()]


def write(connection, fence, *statements):
    """Runs statements in a transaction that carries a fence. With `fence` "", it carries none."""
    cursor = connection.cursor()
    begin(connection)
    try:
        with fencing.carry(cursor, fence) if fence != "" else contextlib.nullcontext():
            for statement in statements:
                cursor.execute(statement)
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


UPDATE = "UPDATE invoice SET total = total + 1 WHERE id = 42"
INSERT = "INSERT INTO invoice (id, total) VALUES (43, 0)"
DELETE = "DELETE FROM invoice WHERE id = 42"


@pytest.mark.parametrize("statement", [UPDATE, DELETE])
def test_triggers_refuse_a_lower_fence_and_accept_an_equal_or_greater_one(connection, statement):
    with pytest.raises(REFUSED, match="dlock: "):
        write(connection, 9, statement)
    assert rows(connection, "SELECT id, total, fence FROM invoice") == [(42, 0, 10)]
    connection.rollback()
    for fence in 10, 11:
        write(connection, fence, statement)
    if statement is UPDATE:
        assert rows(connection, "SELECT id, total, fence FROM invoice") == [(42, 2, 11)]
        connection.rollback()
        with pytest.raises(REFUSED, match="dlock: "):
            write(connection, 10, statement)
    else:
        assert rows(connection, "SELECT count(*) FROM invoice") == [(0,)]


def test_triggers_store_the_fence_that_the_transaction_carries(connection):
    write(connection, 12, INSERT, "UPDATE invoice SET fence = 3 WHERE id = 42")
    write(connection, 13, "INSERT INTO invoice (id, total, fence) VALUES (44, 0, 5)")
    assert rows(connection, "SELECT id, fence FROM invoice ORDER BY id") == [(42, 12), (43, 12), (44, 13)]


@pytest.mark.parametrize("statement", [UPDATE, INSERT, DELETE])
@pytest.mark.parametrize("fence", ["", None, 0, -11, 11.5, "x", "11x", " ", 2**53, 2**63, 10**30])
def test_triggers_refuse_a_value_that_is_not_a_fence(connection, statement, fence):
    # In SQLite, the CHECK of dlock_carried refuses some of these values, before the triggers do.
    with pytest.raises(REFUSED, match=r"dlock: |CHECK constraint failed"):
        write(connection, fence, statement)
    assert rows(connection, "SELECT id, total, fence FROM invoice") == [(42, 0, 10)]


def test_triggers_accept_the_greatest_fence(connection):
    write(connection, GREATEST, UPDATE)
    assert rows(connection, "SELECT total, fence FROM invoice") == [(1, GREATEST)]


def test_a_fence_ends_with_its_transaction(connection):
    write(connection, 11, UPDATE)
    with pytest.raises(REFUSED, match="carries no fence"):
        write(connection, "", UPDATE)
    with pytest.raises(REFUSED, match=r"dlock: .* is below"):
        write(connection, 10, UPDATE)
    with pytest.raises(REFUSED, match="carries no fence"):
        write(connection, "", UPDATE)


def test_carry_needs_a_transaction_in_sqlite(database):
    """`carry` stores the fence in a table. Outside of a transaction, the fence would be committed, and the
    writes of all programs would carry it."""
    if not isinstance(database, SQLite):
        pytest.skip("for SQLite")
    with contextlib.closing(database.connect()) as connection:
        with pytest.raises(RuntimeError, match="needs a transaction"), fencing.carry(connection.cursor(), 11):
            pass
        with pytest.raises(REFUSED, match="carries no fence"):
            write(connection, "", UPDATE)


def test_a_failed_save_of_a_django_model_leaves_no_fence_to_the_next_transaction(database):
    pytest.importorskip("django")
    engines = {
        PostgreSQL: {"ENGINE": "postgresql", "NAME": "postgres"},
        MariaDB: {"ENGINE": "mysql", "NAME": "shop"},
        SQLite: {"ENGINE": "sqlite3", "NAME": str(database.folder / "shop.db")},
    }
    settings = {"HOST": "127.0.0.1", "PORT": getattr(database, "port", 0), "USER": "root"}
    settings |= engines[type(database)]
    settings["ENGINE"] = f"django.db.backends.{settings['ENGINE']}"
    program = f"""
import django, pymysql
from django.conf import settings
pymysql.version_info = 2, 2, 7, "final", 0  # the version of mysqlclient that Django asks for
pymysql.install_as_MySQLdb()
settings.configure(DATABASES={{"default": {settings!r}}})
django.setup()
from django.db import Error, connection, models, transaction
from dlock import fencing
class Invoice(models.Model):
    total = models.IntegerField()
    class Meta:
        app_label, db_table = "shop", "invoice"
def write(fence):
    with transaction.atomic(), connection.cursor() as cursor, fencing.carry(cursor, fence):
        Invoice(pk=42, total=fence).save()
def write_without_a_fence():
    Invoice(pk=42, total=0).save()
write(11)
for attempt in (lambda: write(10)), write_without_a_fence:
    try:
        attempt()
        print("written")
    except Error as error:
        print(str(error).splitlines()[0])
print(Invoice.objects.get().total)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    refused, unfenced, total = done.stdout.splitlines()
    assert "is below" in refused
    assert "carries no fence" in unfenced
    assert total == "11"


def test_a_rollback_to_a_savepoint_also_rolls_back_the_gate(connection):
    cursor = connection.cursor()
    begin(connection)
    cursor.execute("SAVEPOINT claim")
    fencing.pass_gate(cursor, "invoice:42", 11)
    cursor.execute("ROLLBACK TO SAVEPOINT claim")
    connection.commit()
    pass_gate(connection, 10)


def test_triggers_accept_any_fence_for_a_row_whose_fence_is_null(database, connection):
    cursor = connection.cursor()
    cursor.execute("DROP TABLE IF EXISTS old")
    cursor.execute("CREATE TABLE old (id INTEGER PRIMARY KEY, fence BIGINT)")
    cursor.execute("INSERT INTO old (id) VALUES (1)")
    connection.commit()
    database.install("old", has_column=True)
    write(connection, 7, "UPDATE old SET id = 2")
    with pytest.raises(REFUSED, match="dlock: "):
        write(connection, 6, "UPDATE old SET fence = NULL")
    assert rows(connection, "SELECT id, fence FROM old") == [(2, 7)]


def test_triggers_work_on_tables_of_any_name(database, connection):
    quote = "`" if isinstance(database, MariaDB) else '"'
    for name in "order", "two words":
        table = f"{quote}{name}{quote}"
        connection.cursor().execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY)")
        connection.commit()
        # The triggers of MariaDB and SQLite already have quotes around the name.
        database.install(table if isinstance(database, PostgreSQL) else name)
        with pytest.raises(REFUSED, match="carries no fence"):
            write(connection, "", f"INSERT INTO {table} (id) VALUES (1)")


def test_a_row_keeps_its_fence_when_its_key_is_changed_and_leaves_none_for_the_old_key(connection):
    move = "UPDATE invoice SET id = 43 WHERE id = 42"
    with pytest.raises(REFUSED, match="dlock: "):
        write(connection, 9, move)
    write(connection, 12, move)
    # README.md: the old key counts as deleted.
    write(connection, 9, "INSERT INTO invoice (id, total) VALUES (42, 7)")
    with pytest.raises(REFUSED, match="dlock: "):
        write(connection, 9, "UPDATE invoice SET total = 1 WHERE id = 43")


@pytest.mark.parametrize("fence", [9, ""])
def test_triggers_refuse_a_statement_that_ignores_errors(database, connection, fence):
    if isinstance(database, PostgreSQL):
        pytest.skip("no statement of PostgreSQL ignores errors")
    ignores = {
        MariaDB: ["UPDATE IGNORE invoice SET total = 7", "DELETE IGNORE FROM invoice"],
        SQLite: ["UPDATE OR IGNORE invoice SET total = 7", "UPDATE OR FAIL invoice SET total = 7"],
    }
    for statement in ignores[type(database)]:
        with pytest.raises(REFUSED, match="dlock: "):
            write(connection, fence, statement)
    assert rows(connection, "SELECT total, fence FROM invoice") == [(0, 10)]


def test_an_insert_is_not_compared_with_the_fence_of_a_deleted_row(connection):
    """The limit that README.md states: after DELETE, an overtaken holder may insert the row again."""
    write(connection, 12, DELETE)
    write(connection, 9, "INSERT INTO invoice (id, total) VALUES (42, 7)")
    assert rows(connection, "SELECT total, fence FROM invoice") == [(7, 9)]


def test_triggers_accept_an_insert_with_a_lower_fence_than_other_rows(connection):
    """The limit that README.md states: an overtaken holder may insert a new row."""
    write(connection, 9, INSERT)
    assert rows(connection, "SELECT id, fence FROM invoice ORDER BY id") == [(42, 10), (43, 9)]


def test_rows_of_two_locks_need_the_fence_of_each(connection):
    """The holder has the fence 11 of the lock for row 42, and the fence 9 of the lock for row 43."""
    write(connection, 8, INSERT)
    both = UPDATE, "UPDATE invoice SET total = 1 WHERE id = 43"
    with pytest.raises(REFUSED, match="dlock: "):
        write(connection, 9, *both)
    cursor = connection.cursor()
    begin(connection)
    for fence, statement in zip((11, 9), both):
        with fencing.carry(cursor, fence):
            cursor.execute(statement)
    connection.commit()
    assert rows(connection, "SELECT id, total, fence FROM invoice ORDER BY id") == [(42, 1, 11), (43, 1, 9)]


def test_a_replaced_row_is_checked_except_in_sqlite_by_default(database, connection):
    if isinstance(database, PostgreSQL):
        replace = "INSERT INTO invoice (id, total) VALUES (42, 7) ON CONFLICT (id) DO UPDATE SET total = 7"
    else:
        replace = "REPLACE INTO invoice (id, total) VALUES (42, 7)"
    if isinstance(database, SQLite):
        write(connection, 9, replace)  # README.md: SQLite hides the replaced row from triggers by default
        assert rows(connection, "SELECT total, fence FROM invoice") == [(7, 9)]
        write(connection, 10, replace)
        connection.execute("PRAGMA recursive_triggers = ON")
        write(connection, 3, INSERT)
        # With the new key 42, row 43 (fence 3) would replace row 42 (fence 10).
        with pytest.raises(REFUSED, match="dlock: "):
            write(connection, 9, "UPDATE OR REPLACE invoice SET id = 42 WHERE id = 43")
        write(connection, 10, "DELETE FROM invoice WHERE id = 43")
    with pytest.raises(REFUSED, match="dlock: "):
        write(connection, 9, replace)
    write(connection, 11, replace)
    assert rows(connection, "SELECT total, fence FROM invoice") == [(7, 11)]


def test_triggers_refuse_truncate_in_postgresql_and_miss_it_in_mariadb(database, connection):
    if isinstance(database, PostgreSQL):
        with pytest.raises(REFUSED, match="TRUNCATE checks no fence"):
            write(connection, 11, "TRUNCATE invoice")
    elif isinstance(database, MariaDB):
        write(connection, "", "TRUNCATE invoice")  # README.md advises to revoke the privilege DROP
        assert rows(connection, "SELECT count(*) FROM invoice") == [(0,)]
    else:
        pytest.skip("SQLite has no TRUNCATE")


def test_triggers_of_postgresql_apply_to_partitions_but_not_to_child_tables(database, connection):
    if not isinstance(database, PostgreSQL):
        pytest.skip("for PostgreSQL")
    connection.execute("CREATE TABLE log (id integer, total integer) PARTITION BY RANGE (id)")
    connection.execute("CREATE TABLE log1 PARTITION OF log FOR VALUES FROM (0) TO (9)")
    connection.execute("CREATE TABLE parent (id integer, total integer)")
    connection.execute("CREATE TABLE child () INHERITS (parent)")
    connection.commit()
    database.install("log", "parent")
    connection.execute("CREATE TABLE log2 PARTITION OF log FOR VALUES FROM (9) TO (99)")
    write(connection, 10, "INSERT INTO log (id) VALUES (1), (10)")
    for statement in "UPDATE log1 SET total = 1", "DELETE FROM log2", "UPDATE log SET id = 11 WHERE id = 1":
        with pytest.raises(REFUSED, match="dlock: "):
            write(connection, 9, statement)
    with pytest.raises(REFUSED, match="TRUNCATE checks no fence"):
        write(connection, 10, "TRUNCATE log")
    # The limits that README.md states.
    write(connection, "", "TRUNCATE log1")
    write(connection, "", "INSERT INTO child (id) VALUES (1)", "UPDATE parent SET total = 1")
    database.install("child")
    with pytest.raises(REFUSED, match="carries no fence"):
        write(connection, "", "UPDATE parent SET total = 1")
    connection.execute("DROP TABLE log, child, parent")
    connection.commit()


def test_a_cascade_is_checked_except_in_mariadb(database, connection):
    cursor = connection.cursor()
    cursor.execute("DROP TABLE IF EXISTS line")
    cursor.execute("DROP TABLE IF EXISTS parent")
    cursor.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
    cursor.execute(
        "CREATE TABLE line (id INTEGER PRIMARY KEY, parent INTEGER NOT NULL,"
        " FOREIGN KEY (parent) REFERENCES parent (id) ON DELETE CASCADE)"
    )
    connection.commit()
    if isinstance(database, SQLite):
        connection.execute("PRAGMA foreign_keys = ON")
    database.install("line")
    write(connection, 10, "INSERT INTO parent VALUES (1)", "INSERT INTO line (id, parent) VALUES (1, 1)")
    if isinstance(database, MariaDB):
        write(connection, 9, "DELETE FROM parent")
        assert rows(connection, "SELECT count(*) FROM line") == [(0,)]
    else:
        with pytest.raises(REFUSED, match="dlock: "):
            write(connection, 9, "DELETE FROM parent")
        write(connection, 10, "DELETE FROM parent")


def pass_gate(connection, fence, name="invoice:42"):
    begin(connection)
    try:
        fencing.pass_gate(connection.cursor(), name, fence)
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


def test_the_gate_rises_and_never_falls(connection):
    for fence in 5, 5, 7, GREATEST:
        pass_gate(connection, fence)
    for fence in GREATEST - 1, 1:
        with pytest.raises(REFUSED, match="dlock: "):
            pass_gate(connection, fence)
    pass_gate(connection, 6, "invoice:43")
    pass_gate(connection, 7, "Invoice:42")  # another gate, as names are case-sensitive
    with pytest.raises(REFUSED, match="dlock: "):
        pass_gate(connection, 5, b"invoice:43")
    gates = rows(connection, "SELECT name, fence FROM dlock_gate ORDER BY fence")
    assert [fence for _, fence in gates] == [6, 7, GREATEST]


@pytest.mark.parametrize("fence", [None, 0, -1, "x", "11x", 2**53])
def test_the_gate_refuses_a_value_that_is_not_a_fence(database, connection, fence):
    pass_gate(connection, 5)
    # A driver or a server may refuse a text that is not a number, before the gate does.
    errors = (*REFUSED, psycopg.DataError, pymysql.DataError)
    with pytest.raises(errors):
        pass_gate(connection, fence)
    with pytest.raises(errors):
        pass_gate(connection, fence, "new")
    assert [fence for _, fence in rows(connection, "SELECT name, fence FROM dlock_gate")] == [5]


def test_the_gate_does_not_depend_on_the_character_set_of_the_connection(database):
    if not isinstance(database, MariaDB):
        pytest.skip("for MariaDB")
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        for character_set, fence in ("utf8mb4", 5), ("latin1", 6):
            connection.set_character_set(character_set)
            fencing.pass_gate(cursor, "stra\N{LATIN SMALL LETTER SHARP S}e", fence)
        assert [fence for _, fence in rows(connection, "SELECT name, fence FROM dlock_gate")] == [6]


def test_a_role_needs_three_rights_at_the_gate_and_none_for_the_triggers(database):
    if isinstance(database, SQLite):
        pytest.skip("SQLite has no roles")
    role = "worker" if isinstance(database, PostgreSQL) else "worker@localhost"
    login = " LOGIN" if isinstance(database, PostgreSQL) else ""
    database.execute(
        f"CREATE {'ROLE' if login else 'USER'} {role}{login}",
        f"GRANT SELECT, INSERT, UPDATE ON dlock_gate TO {role}",
        f"GRANT SELECT, UPDATE ON invoice TO {role}",
    )
    with contextlib.closing(database.connect(user="worker")) as connection:
        for fence in 11, 12:
            pass_gate(connection, fence)
        write(connection, 12, UPDATE)
        with pytest.raises(REFUSED, match="dlock: "):
            pass_gate(connection, 11)
        with pytest.raises(REFUSED, match="dlock: "):
            write(connection, 11, UPDATE)
        with pytest.raises((psycopg.ProgrammingError, pymysql.OperationalError), match="denied"):
            rows(connection, "DELETE FROM dlock_gate")


def test_fencing_accepts_only_cursors_of_known_libraries_and_none_of_asyncio(database, connection):
    class Cursor(type(connection.cursor())):
        """A subclass of a known cursor is accepted."""

    cursor = Cursor(connection)
    begin(connection)
    fencing.pass_gate(cursor, "invoice:42", 5)
    connection.rollback()
    with pytest.raises(TypeError, match=r"does not know the cursor test_fencing_rules\..*Unknown"):
        fencing.pass_gate(type("Unknown", (), {})(), "invoice:42", 5)
    asynchronous = psycopg.AsyncCursor.__new__(psycopg.AsyncCursor)
    for call in (
        lambda: fencing.pass_gate(asynchronous, "invoice:42", 5),
        lambda: fencing.carry(asynchronous, 5).__enter__(),
    ):
        with pytest.raises(TypeError, match="await the statement"):
            call()


def test_the_gate_makes_the_next_holder_wait_for_an_open_transaction(database, connection):
    """The open transaction locks the row of the gate, although the fence in the row, 5, does not change."""
    if isinstance(database, SQLite):
        pytest.skip("in SQLite, the next holder waits at BEGIN IMMEDIATE, before the gate")
    pass_gate(connection, 5)
    fencing.pass_gate(connection.cursor(), "invoice:42", 5)
    with contextlib.closing(database.connect()) as second, contextlib.closing(database.connect()) as observer:
        session = database.session(second)
        thread = threading.Thread(target=pass_gate, args=(second, 6))
        thread.start()
        until("the next holder waits", lambda: database.waits(observer, session))
        connection.rollback()
        thread.join()
    with pytest.raises(REFUSED):
        pass_gate(connection, 5)


def test_the_column_form_updates_no_row_for_an_overtaken_holder(database, connection):
    cursor = connection.cursor()
    cursor.execute("DROP TABLE IF EXISTS draft")
    cursor.execute("CREATE TABLE draft (id INTEGER PRIMARY KEY, fence BIGINT NOT NULL)")
    cursor.execute("INSERT INTO draft VALUES (42, 10)")
    connection.commit()
    counts = []
    for fence in 10, 9, 11, 10:
        cursor.execute(f"UPDATE draft SET fence = {fence} WHERE id = 42 AND fence <= {fence}")
        connection.commit()
        counts.append(cursor.rowcount)
    assert counts == [1, 0, 1, 0]


def test_a_fence_stays_in_its_transaction_behind_pgbouncer(database):
    if not isinstance(database, PostgreSQL):
        pytest.skip("PgBouncer is for PostgreSQL")
    with (
        database.pooled() as port,
        contextlib.closing(database.connect(port=port)) as first,
        contextlib.closing(database.connect(port=port)) as second,
    ):
        # Both clients use the same connection to the server, one transaction after the other.
        sessions = []
        for client in first, second:
            sessions += rows(client, "SELECT pg_backend_pid()")
            client.commit()
        assert sessions[0] == sessions[1]
        write(first, 11, UPDATE)
        with pytest.raises(REFUSED, match="carries no fence"):
            write(second, "", UPDATE)
        with pytest.raises(REFUSED, match="fence 10 is below 11"):
            write(second, 10, UPDATE)
        pass_gate(first, 11)
        with pytest.raises(REFUSED, match="fence 10 is below 11"):
            pass_gate(second, 10)


def test_a_second_install_does_not_replace_the_trigger_of_the_gate(database):
    """A replaced trigger would be missing for a moment, in which a lower fence could pass the gate."""
    if not isinstance(database, MariaDB):
        pytest.skip("PostgreSQL replaces the trigger in one transaction, and SQLite keeps it")
    query = "SELECT created FROM information_schema.triggers WHERE trigger_name = 'dlock_gate_rises'"
    with contextlib.closing(database.connect()) as connection:
        [before] = rows(connection, query)
        database.install()
        assert rows(connection, query) == [before]


def test_install_can_run_again(database):
    database.install()
    with contextlib.closing(database.connect()) as connection, pytest.raises(REFUSED):
        write(connection, 9, UPDATE)
