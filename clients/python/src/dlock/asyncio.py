"""`Lock` and `Redlock` for asyncio. `Lock` takes a `redis.asyncio.Redis`, a `redis.asyncio.RedisCluster`, a
client of a Sentinel, or the same of valkey-py."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import Any, Callable, Literal, TypeVar, Union

from redis.asyncio.lock import Lock as RedisLock
from redis.exceptions import LockError

from . import _operator, _owners, _protocol
from ._arguments import checking, public
from ._clients import AsyncClient, check_client, is_cluster, masters
from ._clock import now
from ._lock_core import C, Core, LossEvent
from ._members import Quorum
from ._protocol import Key, error
from ._quorum_core import QuorumCore, check_quorum
from ._reading import Holder, Incident, Inspection, Listed, Waiter
from ._several import (
    OBSERVE_PAUSE,
    SeveralCore,
    campaigning,
    check_one_leader,
    ending_term,
    locks_of_names,
    locks_of_path,
)
from ._tasks import run, watch_loss

Number = Union[int, float]
R = TypeVar("R")
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
        raise await run(self._not_acquired(), self.redis)

    async def __aexit__(self, exc_type: object, exc_value: BaseException | None, traceback: object) -> None:
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

    async def guard(self, *command: Any) -> Any:
        """Runs a command on the lock's server if this task holds the lock there at that moment, in one
        step, and returns its reply: ``lock.guard("SET", "{invoice}:total", 42)``. Raises
        `LockNotOwnedError`, and runs nothing, if the hold is lost. In a cluster, the keys must be in the slot
        of the lock. After a broken connection, your client may send the command again. Not over a quorum: see
        `dlock.fenced`."""
        return await run(self._guarding(command), self.redis)

    async def downgrade(self) -> Literal[True]:
        """Turns an exclusive hold into a shared one, which lets waiting sharers in. The fence stays. Not over
        a quorum."""
        if not await run(self._converting("downgrade", True, False, None), self.redis):
            raise error(LockError, "Cannot downgrade: the server has refused it", self.name)
        return True

    async def upgrade(self, blocking: bool | None = None, blocking_timeout: Number | None = None) -> bool:
        """Turns a shared hold into an exclusive one, once no other hold is left. Waits ahead of all others
        in the queue. The fence stays. Returns False at the end of the wait: the hold stays shared. Raises
        `DeadlockError` if another sharer waits for an upgrade already. Not over a quorum."""
        return bool(await run(self._converting("upgrade", False, blocking, blocking_timeout), self.redis))

    async def wait_until_free(self, timeout: Number | None = None) -> bool:
        """Waits until the lock has no holder, no waiter and no delay, at most for ``timeout`` seconds.
        Returns whether it was free. Acquires nothing: another client may have taken the lock meanwhile. Looks
        after random pauses of up to half a second, and outlasts an outage of up to 10 s."""
        return bool(await run(self._waiting_until_free(timeout), self.redis))

    async def adopt(self, token: str | bytes) -> None:
        """Takes over the hold of a token (see `forget`) from another object or process, which must no longer
        use it: sets the lease, and renews it as the options say. The hold keeps its mode: it must be that
        of this object (``shared``, ``permits``), which is not checked. Raises `LockNotOwnedError` if the
        server has no hold of this token, and ValueError if this object is ``ephemeral`` or ``durable``. Over
        a quorum, the hold has no `fence`, even with ``fenced``."""
        await run(self._adopting(token), self.redis)

    async def locked(self) -> bool:
        """Returns whether any client holds the lock."""
        return bool(await run(self._asking_locked(), self.redis))

    async def owned(self) -> bool:
        """Asks the server whether this object holds the lock."""
        return bool(await run(self._asking_owned(), self.redis))

    @property
    def lost(self) -> Lost:
        """An event that is set when the hold is lost: it was not renewed in time, or an operator ended it."""
        hold = self._hold_for_lost()
        if hold is not None and hold.loss_watch is None and hold.is_held():
            with contextlib.suppress(RuntimeError):  # read outside the event loop
                watch_loss(hold, self.redis)
        return Lost(hold)

    def _caller(self) -> _owners.Caller:
        return _owners.this_task()


class Lock(AsyncMethods[AsyncClient], RedisLock):
    """A lock on a server. Replaces `redis.asyncio.lock.Lock`, with the same arguments, methods, attributes
    and errors.

    In addition to redis-py's arguments:

    - ``shared``: any number of sharers may hold the lock together, but not with an exclusive holder.
    - ``permits``: at most this many holders at a time: a semaphore. Not together with ``shared``.
    - ``reentrant``: the task that holds the lock by this object may acquire it again by this object. Each
      acquisition needs a release.
    - ``auto_renew``: renews the lease in the background whenever a third of it has passed. Always on without
      a ``timeout``.
    - ``on_lost``: a function that is called with the reason when the hold is lost, in the event loop. It must
      be a plain function, and must not block.
    - ``owner``: name of the owner in the server's deadlock search, by default the task. An empty name
      excludes this lock from the search.
    - ``label``: text for operators, by default the host, the process and the task. An empty one sends none.
    - ``delay``: if the hold ends by its lease or its connection, the lock is granted to no client for this
      many seconds more: requests of the dead holder can still arrive meanwhile. A wait on a single server
      then takes one trip more.
    - ``ephemeral``: the hold also ends with its connection, so at once if the process dies. It has a
      connection of its own. In a cluster, it also ends when its slot moves.
    - ``at_least``: the hold, and a time after it in which the server grants the lock to no client, last at
      least this many seconds together, from the grant on: for jobs that finish faster than clocks differ. A
      hold that is lost is followed by no such time. `acquire` and `adopt` raise `LockError` if it is longer
      than the server's ``dlock.max-ttl``, or if the server has no module 0.1.0 or later.
    - ``max_hold``: the hold is lost after this many seconds, and is not renewed any more: work that hangs
      does not keep the lock.
    - ``durable``: a pair of a number of replicas and a limit in seconds. `acquire` raises `NotDurableError`
      unless this many replicas have the grant in time. With 0 replicas, the append only file must have it
      (Redis 7.2). In a cluster, those of the lock's own node count.

    See also the properties `fence`, `token` and `lost`."""

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


class Locks(SeveralCore[Union[Lock, Redlock]]):
    """Several locks, all or none: see `lock_all` and `lock_path`."""

    async def __aenter__(self) -> Locks:
        missing = await run(self._acquiring(None, None), self._client())
        if missing is not None:
            raise await run(missing._not_acquired(), self._client())
        return self

    async def __aexit__(self, exc_type: object, exc_value: BaseException | None, traceback: object) -> None:
        with self.locks[0]._leaving(exc_value):
            await self.release()

    async def acquire(self, blocking: bool | None = None, blocking_timeout: Number | None = None) -> bool:
        """Acquires all locks, or none. Returns whether it did. The limit is for all locks together. Raises
        `LockNotOwnedError` if one of the holds is lost before all locks are acquired."""
        return (await run(self._acquiring(blocking, blocking_timeout), self._client())) is None

    async def release(self) -> None:
        """Releases all locks, the last one first. Raises the first loss afterwards, or else the first
        error."""
        await run(self._releasing(), self._client())


def lock_all(client: Any, names: Iterable[Key], **options: Any) -> Locks:
    """Returns several locks that are acquired all or none, one after the other in the order of their names:
    the same order for all clients in every language, so that overlapping sets never deadlock. ``client``: as
    for `Lock`, or a `Quorum`. ``options``: those of `Lock`, the same for each; the holds are renewed."""
    return Locks(locks_of_names(_renewed_lock, client, names, options))


def lock_path(client: Any, path: str, **options: Any) -> Locks:
    """Returns the locks of a path such as "a/b/c": the ancestors "a" and "a/b" shared, the path itself
    exclusively, or shared with ``shared=True``. So a path excludes all that are above or below it, and no
    others: ``at_least`` and ``delay`` keep the path itself closed, and not its ancestors. ``permits`` raises
    `ValueError`. The keys are "{a}", "{a}/b" and "{a}/b/c", as in the Go and Node clients."""
    return Locks(locks_of_path(_renewed_lock, client, path, options))


def _renewed_lock(client: Any, name: Any, options: dict[str, Any]) -> Lock | Redlock:
    # A lock must not end while the next one is waited for.
    kind = Redlock if isinstance(client, Quorum) else Lock
    return kind(client, name, **{"auto_renew": True, **options})


async def _cancelled(task: asyncio.Future[Any]) -> None:
    """Cancels a task, and waits for its end, even if anyio cancels this wait again and again. Raises the last
    of these cancellations afterwards."""
    task.cancel()
    cancellation = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as why:
            cancellation = why
    if cancellation is not None:
        raise cancellation


class Leader:
    """Elects one of many processes: the one that holds the lock of this name. ``client``: as for `Lock`, or a
    `Quorum`. ``options``: those of `Lock`, without ``shared`` and ``permits``."""

    def __init__(self, client: Any, name: Key, **options: Any) -> None:
        check_one_leader(options)
        #: The lock. While this process leads, its `fence` is the number of the term.
        self.lock = _renewed_lock(client, name, {"thread_local": False, **options})

    async def campaign(self, timeout: Number | None = None) -> bool:
        """Waits until this process leads, through outages of the server, at most for ``timeout`` seconds.
        Returns whether it leads."""
        return bool(await run(campaigning(self.lock, timeout), self.lock.redis))

    async def lead(self, work: Callable[[Any], Awaitable[R]]) -> R:
        """Campaigns, awaits ``work`` with the lock, resigns, and returns the result. If the lead is lost, the
        work is cancelled. Then this process campaigns again, and starts ``work`` again."""
        while True:
            await self.campaign()
            lost = self.lock.lost
            task = asyncio.ensure_future(work(self.lock))
            watch = asyncio.ensure_future(lost.wait())
            try:
                await asyncio.wait([task, watch], return_when=asyncio.FIRST_COMPLETED)
            finally:
                watch.cancel()
                try:
                    await _cancelled(task)
                finally:
                    is_over = await self._is_over(lost)
            if not is_over:
                return task.result()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                task.result()

    async def _is_over(self, lost: Lost) -> bool:
        """Resigns. Returns whether the lead was lost before."""
        return bool(await run(ending_term(self.lock, lost), self.lock.redis))

    async def resign(self) -> None:
        """Releases the lock: another process can lead at once. Raises as `Lock.release` does."""
        await self.lock.release()

    async def current(self) -> Holder | None:
        """Returns the present leader; None if there is none. Over a quorum, a majority has the leader. Raises
        `NoQuorumError` if no majority answers, and the error of redis-py if a single server does not."""
        found: Holder | None = await run(self.lock._ask_holder(), self.lock.redis)
        return found

    async def observe(self) -> AsyncIterator[Holder | None]:
        """Iterates over the leaders, the present one first, and None for a time without one. Looks once a
        second, so it may miss a short term. An error of `current` ends the iteration: a new one begins with
        the present leader."""
        token: bytes | None = b""  # of no leader
        while True:
            leader = await self.current()
            seen = None if leader is None else leader.token
            if seen != token:
                token = seen
                yield leader
            await asyncio.sleep(OBSERVE_PAUSE)


class Operator:
    """The commands for operators, typed. The fields of the answers have the names of the wire; times are in
    seconds. ``client``: as for `Lock`. In a cluster, `list` and `log` ask all masters."""

    def __init__(self, client: AsyncClient) -> None:
        check_client(client, "dlock.asyncio.Operator", is_async=True)
        self.client = client

    async def inspect(self, name: Key) -> Inspection | None:
        """Returns the state of a lock. None if it has no holder, no waiter and no delay."""
        found: Inspection | None = await run(_operator.inspect(name), self.client)
        return found

    async def waiters(self, name: Key, count: int = 1000) -> list[Waiter]:
        """Returns the wait queue, the head first, at most ``count`` waiters (1 to 1000)."""
        return list(await run(_operator.waiters(name, count), self.client))

    async def list(self, match: Key | None = None, *, waited: bool = False) -> AsyncIterator[Listed]:
        """Iterates over the locks that are held, waited for or in a delay. With ``match``, only
        over those whose names match this pattern of the command KEYS; with ``waited``, only over those that
        have waiters. A lock that exists during the whole iteration is listed at least once."""
        for master in await self._masters():
            cursor: Any = 0
            while cursor is not None:
                cursor, locks = await run(_operator.page(cursor, match, waited), master)
                for each in locks:
                    yield each

    async def log(self, count: int = 100, name: Key | None = None) -> builtins.list[Incident]:
        """Returns recent incidents, newest first, at most ``count``; with a name, only those of this lock."""
        found = [await run(_operator.log(count, name), master) for master in await self._masters()]
        return _operator.newest(found, count)

    async def _masters(self) -> builtins.list[Any]:
        if is_cluster(self.client):
            await self.client.initialize()  # type: ignore[attr-defined]
        return masters(self.client)

    async def cancel(self, name: Key, token: str | bytes) -> int:
        """Removes the waiters of a token from the queue. Returns how many. Their `acquire` returns False."""
        return int(await run(_operator.cancel(name, token), self.client))

    async def break_(self, name: Key) -> int:
        """Ends every hold of a lock, and a delay. Returns how many holds. The next waiter is granted the lock
        at once, while the old holder continues until it notices."""
        return int(await run(_operator.break_(name), self.client))


@checking("dlock.asyncio.fenced")
async def fenced(client: AsyncClient, gate: Key, fence: int | None, *command: Any) -> Any:
    """Runs a command on the server of ``client``, and raises the gate, a key there, to the fence, in one
    step; returns the reply. For data on another server than that of the lock, which needs the module:
    ``await dlock.asyncio.fenced(store, "{invoice}:gate", lock.fence, "SET", "{invoice}:total", 42)``. Raises
    `StaleFenceError`, and runs nothing, if the gate has seen a greater fence; `LockError` if the fence is
    None, as without a hold. Use one gate for each lock."""
    check_client(client, "dlock.asyncio.fenced", is_async=True)
    return await run(_protocol.fenced(gate, fence, command), client)


public("dlock.asyncio", Leader, Lock, Locks, Lost, Operator, Redlock)
