"""Databases for the tests of fences: PostgreSQL and MariaDB on free ports, and SQLite, each in a folder of
its own. `scripts/fetch-databases.sh` unpacks the servers."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import tempfile

import psycopg
import pymysql
import pytest
from conftest import Port, until
from pymysql.constants import CLIENT

TOP = pathlib.Path(__file__).parents[3]
FENCING = TOP / "contrib/fencing"
UNPACKED = TOP / "build/databases"
# PostgreSQL refuses to run as root. The user "nobody" keeps root's right to read the project's folder.
NOBODY = (
    "setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps +dac_override --ambient-caps +dac_override"
)


def require_databases():
    """Skips the test if the servers are not unpacked. In CI, fails it."""
    if not UNPACKED.exists():
        skip_or_fail = pytest.fail if os.environ.get("CI") else pytest.skip
        skip_or_fail("run scripts/fetch-databases.sh")


class Database:
    """A database and its isolation levels."""

    isolations = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"dlock-{self.name}-"))

    def execute(self, *statements):
        with contextlib.closing(self.connect()) as connection:
            for statement in statements:
                connection.cursor().execute(statement)
            connection.commit()

    def install(self, *tables, has_column=False):
        """Installs the files of contrib/fencing as its README says, with triggers for these tables.
        `has_column`: whether the tables already have a column "fence"."""
        raise NotImplementedError

    def triggers(self, file, table, has_column):
        """Returns the SQL of the triggers of a table, without ALTER TABLE if the column "fence" exists."""
        lines = (FENCING / file).read_text().splitlines()
        return "\n".join(
            line.replace("TABLE_NAME", table)
            for line in lines
            if not (has_column and line.startswith("ALTER TABLE"))
        )

    def stop(self):
        shutil.rmtree(self.folder)


class Server(Database):
    """A database server. `options` are the options of its program."""

    def __init__(self, *options):
        super().__init__()
        self._port = Port()
        self.port = self._port.number
        self.process = None
        # Each server has its own TMPDIR, as MariaDB deletes all temporary tables there when it starts.
        libraries = ":".join(map(str, UNPACKED.glob("usr/lib/*-linux-gnu")))
        self.environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "TMPDIR": str(self.folder)}
        try:
            self.create()
            with open(self.folder / "log", "ab") as log:
                self.process = subprocess.Popen(
                    [*self.command(), *options], stdout=log, stderr=log, cwd=self.folder, env=self.environment
                )
            until(f"{self.name} answers", self.answers, limit=120)
        except BaseException:
            self.stop()
            raise

    def run(self, *command, stdin=None):
        """Runs one of the server's tools."""
        done = subprocess.run(
            list(map(str, command)),
            input=stdin,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def answers(self, port=None):
        assert self.process.poll() is None, (self.folder / "log").read_text()
        with contextlib.suppress(psycopg.OperationalError, pymysql.OperationalError):
            self.connect(port=port).close()
            return True

    def stop(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)  # after SIGTERM, PostgreSQL waits for its clients
            self.process.wait()
        self._port.close()
        super().stop()


class PostgreSQL(Server):
    name = "postgresql"

    def create(self):
        [self.programs] = UNPACKED.glob("usr/lib/postgresql/*/bin")
        as_nobody = NOBODY.split() if os.geteuid() == 0 else []
        if as_nobody:
            os.chown(self.folder, 65534, 65534)
        self.as_nobody = as_nobody
        self.run(
            *as_nobody, self.programs / "initdb", "--pgdata", self.folder / "data", "--username", "root",
            "--auth", "trust", "--no-sync", "--encoding", "UTF8", "--locale", "C",
        )  # fmt: skip

    def command(self):
        return [
            *self.as_nobody, self.programs / "postgres", "-D", self.folder / "data", "-p", str(self.port),
            "-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self.folder}",
        ]  # fmt: skip

    def connect(self, port=None, user="root"):
        return psycopg.connect(host="127.0.0.1", port=port or self.port, user=user, dbname="postgres")

    def install(self, *tables, has_column=False):
        psql = (
            self.programs / "psql", "--quiet", "--no-psqlrc", "-v", "ON_ERROR_STOP=1",
            "-h", "127.0.0.1", "-p", self.port, "-U", "root", "-d", "postgres",
        )  # fmt: skip
        self.run(*psql, "-f", FENCING / "postgresql.sql")
        for table in tables:
            self.run(*psql, "-c", f"SELECT dlock_fence_table('{table}')")

    @contextlib.contextmanager
    def pooled(self):
        """Yields the port of a PgBouncer in transaction pooling, with one connection to this server."""
        claimed = Port()
        port = claimed.number
        settings = self.folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\npostgres = host=127.0.0.1 port={self.port} user=root\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            "auth_type = any\npool_mode = transaction\ndefault_pool_size = 1\n"
            "ignore_startup_parameters = extra_float_digits\n"
        )
        with open(self.folder / "pgbouncer.log", "ab") as log:
            process = subprocess.Popen(
                [*self.as_nobody, UNPACKED / "usr/sbin/pgbouncer", settings],
                stdout=log, stderr=log, cwd=self.folder, env=self.environment,
            )  # fmt: skip
        try:
            until("PgBouncer answers", lambda: self.answers(port), limit=120)
            yield port
        finally:
            process.kill()
            process.wait()
            claimed.close()

    def session(self, connection):
        return connection.info.backend_pid

    def waits(self, connection, session):
        """Returns whether a session waits for a lock of another session."""
        query = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
        [(waits,)] = connection.execute(query, (session,)).fetchall()
        connection.commit()
        return waits


