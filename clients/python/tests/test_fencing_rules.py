"""What each form of contrib/fencing refuses, on PostgreSQL, MariaDB and SQLite."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading

import psycopg
import pymysql
import pytest
from conftest import until
from databases import UNPACKED, MariaDB, PostgreSQL, SQLite

from dlock import fencing

# PyMySQL has an OperationalError for a violated CHECK too.
REFUSED = psycopg.IntegrityError, pymysql.IntegrityError, pymysql.OperationalError, sqlite3.IntegrityError
GREATEST = 2**53 - 1


@pytest.fixture(scope="session", params=[PostgreSQL, MariaDB, SQLite], ids=lambda kind: kind.name)
def shared_database(request):
    if request.param is not SQLite and not UNPACKED.exists():
        missing = pytest.fail if os.environ.get("CI") else pytest.skip
        missing("run scripts/fetch-databases.sh")
    database = request.param()
    database.execute("CREATE TABLE invoice (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")
    database.install("invoice")
    yield database
    database.stop()


@pytest.fixture
def database(shared_database):
    """A database whose table has the invoice 42, written with the fence 10."""
    with contextlib.closing(shared_database.connect()) as connection:
        cursor = connection.cursor()
        begin(connection)
        fencing.carry(cursor, GREATEST)
        cursor.execute("DELETE FROM invoice")
        cursor.execute("DELETE FROM dlock_gate")
        fencing.carry(cursor, 10)
        cursor.execute("INSERT INTO invoice (id, total) VALUES (42, 0)")
        fencing.drop(cursor)
        connection.commit()
    return shared_database


@pytest.fixture
def connection(database):
    with contextlib.closing(database.connect()) as connection:
        yield connection


def begin(connection):
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
        if fence != "":
            fencing.carry(cursor, fence)
        for statement in statements:
            cursor.execute(statement)
        fencing.drop(cursor)
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
def test_triggers_refuse_what_is_no_fence(connection, statement, fence):
    with pytest.raises(REFUSED):
        write(connection, fence, statement)
    assert rows(connection, "SELECT id, total, fence FROM invoice") == [(42, 0, 10)]


def test_triggers_accept_the_greatest_fence(connection):
    write(connection, GREATEST, UPDATE)
    assert rows(connection, "SELECT total, fence FROM invoice") == [(1, GREATEST)]


def test_a_fence_ends_with_its_transaction(connection):
    write(connection, 11, UPDATE)
    with pytest.raises(REFUSED, match="carries no fence"):
        write(connection, "", UPDATE)


def test_a_deleted_row_leaves_no_fence_to_an_insert(connection):
    """The limit that README.md states: after DELETE, an overtaken holder may insert the row again."""
    write(connection, 12, DELETE)
    write(connection, 9, "INSERT INTO invoice (id, total) VALUES (42, 7)")
    assert rows(connection, "SELECT total, fence FROM invoice") == [(7, 9)]


def test_a_replaced_row_is_checked(database, connection):
    if isinstance(database, PostgreSQL):
        replace = "INSERT INTO invoice (id, total) VALUES (42, 7) ON CONFLICT (id) DO UPDATE SET total = 7"
    else:
        replace = "REPLACE INTO invoice (id, total) VALUES (42, 7)"
    if isinstance(database, SQLite):
        connection.execute("PRAGMA recursive_triggers = ON")
    with pytest.raises(REFUSED, match="dlock: "):
        write(connection, 9, replace)
    write(connection, 11, replace)
    assert rows(connection, "SELECT total, fence FROM invoice") == [(7, 11)]


def test_triggers_refuse_truncate_or_cannot_see_it(database, connection):
    if isinstance(database, PostgreSQL):
        with pytest.raises(REFUSED, match="TRUNCATE checks no fence"):
            write(connection, 11, "TRUNCATE invoice")
    elif isinstance(database, MariaDB):
        write(connection, "", "TRUNCATE invoice")  # README.md says so: revoke the privilege DROP
        assert rows(connection, "SELECT count(*) FROM invoice") == [(0,)]


def test_a_cascade_is_checked_except_in_mysql(database, connection):
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


def passed(connection, fence, name="invoice:42"):
    begin(connection)
    try:
        fencing.pass_gate(connection.cursor(), name, fence)
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


def test_the_gate_rises_and_never_falls(connection):
    for fence in 5, 5, 7, GREATEST:
        passed(connection, fence)
    for fence in GREATEST - 1, 1:
        with pytest.raises(REFUSED, match="dlock: "):
            passed(connection, fence)
    passed(connection, 6, "invoice:43")
    passed(connection, 7, "Invoice:42")  # names are exact
    gates = rows(connection, "SELECT name, fence FROM dlock_gate ORDER BY fence")
    assert [fence for _, fence in gates] == [6, 7, GREATEST]


@pytest.mark.parametrize("fence", [None, 0, -1, "x", "11x", 2**53])
def test_the_gate_refuses_what_is_no_fence(database, connection, fence):
    passed(connection, 5)
    # A driver or a server may find that a text is no number, before the gate does.
    errors = (*REFUSED, psycopg.DataError, pymysql.DataError)
    with pytest.raises(errors):
        passed(connection, fence)
    with pytest.raises(errors):
        passed(connection, fence, "new")
    assert [fence for _, fence in rows(connection, "SELECT name, fence FROM dlock_gate")] == [5]


def test_the_gate_lets_the_next_holder_wait_for_an_open_transaction(database, connection):
    """An equal fence, too, locks the row: it belongs to another connection of the same holder."""
    if isinstance(database, SQLite):
        pytest.skip("BEGIN IMMEDIATE waits, before the gate")
    passed(connection, 5)
    fencing.pass_gate(connection.cursor(), "invoice:42", 5)
    with contextlib.closing(database.connect()) as second, contextlib.closing(database.connect()) as observer:
        session = database.session(second)
        thread = threading.Thread(target=passed, args=(second, 6))
        thread.start()
        until("the next holder waits", lambda: database.waits(observer, session))
        connection.rollback()
        thread.join()
    with pytest.raises(REFUSED):
        passed(connection, 5)


def test_the_column_form_counts_no_row_for_an_overtaken_holder(database, connection):
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
        passed(first, 11)
        with pytest.raises(REFUSED, match="fence 10 is below 11"):
            passed(second, 10)


def test_install_can_run_again(database):
    database.install()
    with contextlib.closing(database.connect()) as connection, pytest.raises(REFUSED):
        write(connection, 9, UPDATE)
