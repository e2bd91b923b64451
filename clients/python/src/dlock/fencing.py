"""Fences that a database enforces: functions that send the statements with which a transaction begins.

The database needs the tables and triggers of the project's folder ``contrib/fencing``. There are two forms.
With a gate (`pass_gate`), each transaction first raises a fence in a table, and fails if that fence is
already greater. With triggers (`carry`), the tables themselves refuse writes with a lower fence.

A refusal is the ``IntegrityError`` of the database's library (of PyMySQL and mysqlclient:
``OperationalError`` 4025), and its text contains ``dlock: ``. Roll back, and do not retry: a later holder has
acquired the lock."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

# By database: the statement that raises a gate, or fails if a later holder has passed it.
_INSERT = "INSERT INTO dlock_gate (name, fence) VALUES ({0}, {1}) "
_PASS = {
    "postgresql": _INSERT + "ON CONFLICT (name) DO UPDATE SET fence = excluded.fence",
    "mysql": _INSERT + "ON DUPLICATE KEY UPDATE fence = VALUES(fence)",
    "sqlite": _INSERT + "ON CONFLICT (name) DO UPDATE SET fence = excluded.fence",
}
# By database: the statement that sets the fence of the transaction, for the triggers.
_CARRY = {
    "postgresql": "SELECT set_config('dlock.fence', {0}, true)",
    "mysql": "SET @dlock_fence = {0}",
    "sqlite": "INSERT OR REPLACE INTO dlock_carried (id, fence) VALUES (1, {0})",
}
# By database: the statement that removes this fence again. In PostgreSQL, the end of the transaction does so.
_DROP = {
    "mysql": "SET @dlock_fence = NULL",
    "sqlite": "DELETE FROM dlock_carried",
}
# Keys: the package of a cursor's class. Values: the database, and the library's placeholder for a parameter.
_LIBRARIES = {
    "psycopg": ("postgresql", "%s"),
    "psycopg2": ("postgresql", "%s"),
    "pymysql": ("mysql", "%s"),
    "MySQLdb": ("mysql", "%s"),
    "mysql": ("mysql", "%s"),
    "mariadb": ("mysql", "?"),
    "sqlite3": ("sqlite", "?"),
}


def pass_gate(cursor: Any, name: str | bytes, fence: int | None) -> None:
    """Raises the gate ``name`` to ``fence``, or raises ``IntegrityError`` if a later holder has passed it.
    Call it first in each transaction: the next holder then waits at the gate until this transaction ends.

    ``cursor`` is a cursor of psycopg, psycopg2, PyMySQL, mysqlclient, MySQL Connector, MariaDB Connector,
    sqlite3 or Django. Any other cursor raises ``TypeError``, also a cursor for asyncio."""
    _execute(cursor, _PASS, _text(name), fence)


@contextlib.contextmanager
def carry(cursor: Any, fence: int | None) -> Iterator[None]:
    """Lets the statements of the block write to tables with triggers, with ``fence``. Begin the transaction
    before the block, and commit it after the block. For ``cursor``, see `pass_gate`."""
    database, _, inner_cursor = _library(cursor)
    _execute(cursor, _CARRY, str(fence))
    try:
        if database == "sqlite" and not cursor.connection.in_transaction:
            raise RuntimeError("carry needs a transaction: without one, every program would use this fence")
        yield
    finally:
        if database in _DROP:
            # After a failed `save` of a model, for example, Django's own cursor refuses statements until the
            # rollback. The library's cursor executes them.
            inner_cursor.execute(_DROP[database])


def fence_session(session: Any, lock: Any) -> None:
    """Makes each transaction of this SQLAlchemy ``Session`` first pass the gate with the lock's name, and
    with the fence that ``lock`` has when the transaction begins. After a refusal, the session must roll back.
    Raises ``RuntimeError`` if the session is in a transaction that has run a statement.

    Instead of a ``scoped_session`` ``scoped``, pass ``scoped()``. Instead of an ``AsyncSession``, pass its
    ``sync_session``."""
    from sqlalchemy import event, text
    from sqlalchemy.orm import Session

    def pass_first(session: Any, transaction: Any, connection: Any) -> None:
        dialect = "mysql" if connection.dialect.name == "mariadb" else connection.dialect.name
        statement = text(_PASS[dialect].format(":name", ":fence"))
        try:
            connection.execute(statement, {"name": _text(lock.name), "fence": lock.fence})
        except BaseException:
            # Without this, the session would run its next statement in the same transaction, past the gate.
            connection.invalidate()
            raise

    if not isinstance(session, Session):
        raise TypeError(f"fence_session needs a Session of SQLAlchemy, not a {type(session).__name__}")
    transaction = session.get_transaction()
    # A transaction has no connection before its first statement. Only this private attribute shows whether it
    # has one.
    if transaction is not None and getattr(transaction, "_connections", True):
        raise RuntimeError("the session is in a transaction that has not passed the gate: end it first")
    event.listen(session, "after_begin", pass_first)


@contextlib.contextmanager
def atomic(lock: Any, using: str | None = None) -> Iterator[None]:
    """Begins `transaction.atomic(durable=True)` of Django, and passes the gate with the lock's name and
    fence. Inside another ``atomic`` it raises ``RuntimeError``, as the gate must come first. ``using`` is the
    alias of the database."""
    from django.db import connections, transaction

    with transaction.atomic(using=using, durable=True):
        with connections[using or "default"].cursor() as cursor:
            pass_gate(cursor, lock.name, lock.fence)
        yield


def _execute(cursor: Any, statements: dict[str, str], *values: Any) -> None:
    """Executes the statement for the database of a cursor."""
    database, placeholder, _ = _library(cursor)
    result = cursor.execute(statements[database].format(placeholder, placeholder), values)
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("dlock.fencing has no asyncio: await the statement of contrib/fencing yourself")


def _library(cursor: Any) -> tuple[str, str, Any]:
    """Returns the database of a cursor, the placeholder of its library for a parameter, and the library's
    cursor: the cursor itself, or the one that a cursor of Django wraps."""
    for ancestor in type(cursor).__mro__:
        package = ancestor.__module__.partition(".")[0]
        if package == "django":
            return cursor.db.vendor, "%s", cursor.cursor
        if package in _LIBRARIES:
            return (*_LIBRARIES[package], cursor)
    kind = type(cursor)
    raise TypeError(f"dlock.fencing does not know the cursor {kind.__module__}.{kind.__qualname__}")


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
