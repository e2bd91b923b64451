"""The capabilities over each carrier: redis-py and valkey-py, for threads and asyncio, their clients of a
cluster and of a Sentinel, both protocols, decoded responses, small pools, and other event loops."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
import redis
from conftest import LIMIT, client_class, cluster_class, patient_client, until, until_renewed_twice

import dlock
import dlock.asyncio


def play(carrier, *, is_cluster=False):
    """Uses each capability once. Returns nothing that the caller must check."""
    run = carrier.run
    other = carrier.lock(blocking_timeout=0.05)

    # The options of a hold.
    lock = carrier.lock(timeout=60, label="job", delay=1, at_least=0.001, max_hold=60, owner="me")
    assert run(lock.acquire) is True
    fence, token = lock.fence, lock.token
    assert fence and token and run(lock.owned) and run(lock.locked)
    assert run(other.acquire) is False
    run(lock.extend, 60)
    run(lock.reacquire)
    assert run(lock.guard, "SET", "{foo}:data", "1") in (True, "OK", b"OK")
    assert run(carrier.module.fenced, carrier.client, "{foo}:gate", fence, "SET", "{foo}:data", "2")
    with pytest.raises(dlock.StaleFenceError):
        run(carrier.module.fenced, carrier.client, "{foo}:gate", fence - 1, "SET", "{foo}:data", "2")

    # The error of a timeout says who holds it.
    entering = getattr(other, "__aenter__" if carrier.is_async else "__enter__")
    with pytest.raises(dlock.NotAcquiredError, match="job"):
        run(entering)

    # For operators.
    operator = run(carrier.module.Operator, carrier.client)
    assert run(operator.inspect, "foo").holders[0].label == "job"
    assert [each.key for each in run(operator.list)] == [b"foo"]
    assert run(operator.waiters, "foo") == []

    # Another object takes the hold over, and releases it.
    assert run(lock.forget) == token
    heir = carrier.lock(timeout=60)
    run(heir.adopt, token)
    run(heir.release)
    assert run(other.wait_until_free, LIMIT)

    # Modes.
    shared = carrier.lock(timeout=60, shared=True)
    assert run(shared.acquire)
    assert run(shared.upgrade, blocking_timeout=LIMIT)
    assert run(shared.downgrade)
    run(shared.release)
    permits = [carrier.lock("permits", timeout=60, permits=2) for _ in range(2)]
    for permit in permits:
        assert run(permit.acquire, blocking=False)
    for permit in permits:
        run(permit.release)

    # Several locks, which are in several slots, and a path.
    several = run(carrier.module.lock_all, carrier.client, ["a", "b", "c"], thread_local=False)
    assert run(several.acquire, blocking_timeout=LIMIT)
    assert {each.key for each in run(operator.list)} == {b"a", b"b", b"c"}
    run(several.release)
    path = run(carrier.module.lock_path, carrier.client, "a/b/c", thread_local=False)
    assert run(path.acquire, blocking_timeout=LIMIT)
    run(path.release)

    # Options that need a connection of their own.
    ephemeral = carrier.lock(timeout=60, ephemeral=True)
    assert run(ephemeral.acquire)
    run(ephemeral.release)
    with pytest.raises(dlock.NotDurableError):
        run(carrier.lock(timeout=60, durable=(9, 0.01)).acquire)

    # Election.
    leader = run(carrier.module.Leader, carrier.client, "leader", timeout=60)
    assert run(leader.campaign, LIMIT)
    assert run(leader.current).fence == leader.lock.fence
    run(leader.resign)

    # A loss, and its reason.
    reasons = []
    lost = carrier.lock(timeout=60, auto_renew=True, on_lost=reasons.append)
    assert run(lost.acquire)
    until("an operator breaks the lock", lambda: run(operator.break_, "foo"))
    until("the loss is noticed", lambda: reasons)
    assert "broke" in reasons[0]
    with pytest.raises(dlock.LockNotOwnedError):
        run(lost.release)
    assert any(each.what == "broken" for each in run(operator.log, 1000))

    # A wait ends with the release.
    holder, waiter = carrier.lock(timeout=60), carrier.lock(timeout=60)
    assert run(holder.acquire)
    if carrier.is_async:

        async def hand_over():
            waiting = asyncio.ensure_future(waiter.acquire(blocking_timeout=LIMIT))
            while not await operator.waiters("foo"):
                await asyncio.sleep(0.01)
            await holder.release()
            return await waiting

        assert run(hand_over)
    else:
        outcomes = []
        thread = threading.Thread(target=lambda: outcomes.append(waiter.acquire(blocking_timeout=LIMIT)))
        thread.start()
        until("the client waits", lambda: operator.waiters("foo"))
        holder.release()
        thread.join(LIMIT)
        assert outcomes == [True]
    run(waiter.release)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decodes", [False, True])
def test_every_capability_works_with_each_protocol(server, carrier, protocol, decodes):
    kind = client_class(carrier.library, is_async=carrier.is_async)
    options = dict(protocol=protocol, decode_responses=decodes, socket_timeout=LIMIT)
    carrier.connect(lambda: kind.from_url(server.url, **options))
    play(carrier)


def test_every_capability_works_over_a_pool_of_one(server, carrier):
    pool = carrier.package("connection").BlockingConnectionPool
    kind = client_class(carrier.library, is_async=carrier.is_async)
    carrier.connect(lambda: kind(connection_pool=pool.from_url(server.url, max_connections=1, timeout=LIMIT)))
    play(carrier)


@pytest.mark.parametrize("decodes", [False, True])
def test_every_capability_works_in_a_cluster(cluster, carrier, decodes):
    for node in cluster:
        with patient_client(node) as client:
            client.flushall()
    kind = cluster_class(carrier.library, is_async=carrier.is_async)
    carrier.connect(lambda: kind.from_url(cluster[0].url, decode_responses=decodes, socket_timeout=LIMIT))
    play(carrier, is_cluster=True)


def test_every_capability_works_behind_sentinel(sentinel, carrier):
    port, master = sentinel
    sentinels = carrier.package("sentinel").Sentinel
    carrier.connect(lambda: sentinels([("127.0.0.1", port)]).master_for("main", socket_timeout=LIMIT))
    play(carrier)
    renewed = carrier.lock(timeout=60, auto_renew=True)
    carrier.run(renewed.acquire)
    with patient_client(master) as client:
        until_renewed_twice(client, renewed)
    carrier.run(renewed.release)


CONTENDING = """
import dlock, gevent, redis, sys
client = redis.Redis.from_url(sys.argv[1])
inside, most, done = 0, 0, []

