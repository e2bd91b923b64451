"""Locks on a Redis or Valkey server with the dlock module, through a client of redis-py or valkey-py."""

from redis.exceptions import LockError, LockNotOwnedError

from ._members import NoQuorumError, Quorum
from ._protocol import DeadlockError, GraceError, LateError, QueueFullError
from .lock import Lock, Lost, Redlock

__all__ = [
    "DeadlockError",
    "GraceError",
    "LateError",
    "Lock",
    "LockError",
    "LockNotOwnedError",
    "Lost",
    "NoQuorumError",
    "QueueFullError",
    "Quorum",
    "Redlock",
]
__version__ = "0.1.0"
