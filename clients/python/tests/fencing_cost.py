"""Prints what each form of contrib/fencing (column, triggers, gate) costs: the time of a transaction with one
UPDATE, in multiples of the same transaction without a fence."""

from __future__ import annotations

import contextlib
import random
import statistics
import time

from databases import MariaDB, PostgreSQL, SQLite

from dlock import fencing

TRANSACTIONS = 2000
FENCE = 1795179170661711


def none(cursor):
    cursor.execute("UPDATE account SET total = total + 1 WHERE id = 1")


def column(cursor):
    cursor.execute(f"UPDATE account SET total = total + 1, fence = {FENCE} WHERE id = 1 AND fence <= {FENCE}")


def triggers(cursor):
    with fencing.carry(cursor, FENCE):
        cursor.execute("UPDATE fenced_account SET total = total + 1 WHERE id = 1")


def gate(cursor):
    fencing.pass_gate(cursor, "account:1", FENCE)
    none(cursor)


FORMS = none, column, triggers, gate


def seconds(connection, form):
    """Returns the seconds that one transaction takes."""
    cursor = connection.cursor()
    began = time.perf_counter()
    cursor.execute("BEGIN IMMEDIATE" if type(connection).__module__ == "sqlite3" else "BEGIN")
    form(cursor)
    cursor.execute("COMMIT")
    return time.perf_counter() - began


def ratios(database):
    """Returns the median time of each form, divided by the median without a fence. The forms take turns, each
    time in another order."""
    database.execute(
        "CREATE TABLE account (id INTEGER PRIMARY KEY, total INTEGER NOT NULL, fence BIGINT NOT NULL)",
        "CREATE TABLE fenced_account (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)",
        "INSERT INTO account VALUES (1, 0, 0)",
        "INSERT INTO fenced_account VALUES (1, 0)",
    )
    database.install("fenced_account")
    times = {form: [] for form in FORMS}
    with contextlib.closing(database.connect()) as connection:
        if database.name == "postgresql":
            connection.autocommit = True
        for _ in range(TRANSACTIONS):
            for form in random.sample(FORMS, len(FORMS)):
                times[form].append(seconds(connection, form))
    without_fence = statistics.median(times[none])
    return {form.__name__: statistics.median(times[form]) / without_fence for form in FORMS}


def main():
    databases = [
        ("PostgreSQL", PostgreSQL, []),
        ("PostgreSQL, synchronous_commit = off", PostgreSQL, ["-c", "synchronous_commit=off"]),
        ("MariaDB", MariaDB, []),
        ("MariaDB, innodb_flush_log_at_trx_commit = 0", MariaDB, ["--innodb-flush-log-at-trx-commit=0"]),
        ("SQLite, WAL", SQLite, []),
    ]
    print("| store | column | triggers | gate |\n|---|---|---|---|")
    for name, kind, options in databases:
        database = kind(*options)
        try:
            if kind is SQLite:
                database.use_write_ahead_log()
            found = ratios(database)
            print(
                f"| {name} | " + " | ".join(f"{found[form.__name__]:.2f}" for form in FORMS[1:]) + " |",
                flush=True,
            )
        finally:
            database.stop()


if __name__ == "__main__":
    main()
