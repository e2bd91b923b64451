"""An acquire returns False only if another client has the lock. It raises an error if no majority could vote,
or if a majority always granted the lock too late: after the end of the lease. A single server is a majority
by itself."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from conftest import LIMIT, calls, patient_async_client, set_patience, until

import dlock
import dlock.asyncio
from dlock._protocol import fresh_token


@pytest.mark.parametrize("options", [{"blocking": False}, {"blocking_timeout": 0.2}], ids=["try", "wait"])
def test_an_acquire_raises_when_a_majority_is_down(members, options):
    for proxy in members.proxies[:2]:
        proxy.refuse = True
    with pytest.raises(dlock.NoQuorumError) as caught:
        members.lock(timeout=10).acquire(**options)
    # The message names each member.
    for proxy in members.proxies:
        assert proxy.url.removeprefix("redis://") in str(caught.value)
    members.until_free()


class LeaderSeen:
    """Asks for the leader, over the quorum of a fixture `members`."""

    def __init__(self, members):
        self.loop = members.locks.loop
        module = dlock if self.loop is None else dlock.asyncio
        self.leader = self._call(module.Leader, members.quorum, "foo")
        self.leaders = self._call(self.leader.observe)

    def current(self):
        return self._call(self.leader.current)

    def next(self):
        return self._call(self.leaders.__next__ if self.loop is None else self.leaders.__anext__)

    def _call(self, function, *args):
        if self.loop is None:
            return function(*args)

        async def call():
            result = function(*args)
            return await result if asyncio.iscoroutine(result) or hasattr(result, "__await__") else result

        return self.loop.run(call())


@pytest.mark.parametrize("how", ["current", "next"])
def test_the_leader_is_unknown_when_a_majority_is_down(members, how):
    for proxy in members.proxies[:2]:
        proxy.refuse = True
    with pytest.raises(dlock.NoQuorumError) as caught:
        getattr(LeaderSeen(members), how)()
    for proxy in members.proxies[:2]:
        assert proxy.url.removeprefix("redis://") in str(caught.value)


def test_a_leader_is_one_that_a_majority_has(members, monkeypatch):
    monkeypatch.setattr("dlock.lock.OBSERVE_PAUSE", 0.01)
    monkeypatch.setattr("dlock.asyncio.OBSERVE_PAUSE", 0.01)
    seen = LeaderSeen(members)
    assert seen.next() is None
    for client, token in zip(members.direct, ["one", "two", "two"]):
        client.execute_command("DLOCK.ACQUIRE", "foo", token, 60_000)
    assert seen.next().token == seen.current().token == b"two"
    for client, token in zip(members.direct, ["one", "two"]):
        client.execute_command("DLOCK.RELEASE", "foo", token)
    assert seen.current() is None


def test_a_leader_is_observed_once_although_each_member_has_its_own_fence(members, monkeypatch):
    monkeypatch.setattr("dlock.lock.OBSERVE_PAUSE", 0.01)
    monkeypatch.setattr("dlock.asyncio.OBSERVE_PAUSE", 0.01)
    seen = LeaderSeen(members)
    for client in members.direct[:2]:
        client.execute_command("DLOCK.ACQUIRE", "foo", "one", 60_000)
    assert seen.next().token == b"one"
    members.direct[0].execute_command("DLOCK.RELEASE", "foo", "one")
    members.direct[2].execute_command("DLOCK.ACQUIRE", "foo", "one", 60_000)
    members.direct[1].execute_command("DLOCK.RELEASE", "foo", "one")
    members.direct[0].execute_command("DLOCK.ACQUIRE", "foo", "one", 60_000)
    looks = calls(members.direct[0], "dlock.inspect")
    with ThreadPoolExecutor(1) as executor:
        following = executor.submit(seen.next)
        until("it looks twice", lambda: calls(members.direct[0], "dlock.inspect") >= looks + 2)
        for client in members.direct:
            client.execute_command("DLOCK.RELEASE", "foo", "one")
        assert following.result(LIMIT) is None


def test_an_acquire_raises_when_a_majority_cannot_grant(members):
    for client in members.direct[:2]:
        client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(dlock.NoQuorumError, match="NOREPLICAS"):
            members.lock(timeout=10).acquire(blocking_timeout=0.2)
    finally:
        for client in members.direct[:2]:
            client.config_set("min-replicas-to-write", 0)


def test_an_acquire_raises_when_a_majority_is_in_its_grace_period(members):
    for client in members.direct[:2]:
        client.config_set("dlock.restart-grace", 60_000)
        # A FLUSHALL that ends a hold begins a grace period.
        client.execute_command("DLOCK.ACQUIRE", "other", "token", 60_000)
        client.flushall()
    try:
        with pytest.raises(dlock.NoQuorumError, match="GRACE"):
            members.lock(timeout=10).acquire(blocking_timeout=0.2)
    finally:
        for client in members.direct[:2]:
            client.config_set("dlock.restart-grace", 0)


def test_an_acquire_raises_at_once_when_a_majority_denies_permission(members):
    urls = [proxy.url for proxy in members.proxies]
    for member in 1, 2:
        rights = "on", ">secret", "~*", "&*", "+@all", "-dlock.acquire"
        members.direct[member].execute_command("ACL", "SETUSER", "weak", *rights)
        urls[member] = urls[member].replace("//", "//weak:secret@")
    try:
        # The acquire has no time limit.
        with pytest.raises(dlock.NoQuorumError, match="permission"):
            members.lock(quorum=members.make_quorum(urls), timeout=10).acquire()
    finally:
        for member in 1, 2:
            members.direct[member].acl_deluser("weak")


@pytest.mark.parametrize("fenced", [False, True], ids=["plain", "fenced"])
@pytest.mark.parametrize("options", [{"blocking": False}, {}], ids=["try", "wait"])
@pytest.mark.usefixtures("slow_answers")
def test_an_acquire_raises_when_a_majority_always_grants_after_the_lease(members, options, fenced):
    # Connects the client. A busy machine may confirm the release later.
    with contextlib.suppress(dlock.NoQuorumError), members.lock(timeout=10):
        pass
    members.until_free()
    for proxy in members.proxies:
        proxy.delay = 0.15
    with pytest.raises(dlock.LateError):
        members.lock(timeout=0.1, fenced=fenced).acquire(**options)
    members.until_free()


@pytest.mark.parametrize("has_token", [False, True], ids=["without token", "with token"])
@pytest.mark.parametrize("place", [0, 1], ids=["first queue", "second queue"])
def test_a_wait_in_the_queue_raises_when_the_other_members_cannot_grant(members, place, has_token):
    """Another client holds the lock at the member where this client queues. The other members cannot vote."""
    # Tells the client the run ids of the members, which decide the order of the queues.
    with members.lock(timeout=10):
        pass
    members.until_free()
    # The token is unique, because the client may repeat its CANCEL in the background during the next test.
    token = fresh_token() if has_token else None
    others = members.quorum.order(b"foo")
    holding_member = others.pop(place)
    members.direct[holding_member].execute_command("DLOCK.ACQUIRE", "foo", "another", 60_000)
    for member in others:
        members.direct[member].config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(dlock.NoQuorumError, match="NOREPLICAS"):
            members.lock(timeout=10).acquire(blocking_timeout=0.5, token=token)
    finally:
        for member in others:
            members.direct[member].config_set("min-replicas-to-write", 0)


@pytest.mark.parametrize("token", [None, "mine"], ids=["without token", "with token"])
def test_a_wait_in_the_queue_raises_when_the_other_members_are_down(members, token):
    """The acquire raises even if an earlier wait of this client had the answers of a majority."""
    for client in members.direct:
        client.execute_command("DLOCK.ACQUIRE", "foo", "another", 60_000)
    lock = members.lock(timeout=10, thread_local=False)
    # The client finds the lock taken, so its next wait begins in the queue.
    assert lock.acquire(blocking_timeout=0.1) is False
    for member in members.quorum.order(b"foo")[1:]:
        members.proxies[member].refuse = True
        members.proxies[member].drop()
    with pytest.raises(dlock.NoQuorumError):
        lock.acquire(blocking_timeout=0.1, token=token)


@pytest.mark.parametrize("token", [None, "mine"], ids=["without token", "with token"])
def test_a_wait_for_a_lock_that_another_client_has_returns_false(members, token):
    with members.lock(timeout=60):
        members.until_held()
        assert (
            members.lock(timeout=10, thread_local=False).acquire(blocking_timeout=0.3, token=token) is False
        )


def test_a_wait_at_a_single_server_raises_when_its_last_request_has_no_answer(r, get_proxied_lock, proxy):
    r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    lock = get_proxied_lock(timeout=10, socket_timeout=1, thread_local=False)
    outcome = []

    def wait():
        try:
            outcome.append(lock.acquire(blocking_timeout=5))
        except redis.RedisError as why:
            outcome.append(why)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until("a client waits", lambda: r.execute_command("DLOCK.WAITERS", "foo"))
    proxy.silent = True
    waiting.join(30)
    assert isinstance(outcome[0], (redis.ConnectionError, redis.TimeoutError))


def test_a_busy_event_loop_makes_no_release_fail(masters, monkeypatch):
    """The time limit of a release counts from when its requests are sent, and an answer that has arrived
    counts even if the loop was too busy to read it."""
    set_patience(monkeypatch, 0.25)

    async def main():
        members = [patient_async_client(master) for master in masters]
        lock = dlock.asyncio.Redlock(dlock.Quorum(members), "foo", timeout=60)
        for turns in range(10):
            await lock.acquire()
            release = asyncio.create_task(lock.release())
            for _ in range(turns):
                await asyncio.sleep(0)
            # Blocks the loop, as work of the program can.
            time.sleep(0.4)
            await release
        for member in members:
            await member.connection_pool.disconnect()

    asyncio.run(asyncio.wait_for(main(), LIMIT))