class MariaDB(Server):
    name = "mariadb"

    def create(self):
        (self.folder / "init.sql").write_text("CREATE DATABASE IF NOT EXISTS shop;\n")
        self.run(
            UNPACKED / "usr/bin/mariadb-install-db", "--no-defaults", f"--basedir={UNPACKED / 'usr'}",
            f"--datadir={self.folder / 'data'}", "--auth-root-authentication-method=normal", "--skip-test-db",
        )  # fmt: skip

    def command(self):
        return [
            UNPACKED / "usr/sbin/mariadbd", "--no-defaults", f"--basedir={UNPACKED / 'usr'}", "--user=root",
            f"--datadir={self.folder / 'data'}", f"--port={self.port}", "--bind-address=127.0.0.1",
            f"--socket={self.folder / 'socket'}", f"--plugin-dir={UNPACKED / 'usr/lib/mysql/plugin'}",
            f"--init-file={self.folder / 'init.sql'}", "--innodb-buffer-pool-size=32M",
            "--innodb-log-file-size=16M",
        ]  # fmt: skip

    def connect(self, port=None, user="root"):
        return pymysql.connect(
            host="127.0.0.1",
            port=port or self.port,
            user=user,
            database="shop",
            client_flag=CLIENT.FOUND_ROWS,  # an UPDATE counts the rows that it finds, even if it changes none
        )

    def install(self, *tables, has_column=False):
        client = (
            UNPACKED / "usr/bin/mariadb", "--no-defaults",
            "-h", "127.0.0.1", "-P", self.port, "-u", "root", "shop",
        )  # fmt: skip
        self.run(*client, stdin=(FENCING / "mysql.sql").read_text())
        for table in tables:
            self.run(*client, stdin=self.triggers("mysql-triggers.sql", table, has_column))

    def session(self, connection):
        return connection.thread_id()

    def waits(self, connection, session):
        """Returns whether any session waits. Does not read the table innodb_trx: the server updates it only
        if no query has read it for 0.1 s, and the tests ask more often."""
        with connection.cursor() as cursor:
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
            [(_, waits)] = cursor.fetchall()
        return int(waits) > 0


class SQLite(Database):
    name = "sqlite"
    isolations = ("SERIALIZABLE",)

    def connect(self):
        return sqlite3.connect(self.folder / "shop.db", timeout=0, isolation_level=None)

    def use_write_ahead_log(self):
        """Sets the journal with which readers and a writer do not block each other."""
        with contextlib.closing(self.connect()) as connection:
            connection.execute("PRAGMA journal_mode = WAL")

    def install(self, *tables, has_column=False):
        with contextlib.closing(self.connect()) as connection:
            connection.executescript((FENCING / "sqlite.sql").read_text())
            for table in tables:
                connection.executescript(self.triggers("sqlite-triggers.sql", table, has_column))
