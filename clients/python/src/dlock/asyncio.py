"""`Lock` and `Redlock` for asyncio. `Lock` takes a `redis.asyncio.Redis`, a `redis.asyncio.RedisCluster`, a
client of a Sentinel, or the same of valkey-py."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from types import TracebackType
from typing import Any, Literal, TypeVar, Union

from redis.asyncio.lock import Lock as RedisLock

from . import _owners
from ._clients import AsyncClient, check_client
from ._clock import now
from ._lock_core import C, Core, LossEvent
from ._members import Quorum
from ._quorum_core import QuorumCore, check_quorum
from ._tasks import run

Number = Union[int, float]
T = TypeVar("T", bound="AsyncMethods[Any]")


class Lost(LossEvent):
    """A read-only `asyncio.Event` that is set when the hold is lost."""

    async def wait(self) -> bool:
        """Waits until the hold is lost or released. Returns whether the hold is lost."""
        hold = self._hold
        if hold is None:
            return False
        event = asyncio.Event()
        # Another thread may detect the loss.
        wake = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, event.set)
        hold.wakers.append(wake)
        try:
            # While a machine is suspended, `now` advances but timers do not. So each wait takes at most 1 s.
            while not hold.is_lost() and not hold.over:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(event.wait(), min(max(hold.valid_until - now(), 0), 1.0))
        finally:
            hold.wakers.remove(wake)
        return self.is_set()


class AsyncMethods(Core[C]):
    """The public methods of `Lock` and `Redlock`, for asyncio."""

    async def __aenter__(self: T) -> T:
        if await self.acquire():
            self._entering()
            return self
        raise self._not_acquired()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._leaving(exc_value):
            self._check_entered()
            await self.release()

    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: Number | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquires the lock. Returns whether it was granted: see `dlock.Lock.acquire`. A cancelled call
        leaves neither a hold nor a queue position behind."""
        return bool(await run(self._acquiring(None, blocking, blocking_timeout, token), self.redis))

    async def release(self) -> None:
        """Releases the lock. Raises `LockNotOwnedError` if it was lost before, even if the server still had
        the hold, and if another task has acquired the lock with this object meanwhile."""
        await run(self._releasing(), self.redis)

    async def extend(self, additional_time: Number, replace_ttl: bool = False) -> Literal[True]:
        """Adds ``additional_time`` seconds to the lease. With ``replace_ttl``, sets the lease to that
        time."""
        await run(self._extending(additional_time, replace_ttl), self.redis)
        return True

    async def reacquire(self) -> Literal[True]:
        """Sets the lease to the full ``timeout`` again."""
        await run(self._reacquiring(), self.redis)
        return True

    async def locked(self) -> bool:
        """Returns whether any client holds the lock."""
        return bool(await run(self._asking_locked(), self.redis))

    async def owned(self) -> bool:
        """Asks the server whether this object holds the lock."""
        return bool(await run(self._asking_owned(), self.redis))

    @property
    def lost(self) -> Lost:
        """An event that is set when the hold is lost: it was not renewed in time, or an operator ended it."""
        return Lost(self._hold_for_lost())

    def _caller(self) -> _owners.Caller:
        return _owners.this_task()


class Lock(AsyncMethods[AsyncClient], RedisLock):
    """A lock on a server. Replaces `redis.asyncio.lock.Lock`, with the same arguments, methods, attributes
    and errors.

    In addition to redis-py's arguments:

    - ``shared``: any number of sharers may hold the lock together, but not with an exclusive holder.
    - ``permits``: at most this many holders at a time: a semaphore. Not together with ``shared``.
    - ``reentrant``: the task that holds the lock may acquire it again. Each acquisition needs a release.
    - ``auto_renew``: renews the lease in the background whenever a third of it has passed. Always on without
      a ``timeout``.
    - ``on_lost``: a function that is called with the reason when the hold is lost, in the event loop. It must
      be a plain function, and must not block.
    - ``owner``: name of the owner in the server's deadlock search, by default the task. An empty name
      excludes this lock from the search.
    - ``at_least``: the hold, and a time after it in which the server grants the lock to no client, last at
      least so many seconds together, from the grant on: for jobs that finish faster than clocks differ. A
      lease that ends without a release is followed by no such time. Needs the module 0.1.0 or later: else
      acquiring raises `LockError`.

    See also the properties `fence` and `lost`."""

    def _check(self, redis: Any) -> None:
        check_client(redis, "dlock.asyncio.Lock", is_async=True)

    # `redis.asyncio.lock.Lock` has these methods, too. No method of this class calls them, but programs may.

    async def do_acquire(self, token: str | bytes) -> bool:
        """Tries once, with this token."""
        return bool(await run(self._acquiring(None, False, None, token), self.redis))

    async def do_release(self, expected_token: str | bytes) -> None:
        """Ends the hold of this token, even if another object acquired it."""
        await run(self._releasing(expected_token), self.redis)

    async def do_extend(self, additional_time: Number, replace_ttl: bool) -> Literal[True]:
        await run(self._extending(additional_time, replace_ttl), self.redis)
        return True

    async def do_reacquire(self) -> Literal[True]:
        await run(self._reacquiring(), self.redis)
        return True


class Redlock(QuorumCore[Quorum[AsyncClient]], AsyncMethods[Quorum[AsyncClient]]):
    """A lock on a majority of a `Quorum` of independent masters, with the methods and arguments of `Lock`.
    Permits are not possible: acquiring raises `ValueError`. With ``at_least``, a majority keeps the lock
    closed; if members fail to answer the release, another client can acquire the lock sooner by their votes.

    With ``fenced``, each hold has a greater `fence` than all earlier holds in the quorum; acquiring takes one
    more round trip. Without ``fenced``, `fence` is None if the quorum has more than one member."""

    def _check(self, redis: Any) -> None:
        check_quorum(redis, "dlock.asyncio.Redlock", is_async=True)
