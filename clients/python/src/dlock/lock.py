"""`Lock` over `redis.Redis`, `redis.RedisCluster` or a Sentinel's client."""

from __future__ import annotations

import math
import threading
from types import TracebackType
from typing import Literal, TypeVar, Union

from redis.lock import Lock as RedisLock

from ._core import Core, Told
from ._hold import now
from ._quorate import Quorate
from ._threads import run

Number = Union[int, float]
T = TypeVar("T", bound="Blocking")


class Lost(Told):
    """Set when the hold is lost. As `threading.Event`, read only."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the hold is lost or released, and returns whether it is lost."""
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


class Blocking(Core):
    """The methods, as callers see them."""

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

        ``sleep`` is how often to ask where the server cannot tell: the key is held by a lock of another kind,
        or messages do not arrive. ``token`` is the owner's name, unique unless you know better: whoever asks
        with the token that holds the lock has it.
        """
        return bool(run(self._acquiring(sleep, blocking, blocking_timeout, token), self.redis))

    def release(self) -> None:
        """Releases the lock. `LockNotOwnedError` if it was lost before."""
        run(self._releasing(), self.redis)

    def extend(self, additional_time: Number, replace_ttl: bool = False) -> Literal[True]:
        """Adds seconds to the lease, or sets it to them with ``replace_ttl``."""
        run(self._extending(additional_time, replace_ttl), self.redis)
        return True

    def reacquire(self) -> Literal[True]:
        """Sets the lease to the timeout again."""
        run(self._reacquiring(), self.redis)
        return True

    def locked(self) -> bool:
        """Whether anybody holds the lock."""
        return bool(run(self._asking_locked(), self.redis))

    def owned(self) -> bool:
        """Whether this lock is held by this object (and thread)."""
        return bool(run(self._asking_owned(), self.redis))

    @property
    def lost(self) -> Lost:
        """Set when the hold is lost: it was not renewed in time, or somebody took it away."""
        return Lost(self._hold_of_thread())

    def _owner(self) -> object:
        return threading.current_thread()


class Lock(Blocking, RedisLock):
    """A lock of the server, in place of `redis.lock.Lock`: the same arguments, methods, attributes and
    errors.

    Beyond them: ``shared`` and ``permits`` choose the mode; ``reentrant`` lets its holder enter again;
    ``auto_renew`` renews the lease in the background (always without a timeout); ``on_lost`` is called, with
    the reason, when the hold is lost: it must not block. See also `fence` and `lost`.
    """

    # What the methods of redis-py's lock are made of, for those who call it. The methods here are not.

    def do_acquire(self, token: str | bytes) -> bool:
        """One try with this token."""
        return bool(run(self._acquiring(None, False, None, token), self.redis))

    def do_release(self, expected_token: str | bytes) -> None:
        """Ends the hold of this token, whoever acquired it."""
        run(self._releasing(expected_token), self.redis)

    def do_extend(self, additional_time: Number, replace_ttl: bool) -> Literal[True]:
        run(self._extending(additional_time, replace_ttl), self.redis)
        return True

    def do_reacquire(self) -> Literal[True]:
        run(self._reacquiring(), self.redis)
        return True


class Redlock(Quorate, Blocking):
    """A lock over a quorum of independent masters: `Lock`, decided by a majority. ``fenced`` asks, with one
    more round trip, for a fence that rises over the whole quorum."""
