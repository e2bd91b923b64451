"""`Lock` over `redis.asyncio.Redis`, `redis.asyncio.RedisCluster` or a Sentinel's client, and the same of
valkey-py."""

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
T = TypeVar("T", bound="Awaitable[Any]")


class Lost(LossEvent):
    """An event that is set when the hold is lost: as `asyncio.Event`, read only."""

    async def wait(self) -> bool:
        """Waits until the hold is lost or released, and returns whether it is lost."""
        hold = self._hold
        if hold is None:
            return False
        event = asyncio.Event()
        # Another thread may find the loss.
        wake = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, event.set)
        hold.wakers.append(wake)
        try:
            while not hold.is_lost() and not hold.over:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(event.wait(), min(max(hold.valid_until - now(), 0), 1.0))
        finally:
            hold.wakers.remove(wake)
        return self.is_set()


class Awaitable(Core[C]):
    """The methods for asyncio."""

    async def __aenter__(self: T) -> T:
        if await self.acquire():
            return self
        raise self._not_acquired()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._leaving():
            await self.release()

    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: Number | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquires the lock, and returns whether it did: see `dlock.Lock.acquire`. A cancelled call leaves
        neither a hold nor a position in the queue behind."""
        return bool(await run(self._acquiring(None, blocking, blocking_timeout, token), self.redis))

    async def release(self) -> None:
        """Releases the lock. Raises `LockNotOwnedError` if it was lost before."""
        await run(self._releasing(), self.redis)

    async def extend(self, additional_time: Number, replace_ttl: bool = False) -> Literal[True]:
        """Adds seconds to the lease, or sets the lease to them with ``replace_ttl``."""
        await run(self._extending(additional_time, replace_ttl), self.redis)
        return True

    async def reacquire(self) -> Literal[True]:
        """Sets the lease to the timeout again."""
        await run(self._reacquiring(), self.redis)
        return True

    async def locked(self) -> bool:
        """Returns whether any client holds the lock."""
        return bool(await run(self._asking_locked(), self.redis))

    async def owned(self) -> bool:
        """Returns whether this object holds the lock."""
        return bool(await run(self._asking_owned(), self.redis))

    @property
    def lost(self) -> Lost:
        """An event that is set when the hold is lost: it was not renewed in time, or an operator ended it."""
        return Lost(self._hold_of_thread())

    def _owner(self) -> _owners.Owner:
        return _owners.of_task()


class Lock(Awaitable[AsyncClient], RedisLock):
    """A lock of the server, in place of `redis.asyncio.lock.Lock`: the same arguments, methods, attributes
    and errors, with the additions of `dlock.Lock`. The owner, and the holder of a reentrant lock, is the
    task."""

    def _check(self, redis: Any) -> None:
        check_client(redis, "dlock.asyncio.Lock", is_async=True)

    # The building blocks of redis-py's methods, for programs that call them. The methods here do not.

    async def do_acquire(self, token: str | bytes) -> bool:
        """Tries once, with this token."""
        return bool(await run(self._acquiring(None, False, None, token), self.redis))

    async def do_release(self, expected_token: str | bytes) -> None:
        """Ends the hold of this token, in whichever object it was acquired."""
        await run(self._releasing(expected_token), self.redis)

    async def do_extend(self, additional_time: Number, replace_ttl: bool) -> Literal[True]:
        await run(self._extending(additional_time, replace_ttl), self.redis)
        return True

    async def do_reacquire(self) -> Literal[True]:
        await run(self._reacquiring(), self.redis)
        return True


class Redlock(QuorumCore[Quorum[AsyncClient]], Awaitable[Quorum[AsyncClient]]):
    """A lock over a quorum of independent masters: as `Lock`, and a majority decides. ``fenced`` asks, with
    one more round trip, for a fence that rises over the whole quorum."""

    def _check(self, redis: Any) -> None:
        check_quorum(redis, "dlock.asyncio.Redlock", is_async=True)
