"""`Lock` over `redis.Redis`, `redis.RedisCluster` or a Sentinel's client, and the same of valkey-py."""

from __future__ import annotations

import math
import threading
from types import TracebackType
from typing import Any, Literal, TypeVar, Union

from redis.lock import Lock as RedisLock

from . import _owners
from ._clients import SyncClient, check_client
from ._clock import now
from ._lock_core import C, Core, LossEvent
from ._members import Quorum
from ._quorum_core import QuorumCore, check_quorum
from ._threads import run

Number = Union[int, float]
T = TypeVar("T", bound="Blocking[Any]")


class Lost(LossEvent):
    """An event that is set when the hold is lost: as `threading.Event`, read only."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the hold is lost or released, at most for ``timeout`` seconds. Returns whether it is
        lost."""
        end = math.inf if timeout is None else now() + timeout
        hold = self._hold
        if hold is None:
            return False
        event = threading.Event()
        hold.wakers.append(event.set)
        try:
            while not hold.is_lost() and not hold.over and now() < end:
                event.wait(max(min(hold.valid_until - now(), end - now(), 1.0), 0))
        finally:
            hold.wakers.remove(event.set)
        return self.is_set()


class Blocking(Core[C]):
    """The methods for threads."""

    def __enter__(self: T) -> T:
        if self.acquire():
            return self
        raise self._not_acquired()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._leaving():
            self.release()

    def acquire(
        self,
        sleep: Number | None = None,
        blocking: bool | None = None,
        blocking_timeout: Number | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquires the lock, and returns whether it did. Waits in the queue, first come, first served, at
        most for ``blocking_timeout`` seconds; not at all if ``blocking`` is False.

        ``sleep`` is the pause between two requests, in seconds, where the server's queue cannot help: another
        library holds the key, or messages do not arrive. ``token`` names the holder and must be unique: a
        request with the token that holds the lock is granted."""
        return bool(run(self._acquiring(sleep, blocking, blocking_timeout, token), self.redis))

    def release(self) -> None:
        """Releases the lock. Raises `LockNotOwnedError` if it was lost before."""
        run(self._releasing(), self.redis)

    def extend(self, additional_time: Number, replace_ttl: bool = False) -> Literal[True]:
        """Adds seconds to the lease, or sets the lease to them with ``replace_ttl``."""
        run(self._extending(additional_time, replace_ttl), self.redis)
        return True

    def reacquire(self) -> Literal[True]:
        """Sets the lease to the timeout again."""
        run(self._reacquiring(), self.redis)
        return True

    def locked(self) -> bool:
        """Returns whether any client holds the lock."""
        return bool(run(self._asking_locked(), self.redis))

    def owned(self) -> bool:
        """Returns whether this object holds the lock, in this thread."""
        return bool(run(self._asking_owned(), self.redis))

    @property
    def lost(self) -> Lost:
        """An event that is set when the hold is lost: it was not renewed in time, or an operator ended it."""
        return Lost(self._hold_of_thread())

    def _owner(self) -> _owners.Owner:
        return _owners.of_thread()


class Lock(Blocking[SyncClient], RedisLock):
    """A lock of the server, in place of `redis.lock.Lock`: the same arguments, methods, attributes and
    errors.

    In addition, ``shared`` and ``permits`` choose the mode; ``reentrant`` lets the holder enter again;
    ``auto_renew`` renews the lease in the background (always without a timeout); ``on_lost`` is called with
    the reason when the hold is lost, and must not block; ``owner`` is the party of the deadlock search, by
    default the thread. See also `fence` and `lost`."""

    def _check(self, redis: Any) -> None:
        check_client(redis, "dlock.Lock", is_async=False)

    # The building blocks of redis-py's methods, for programs that call them. The methods here do not.

    def do_acquire(self, token: str | bytes) -> bool:
        """Tries once, with this token."""
        return bool(run(self._acquiring(None, False, None, token), self.redis))

    def do_release(self, expected_token: str | bytes) -> None:
        """Ends the hold of this token, in whichever object it was acquired."""
        run(self._releasing(expected_token), self.redis)

    def do_extend(self, additional_time: Number, replace_ttl: bool) -> Literal[True]:
        run(self._extending(additional_time, replace_ttl), self.redis)
        return True

    def do_reacquire(self) -> Literal[True]:
        run(self._reacquiring(), self.redis)
        return True


class Redlock(QuorumCore[Quorum[SyncClient]], Blocking[Quorum[SyncClient]]):
    """A lock over a quorum of independent masters: as `Lock`, and a majority decides. ``fenced`` asks, with
    one more round trip, for a fence that rises over the whole quorum."""

    def _check(self, redis: Any) -> None:
        check_quorum(redis, "dlock.Redlock", is_async=False)
