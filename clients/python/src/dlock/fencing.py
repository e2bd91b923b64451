"""Fences that a database enforces: the statements that a transaction begins with.

The database needs the files of the project's folder ``contrib/fencing``, which also says what each form
stops. A refusal is the ``IntegrityError`` of the database's library (of PyMySQL and mysqlclient:
``OperationalError`` 4025). Roll back, and do not retry: a later holder has the lock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

_INSERT = "INSERT INTO dlock_gate (name, fence) VALUES ({0}, {1}) "
_PASS = {
    "postgresql": _INSERT + "ON CONFLICT (name) DO UPDATE SET fence = excluded.fence",
    "mysql": _INSERT + "ON DUPLICATE KEY UPDATE fence = VALUES(fence)",
    "sqlite": _INSERT + "ON CONFLICT (name) DO UPDATE SET fence = excluded.fence",
}
_CARRY = {
    "postgresql": "SELECT set_config('dlock.fence', {0}, true)",
    "mysql": "SET @dlock_fence = {0}",
    "sqlite": "INSERT OR REPLACE INTO dlock_carried (id, fence) VALUES (1, {0})",
}
_DROP = {"mysql": "SET @dlock_fence = NULL", "sqlite": "DELETE FROM dlock_carried"}
# By the package of the cursor's class; each other one is taken for a library of PostgreSQL.
_DIALECTS = {
    "sqlite3": "sqlite",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "mysql": "mysql",
    "mariadb": "mysql",
}


def pass_gate(cursor: Any, name: str, fence: int | None) -> None:
    """Raises the gate ``name`` to ``fence``, or raises ``IntegrityError`` if a later holder has passed it.
    Call it first in each transaction: the next holder then waits at the gate until this transaction ends.

    ``cursor`` is one of psycopg, PyMySQL, mysqlclient, sqlite3 or the like."""
    dialect, marker = _dialect(cursor)
    cursor.execute(_PASS[dialect].format(marker, marker), (name, fence))


def carry(cursor: Any, fence: int | None) -> None:
    """Sets the fence with which this transaction may write to tables with triggers. In MySQL and SQLite, call
    `drop` before the commit."""
    dialect, marker = _dialect(cursor)
    cursor.execute(_CARRY[dialect].format(marker), (str(fence),))


def drop(cursor: Any) -> None:
    """Removes the fence that `carry` has set. In PostgreSQL, the end of the transaction does it."""
    dialect, _ = _dialect(cursor)
    if dialect in _DROP:
        cursor.execute(_DROP[dialect])


def fence_session(session: Any, lock: Any, name: str | None = None) -> None:
    """Lets each transaction of this SQLAlchemy ``Session`` begin at the gate, with the fence that ``lock``
    has at that time. The gate has the name of the lock, unless ``name`` is given."""
    from sqlalchemy import event, text

    def pass_first(session: Any, transaction: Any, connection: Any) -> None:
        dialect = "mysql" if connection.dialect.name == "mariadb" else connection.dialect.name
        statement = text(_PASS[dialect].format(":name", ":fence"))
        connection.execute(statement, {"name": name or _text(lock.name), "fence": lock.fence})

    event.listen(session, "after_begin", pass_first)


@contextlib.contextmanager
def atomic(lock: Any, name: str | None = None, using: str | None = None) -> Iterator[None]:
    """Begins `transaction.atomic()` of Django, and passes the gate with the fence of ``lock``. The gate has
    the name of the lock, unless ``name`` is given. ``using`` is the alias of the database."""
    from django.db import connections, transaction

    with transaction.atomic(using=using):
        connection = connections[using or "default"]
        with connection.cursor() as cursor:
            cursor.execute(
                _PASS[connection.vendor].format("%s", "%s"), (name or _text(lock.name), lock.fence)
            )
        yield


def _dialect(cursor: Any) -> tuple[str, str]:
    """Returns the database of a cursor, and how its library marks a parameter."""
    package = type(cursor).__module__.partition(".")[0]
    return _DIALECTS.get(package, "postgresql"), "?" if package in ("sqlite3", "mariadb") else "%s"


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
