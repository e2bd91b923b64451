"""A program of a user that uses each public name: test_types.py checks its types. It is not run."""

from __future__ import annotations

import asyncio
from typing import Any

import redis
import redis.asyncio

import dlock
import dlock.asyncio
import dlock.otel
import dlock.testing


def use(client: redis.Redis) -> int | None:
    lock = dlock.Lock(
        client,
        "invoice:42",
        timeout=30,
        sleep=0.1,
        blocking=True,
        blocking_timeout=10,
        thread_local=False,
        shared=False,
        permits=None,
        reentrant=True,
        auto_renew=True,
        on_lost=print,
        owner="job",
        label="label",
        delay=1,
        ephemeral=False,
        at_least=1,
        max_hold=60,
        durable=(1, 0.5),
    )
    with lock as held:
        fence: int | None = held.fence
        held.extend(10, replace_ttl=True)
        held.reacquire()
        held.guard("SET", "{invoice:42}:total", 1)
        if held.lost.is_set() or held.lost.wait(0.1):
            raise RuntimeError
    if lock.acquire(blocking=False, token=b"token"):
        lock.downgrade()
        lock.upgrade(blocking_timeout=1)
        token: bytes = lock.forget()
        lock.adopt(token)
        lock.release()
    lost: dlock.Lost = lock.lost
    free: bool = lock.wait_until_free(1) and lock.locked() and lock.owned()
    print(lost, free, lock.name, lock.timeout, lock.token)
    other = client.lock("a", timeout=3, lock_class=dlock.Lock)
    other.acquire()
    several = dlock.lock_all(client, ["a", b"b"], timeout=3)
    named: dlock.Locks = several
    with named:
        print([each.fence for each in several.locks], several.is_lost())
    with dlock.lock_path(client, "a/b/c", shared=True):
        pass
    leader = dlock.Leader(client, "leader", timeout=5)
    answer: int = leader.lead(lambda lock: 42)
    current: dlock.Holder | None = leader.current()
    print(current)
    for holder in leader.observe():
        print(holder.label if holder is not None else "", answer)
    operator = dlock.Operator(client)
    found: dlock.Inspection | None = operator.inspect("a")
    if found is not None:
        print(found.holders[0].addr, found.delay)
    waiters: list[dlock.Waiter] = operator.waiters("a")
    listed: list[dlock.Listed] = list(operator.list("a*", waited=True))
    incidents: list[dlock.Incident] = operator.log(10, "a")
    print(waiters[0].left, listed[0].key, incidents[0].what, operator.cancel("a", b"t"), operator.break_("a"))
    dlock.fenced(client, "gate", 3, "SET", "a", 1)
    try:
        lock.acquire()
    except (dlock.DeadlockError, dlock.GraceError, dlock.QueueFullError, dlock.LateError):
        pass
    except dlock.NotALockError:
        pass
    except dlock.NotAcquiredError as why:
        print(why.holder)
    except (dlock.NoQuorumError, dlock.NotDurableError, dlock.StaleFenceError, dlock.LockNotOwnedError):
        pass
    except dlock.LockError:
        pass
    quorum = dlock.Quorum([client])
    with dlock.Redlock(quorum, "a", timeout=3, fenced=True) as redlock:
        print(redlock.fence)
    return fence


def in_cluster(cluster: redis.RedisCluster) -> None:
    with dlock.Lock(cluster, "a", timeout=3):
        pass
    print(list(dlock.Operator(cluster).list()))


async def use_async(client: redis.asyncio.Redis) -> None:
    async with dlock.asyncio.Lock(client, "a", timeout=3) as lock:
        fence: int | None = lock.fence
        await lock.extend(3)
        await lock.guard("SET", "a", fence or 0)
        print(await lock.lost.wait())
    if await lock.acquire(blocking_timeout=3):
        await lock.release()
    async with dlock.asyncio.lock_all(client, ["a", "b"]) as several:
        print(several.locks)
    async with dlock.asyncio.lock_path(client, "a/b"):
        pass
    leader = dlock.asyncio.Leader(client, "leader")

    async def work(lock: Any) -> str:
        return "done"

    answer: str = await leader.lead(work)
    async for holder in leader.observe():
        print(holder, answer)
    operator = dlock.asyncio.Operator(client)
    async for each in operator.list():
        print(each.key)
    print(await operator.log(), await operator.inspect("a"), await operator.waiters("a"))
    await dlock.asyncio.fenced(client, "gate", 3, "SET", "a", 1)
    async with dlock.asyncio.Redlock(dlock.Quorum([client]), "a"):
        pass


if __name__ == "__main__":
    dlock.otel.instrument()
    with dlock.testing.Server("--appendonly", "yes") as server, redis.Redis.from_url(server.url) as found:
        use(found)
    asyncio.run(use_async(redis.asyncio.Redis()))
