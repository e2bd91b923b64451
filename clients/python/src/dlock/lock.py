"""`Lock` and `Redlock` for threads. `Lock` takes a `redis.Redis`, a `redis.RedisCluster`, a client of a
Sentinel, or the same of valkey-py."""

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
T = TypeVar("T", bound="SyncMethods[Any]")


class Lost(LossEvent):
    """A read-only `threading.Event` that is set when the hold is lost."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the hold is lost or released, at most for ``timeout`` seconds. Returns whether the hold
        is lost."""
        end = math.inf if timeout is None else now() + timeout
        hold = self._hold
        if hold is None:
            return False
        event = threading.Event()
        hold.wakers.append(event.set)
        try:
            # While a machine is suspended, `now` advances but timers do not. So each wait takes at most 1 s.
            while not hold.is_lost() and not hold.over and now() < end:
                event.wait(max(min(hold.valid_until - now(), end - now(), 1.0), 0))
        finally:
            hold.wakers.remove(event.set)
        return self.is_set()


class SyncMethods(Core[C]):
    """The public methods of `Lock` and `Redlock`, for threads."""

    def __enter__(self: T) -> T:
        if self.acquire():
            self._entering()
            return self
        raise self._not_acquired()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._leaving(exc_value):
            self._check_entered()
            self.release()

    def acquire(
        self,
        sleep: Number | None = None,
        blocking: bool | None = None,
        blocking_timeout: Number | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquires the lock. Returns whether it was granted. Waits in the queue, first come, first served, at
        most for ``blocking_timeout`` seconds; does not wait if ``blocking`` is False.

        ``sleep`` is the pause between two requests, in seconds, if the server's queue cannot help: a lock of
        another library is at the key, or the server's messages do not arrive. ``token`` identifies the holder
        and must be unique: the server grants the lock again to the token that holds it."""
        return bool(run(self._acquiring(sleep, blocking, blocking_timeout, token), self.redis))

    def release(self) -> None:
        """Releases the lock. Raises `LockNotOwnedError` if it was lost before, even if the server still had
        the hold, and if another thread has acquired the lock with this object meanwhile."""
        run(self._releasing(), self.redis)

    def extend(self, additional_time: Number, replace_ttl: bool = False) -> Literal[True]:
        """Adds ``additional_time`` seconds to the lease. With ``replace_ttl``, sets the lease to that
        time."""
        run(self._extending(additional_time, replace_ttl), self.redis)
        return True

    def reacquire(self) -> Literal[True]:
        """Sets the lease to the full ``timeout`` again."""
        run(self._reacquiring(), self.redis)
        return True

    def locked(self) -> bool:
        """Returns whether any client holds the lock."""
        return bool(run(self._asking_locked(), self.redis))

    def owned(self) -> bool:
        """Asks the server whether this thread holds the lock with this object."""
        return bool(run(self._asking_owned(), self.redis))

    @property
    def lost(self) -> Lost:
        """An event that is set when the hold is lost: it was not renewed in time, or an operator ended it."""
        return Lost(self._hold_for_lost())

    def _caller(self) -> _owners.Caller:
        return _owners.this_thread()


class Lock(SyncMethods[SyncClient], RedisLock):
    """A lock on a server. Replaces `redis.lock.Lock`, with the same arguments, methods, attributes and
    errors.

    In addition to redis-py's arguments:

    - ``shared``: any number of sharers may hold the lock together, but not with an exclusive holder.
    - ``permits``: at most this many holders at a time: a semaphore. Not together with ``shared``.
    - ``reentrant``: the thread that holds the lock may acquire it again. Each acquisition needs a release.
    - ``auto_renew``: renews the lease in the background whenever a third of it has passed. Always on without
      a ``timeout``.
    - ``on_lost``: a function that is called with the reason when the hold is lost, from a thread of dlock. It
      must not block.
    - ``owner``: name of the owner in the server's deadlock search, by default the thread. An empty name
      excludes this lock from the search.
    - ``at_least``: the hold, and a time after it in which the server grants the lock to no client, last at
      least so many seconds together, from the grant on: for jobs that finish faster than clocks differ. A
      lease that ends without a release is followed by no such time. Needs the module 0.1.0 or later: else
      acquiring raises `LockError`.

    See also the properties `fence` and `lost`."""

    def _check(self, redis: Any) -> None:
        check_client(redis, "dlock.Lock", is_async=False)

    # `redis.lock.Lock` has these methods, too. No method of this class calls them, but programs may.

    def do_acquire(self, token: str | bytes) -> bool:
        """Tries once, with this token."""
        return bool(run(self._acquiring(None, False, None, token), self.redis))

    def do_release(self, expected_token: str | bytes) -> None:
        """Ends the hold of this token, even if another object acquired it."""
        run(self._releasing(expected_token), self.redis)

    def do_extend(self, additional_time: Number, replace_ttl: bool) -> Literal[True]:
        run(self._extending(additional_time, replace_ttl), self.redis)
        return True

    def do_reacquire(self) -> Literal[True]:
        run(self._reacquiring(), self.redis)
        return True


class Redlock(QuorumCore[Quorum[SyncClient]], SyncMethods[Quorum[SyncClient]]):
    """A lock on a majority of a `Quorum` of independent masters, with the methods and arguments of `Lock`.
    Permits are not possible: acquiring raises `ValueError`. With ``at_least``, a majority keeps the lock
    closed; if members fail to answer the release, another client can acquire the lock sooner by their votes.

    With ``fenced``, each hold has a greater `fence` than all earlier holds in the quorum; acquiring takes one
    more round trip. Without ``fenced``, `fence` is None if the quorum has more than one member."""

    def _check(self, redis: Any) -> None:
        check_quorum(redis, "dlock.Redlock", is_async=False)
