"""A process that adds 1 to a total under a lock, step by step. Its first argument has the ports of the lock
servers, and its second one the database, both in JSON. It first prints the id of its database session. Then
it reads one step from each line of its input, and answers each with a line: `ok`, `fence N`, or `refused` and
the error. If a step has to wait for SQLite, a line `waits` comes before its answer.

The process writes with one of the forms of contrib/fencing (column, triggers, gate), or without a fence.
`test_fencing.py` stops this process between two steps, past the end of its lease."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import sqlite3
import sys
import time

import psycopg
import pymysql
import redis
from pymysql.constants import CLIENT

import dlock
from dlock import fencing

LEASE_S = 0.3
ERRORS = psycopg.Error, pymysql.MySQLError, sqlite3.Error


class Overtaken(Exception):
    """An UPDATE of the column form found no row whose fence is low enough."""


class Unfenced:
    """Writes without a fence. Base class of the forms."""

    # How a transaction begins in SQLite. With IMMEDIATE, it has the write lock from the start.
    begin_sqlite = "BEGIN"

    def claim(self, cursor, row, fence):
        """Called before the transaction reads. A form refuses the transaction here if the stored fence is
        greater, and otherwise raises the stored fence."""

    def update(self, cursor, row, total, fence):
        cursor.execute(f"UPDATE account SET total = {total} WHERE id = {row}")

    def end(self):
        """Called before the transaction commits or rolls back."""


class Column(Unfenced):
    begin_sqlite = "BEGIN IMMEDIATE"

    def claim(self, cursor, row, fence):
        cursor.execute(f"UPDATE account SET fence = {fence} WHERE id = {row} AND fence <= {fence}")
        if cursor.rowcount == 0:
            raise Overtaken

    def update(self, cursor, row, total, fence):
        cursor.execute(
            f"UPDATE account SET total = {total}, fence = {fence} WHERE id = {row} AND fence <= {fence}"
        )
        if cursor.rowcount == 0:
            raise Overtaken


class Triggers(Unfenced):
    begin_sqlite = "BEGIN IMMEDIATE"

    def __init__(self):
        # Closed by `end`, which removes the fence that `fencing.carry` has set for the transaction.
        self.carried = contextlib.ExitStack()

    def claim(self, cursor, row, fence):
        self.carried.enter_context(fencing.carry(cursor, fence))
        # This update changes no total: the trigger raises the fence of the row.
        cursor.execute(f"UPDATE fenced_account SET total = total WHERE id = {row}")

    def update(self, cursor, row, total, fence):
        cursor.execute(f"UPDATE fenced_account SET total = {total} WHERE id = {row}")

    def end(self):
        self.carried.close()


class Gate(Unfenced):
    begin_sqlite = "BEGIN IMMEDIATE"

    def claim(self, cursor, row, fence):
        fencing.pass_gate(cursor, f"account:{row}", fence)


FORMS = {"none": Unfenced(), "column": Column(), "triggers": Triggers(), "gate": Gate()}


class Writer:
    def __init__(self, ports, database):
        clients = [redis.Redis(port=port, socket_timeout=10) for port in ports]
        self.locks = {
            "server": lambda name: dlock.Lock(clients[0], name, timeout=LEASE_S),
            "quorum": lambda name: dlock.Redlock(dlock.Quorum(clients), name, timeout=LEASE_S, fenced=True),
        }
        self.kind = database["kind"]
        if self.kind == "postgresql":
            self.connection = psycopg.connect(
                host="127.0.0.1", port=database["port"], user="root", dbname="postgres", autocommit=True
            )
            self.session = self.connection.info.backend_pid
        elif self.kind == "mariadb":
            # FOUND_ROWS: `rowcount` also counts the found rows that an UPDATE leaves as they were.
            self.connection = pymysql.connect(
                host="127.0.0.1", port=database["port"], user="root", database="shop", autocommit=True,
                client_flag=CLIENT.FOUND_ROWS,
            )  # fmt: skip
            self.session = self.connection.thread_id()
        else:
            self.connection = sqlite3.connect(database["path"], timeout=0, isolation_level=None)
            self.session = 0
        self.cursor = self.connection.cursor()

    def begin_round(self, lock, form, row, isolation):
        self.form, self.row, self.isolation = FORMS[form], int(row), isolation
        self.table = "fenced_account" if form == "triggers" else "account"
        self.lock = self.locks[lock](f"account:{row}")
        self.refused = None

    def acquire(self):
        while True:
            try:
                assert self.lock.acquire()
                self.fence = self.lock.fence
                return
            except dlock.LockError:
                # On a busy machine, the lease may end before the grant arrives.
                continue

    def begin(self):
        self.has_read = False
        if self.kind == "postgresql":
            self.cursor.execute(f"BEGIN ISOLATION LEVEL {self.isolation}")
        elif self.kind == "mariadb":
            self.cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {self.isolation}")
            self.cursor.execute("BEGIN")
        else:
            self.cursor.execute(self.form.begin_sqlite)

    def claim(self):
        self.form.claim(self.cursor, self.row, self.fence)

    def read(self):
        self.cursor.execute(f"SELECT total FROM {self.table} WHERE id = {self.row}")
        [(self.total,)] = self.cursor.fetchall()
        self.has_read = True

    def write(self):
        self.form.update(self.cursor, self.row, self.total + 1, self.fence)

    def commit(self):
        self.form.end()
        self.cursor.execute("COMMIT")

    def release(self):
        with contextlib.suppress(dlock.LockError):  # the lease may have ended
            self.lock.release()

    def run(self, step):
        """Runs a step of a transaction. After a refusal, no further step runs until `begin_round`."""
        if self.refused is not None:
            return f"refused {self.refused}"
        has_reported_wait = False
        while True:
            try:
                getattr(self, step)()
                return "ok"
            except (*ERRORS, Overtaken) as error:
                busy = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
                # With `timeout=0`, SQLite reports "locked" instead of waiting, so the step is tried again. A
                # write after a read in one transaction is not tried again: it cannot succeed later. In the
                # default mode, the other writer commits only after this transaction has ended. With the
                # write-ahead log, the other writer replaces the data that this transaction has read.
                if busy and (step != "write" or not self.has_read):
                    if not has_reported_wait:
                        print("waits", flush=True)
                        has_reported_wait = True
                    time.sleep(0.005)
                    continue
                self.refused = f"{type(error).__name__}: {error}".replace("\n", " ")
                self.roll_back()
                return f"refused {self.refused}"

    def roll_back(self):
        with contextlib.suppress(*ERRORS):  # the server may have ended the transaction
            self.form.end()
            self.cursor.execute("ROLLBACK")


def main():
    faulthandler.enable()  # a writer that hangs is ended by SIGABRT
    writer = Writer(json.loads(sys.argv[1]), json.loads(sys.argv[2]))
    print(writer.session, flush=True)
    for line in sys.stdin:
        step, *arguments = line.rstrip("\n").split("\t")
        if step == "begin_round":
            writer.begin_round(*arguments)
            answer = "ok"
        elif step in ("acquire", "release"):
            getattr(writer, step)()
            answer = f"fence {writer.fence}"
        else:
            answer = writer.run(step)
        print(answer, flush=True)


main()
