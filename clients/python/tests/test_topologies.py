"""Locks over clusters, Sentinel, pools of one connection, RESP2 and RESP3, and names of any bytes."""

from __future__ import annotations

import asyncio

import pytest
import redis
import redis.asyncio
import redis.sentinel
from conftest import LIMIT, cluster_class, kill_master, patient_client, stopped, until

import dlock
import dlock.asyncio


def acquire_in_turn(client, name, **options):
    """Two `Lock` objects of the client acquire the same lock, one after the other."""
    first, second = dlock.Lock(client, name, **options), dlock.Lock(client, name, **options)
    with first:
        assert first.owned()
        assert not second.acquire(blocking=False)
        assert second.acquire(blocking_timeout=0.2) is False
    assert second.acquire(blocking_timeout=LIMIT)
    second.release()


async def acquire_in_turn_async(client, name, **options):
    first, second = (dlock.asyncio.Lock(client, name, **options) for _ in range(2))
    async with first:
        assert await first.owned()
        waiting = asyncio.create_task(second.acquire(blocking_timeout=LIMIT))
        await asyncio.wait([waiting], timeout=0.1)
        assert not waiting.done()
    assert await waiting
    await second.release()


@pytest.mark.parametrize("library", ["redis", "valkey"])
def test_a_cluster_client_acquires_and_hands_over_a_lock(cluster, library):
    client = cluster_class(library).from_url(cluster[0].url)
    for name in ["a", "b", "c", "{tag}:d"]:
        acquire_in_turn(client, name, timeout=10)
        acquire_in_turn(client, name)
    client.close()


@pytest.mark.parametrize("library", ["redis", "valkey"])
def test_an_asyncio_cluster_client_acquires_and_hands_over_a_lock(cluster, library):
    async def main():
        client = cluster_class(library, is_async=True).from_url(cluster[0].url)
        for name in ["a", "b", "c", "{tag}:d"]:
            await acquire_in_turn_async(client, name, timeout=10)
        await getattr(client, "aclose", client.close)()

    asyncio.run(asyncio.wait_for(main(), 2 * LIMIT))


def until_renewed_twice(r, lock):
    def left():
        """Returns the fraction of the lease that is left. It falls to 2/3. Then a renewal sets it to 1."""
        return r.execute_command("DLOCK.PTTL", lock.name) / 1000 / lock.timeout

    for _ in range(2):
        until("the lease goes down", lambda: 0 < left() < 5 / 6)
        until("the hold is renewed", lambda: left() > 5 / 6)


def test_holds_at_other_nodes_survive_a_node_that_hangs(cluster):
    client = redis.RedisCluster.from_url(cluster[0].url)
    # The key "a" is at the last node, "b" and "c" at the first two.
    others = [patient_client(node) for node in cluster[:2]]
    lock_a, *locks = [dlock.Lock(client, name, timeout=12, auto_renew=True) for name in "abc"]
    for lock in [lock_a, *locks]:
        lock.acquire()
    with stopped(cluster[2]):
        until("one hold is lost", lock_a.lost.is_set)
        for lock, other in zip(locks, others):
            until_renewed_twice(other, lock)
    for lock in locks:
        lock.release()
    client.close()


@pytest.mark.parametrize("library", ["redis", "valkey"])
def test_asyncio_holds_at_other_nodes_survive_a_node_that_hangs(cluster, library):
    # The key "a" is at the last node, "b" and "c" at the first two.
    others = [patient_client(node) for node in cluster[:2]]

    async def main():
        client = cluster_class(library, is_async=True).from_url(cluster[0].url)
        lock_a, *locks = [dlock.asyncio.Lock(client, name, timeout=12, auto_renew=True) for name in "abc"]
        for lock in [lock_a, *locks]:
            await lock.acquire()
        with stopped(cluster[2]):
            assert await lock_a.lost.wait()
            for lock, other in zip(locks, others):
                await asyncio.get_running_loop().run_in_executor(None, until_renewed_twice, other, lock)
        for lock in locks:
            await lock.release()
        await getattr(client, "aclose", client.close)()

    asyncio.run(asyncio.wait_for(main(), 4 * LIMIT))


def test_asyncio_renewals_reach_their_nodes_while_the_commands_of_the_client_hang(cluster):
    class Cluster(redis.asyncio.RedisCluster):
        """A client whose commands never end while `hangs` is set. It names a wrong node for each key, as if
        the slots had moved."""

        hangs = False

        async def execute_command(self, *args, **options):
            if self.hangs:
                await asyncio.Event().wait()
            return await super().execute_command(*args, **options)

        def get_node_from_key(self, key, replica=False):
            return self.get_node("127.0.0.1", cluster[2].port)

    # The keys "b" and "c" are at the first two nodes.
    others = [patient_client(node) for node in cluster[:2]]

    async def main():
        client = Cluster.from_url(cluster[0].url)
        locks = [dlock.asyncio.Lock(client, name, timeout=12, auto_renew=True) for name in "bc"]
        for lock in locks:
            await lock.acquire()
        client.hangs = True

        def until_all_renewed_twice():
            for lock, other in zip(locks, others):
                until_renewed_twice(other, lock)

        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, until_all_renewed_twice)
        # Stops the wrong node.
        with stopped(cluster[2]):
            await loop.run_in_executor(None, until_all_renewed_twice)
        client.hangs = False
        for lock in locks:
            await lock.release()
        await getattr(client, "aclose", client.close)()

    asyncio.run(asyncio.wait_for(main(), 2 * LIMIT))


def test_a_lock_behind_sentinel_works_after_a_failover(sentinel):
    port, master = sentinel
    client = redis.sentinel.Sentinel([("127.0.0.1", port)]).master_for("main", socket_timeout=1)
    acquire_in_turn(client, "foo", timeout=10)
    lock = dlock.Lock(client, "foo", timeout=3, auto_renew=True)
    lock.acquire()
    with redis.Redis(port=port) as watcher:
        kill_master(watcher, master)

    def owned():
        try:
            return lock.owned()
        except redis.RedisError:
            return None

    # Both answers are right, because the failover may lose the hold.
    until("the replica has taken over", lambda: owned() is not None)
    other = dlock.Lock(client, "bar", timeout=10)

    def acquired():
        try:
            return other.acquire(blocking_timeout=1)
        except redis.RedisError:
            return False

    until("locks are granted", acquired)
    other.release()


def test_a_lock_works_over_a_pool_with_one_connection(server):
    pool = redis.BlockingConnectionPool.from_url(server.url, max_connections=1, timeout=5)
    client = redis.Redis(connection_pool=pool)
    acquire_in_turn(client, "foo", timeout=10)
    acquire_in_turn(client, "foo")


def test_an_asyncio_lock_works_over_a_pool_with_one_connection(server):
    async def main():
        pool = redis.asyncio.BlockingConnectionPool.from_url(server.url, max_connections=1, timeout=5)
        await acquire_in_turn_async(redis.asyncio.Redis(connection_pool=pool), "foo", timeout=10)

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_names_and_tokens_may_have_any_bytes(r):
    lock = dlock.Lock(r, b"\xff\x00\r\n", timeout=10)
    assert lock.acquire(token=b"\x00\xfe")
    assert lock.owned()
    lock.release()


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_lock_works_with_both_protocols(server, protocol):
    with patient_client(server, protocol=protocol, decode_responses=True) as client:
        acquire_in_turn(client, "foo", timeout=10)
