"""Locks on a Redis or Valkey server with the dlock module, through a client of redis-py or valkey-py."""

from redis.exceptions import LockError, LockNotOwnedError

from ._members import NoQuorumError, Quorum
from ._protocol import (
    DeadlockError,
    GraceError,
    LateError,
    NotAcquiredError,
    NotALockError,
    NotDurableError,
    QueueFullError,
    StaleFenceError,
)
from ._reading import Holder, Incident, Inspection, Listed, Waiter
from .lock import Leader, Lock, Locks, Lost, Operator, Redlock, fenced, lock_all, lock_path

__all__ = [
    "DeadlockError",
    "GraceError",
    "Holder",
    "Incident",
    "Inspection",
    "LateError",
    "Leader",
    "Listed",
    "Lock",
    "LockError",
    "LockNotOwnedError",
    "Locks",
    "Lost",
    "NoQuorumError",
    "NotALockError",
    "NotAcquiredError",
    "NotDurableError",
    "Operator",
    "QueueFullError",
    "Quorum",
    "Redlock",
    "StaleFenceError",
    "Waiter",
    "fenced",
    "lock_all",
    "lock_path",
]
__version__ = "0.1.0"

# Error messages and tracebacks show the names that users import.
for _class in (
    DeadlockError,
    GraceError,
    LateError,
    NoQuorumError,
    NotALockError,
    NotAcquiredError,
    NotDurableError,
    QueueFullError,
    Quorum,
    StaleFenceError,
):
    _class.__module__ = "dlock"
