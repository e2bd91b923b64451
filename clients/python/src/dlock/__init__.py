"""Locks of a Redis or Valkey server with the dlock module, over redis-py."""

from redis.exceptions import LockError, LockNotOwnedError

from ._protocol import DeadlockError, GraceError, LateError, QueueFullError
from .lock import Lock, Lost

__all__ = [
    "DeadlockError",
    "GraceError",
    "LateError",
    "Lock",
    "LockError",
    "LockNotOwnedError",
    "Lost",
    "QueueFullError",
]
__version__ = "0.1.0"