def work(number):
    global inside, most
    # Renewed, by a thread of dlock, which is a greenlet here.
    with dlock.Lock(client, "foo", timeout=3, auto_renew=True, blocking_timeout=60):
        inside += 1
        most = max(most, inside)
        gevent.sleep(4 if number == 0 else 0.01)
        inside -= 1
        done.append(number)

gevent.joinall([gevent.spawn(work, number) for number in range(20)], raise_error=True)
assert (most, len(done)) == (1, 20), (most, done)
"""


def test_greenlets_of_gevent_wait_for_each_other(server):
    pytest.importorskip("gevent")
    program = "from gevent import monkey; monkey.patch_all()\n" + CONTENDING
    subprocess.run([sys.executable, "-c", program, server.url], check=True, timeout=4 * LIMIT)


async def contend(url, sleep, start_all):
    """Tasks contend for a lock, and one of them is cancelled as it waits."""
    async with redis.asyncio.Redis.from_url(url, socket_timeout=LIMIT) as client:
        inside, done = [], []

        async def work():
            async with dlock.asyncio.Lock(client, "foo", timeout=60, blocking_timeout=LIMIT):
                inside.append(1)
                assert len(inside) == 1
                await sleep(0.001)
                inside.pop()
                done.append(1)

        await start_all([work] * 20)
        assert len(done) == 20


def test_tasks_of_uvloop_wait_for_each_other(server):
    uvloop = pytest.importorskip("uvloop")

    async def start_all(functions):
        await asyncio.gather(*(function() for function in functions))

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(contend(server.url, asyncio.sleep, start_all))
    finally:
        loop.close()


def test_tasks_of_anyio_wait_for_each_other_and_are_cancelled(server, r):
    anyio = pytest.importorskip("anyio")

    async def start_all(functions):
        async with anyio.create_task_group() as group:
            for function in functions:
                group.start_soon(function)

    async def cancelled():
        """A cancel scope of anyio cancels a task again and again until it ends."""
        r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
        async with redis.asyncio.Redis.from_url(server.url, socket_timeout=LIMIT) as client:
            with anyio.move_on_after(0.1):
                await dlock.asyncio.Lock(client, "foo", timeout=60).acquire()
                raise AssertionError("the lock is taken")
            assert await dlock.asyncio.Lock(client, "bar", timeout=60).acquire()

    anyio.run(contend, server.url, anyio.sleep, start_all)
    anyio.run(cancelled)
    until("no waiter is left", lambda: not r.execute_command("DLOCK.WAITERS", "foo"))
    assert r.execute_command("DLOCK.RELEASE", "foo", "holder") == 1
