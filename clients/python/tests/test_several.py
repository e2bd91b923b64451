"""Several locks, paths, elections, and the commands for operators, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import threading

import pytest
from conftest import LIMIT, patient_async_client, patient_client, until

import dlock
import dlock.asyncio


class Kind:
    """The module for threads or for asyncio, behind one interface."""

    def __init__(self, locks, server):
        self.locks = locks
        self.module = dlock if locks.loop is None else dlock.asyncio
        self.client = locks.client(server.url)

    def run(self, function, *args, **options):
        """Calls a function, or awaits it in the event loop."""
        if self.locks.loop is None:
            return function(*args, **options)

        async def call():
            outcome = function(*args, **options)
            if hasattr(outcome, "__aiter__"):
                return [each async for each in outcome]
            return await outcome if hasattr(outcome, "__await__") else outcome

        return self.locks.loop.run(call())


@pytest.fixture
def kind(locks, server):
    return Kind(locks, server)


def held(r):
    return sorted(key.decode() for key in r.scan_iter())


def test_several_locks_are_acquired_all_or_none(r, kind):
    several = kind.run(kind.module.lock_all, kind.client, ["b", "a", "b"], thread_local=False)
    assert kind.run(several.acquire)
    assert held(r) == ["a", "b"]
    assert [lock.name for lock in several.locks] == ["a", "b"]
    kind.run(several.release)
    assert held(r) == []
    r.execute_command("DLOCK.ACQUIRE", "b", "holder", 60_000)
    assert kind.run(several.acquire, blocking=False) is False
    assert kind.run(several.acquire, blocking_timeout=0.05) is False
    assert held(r) == ["b"]


def test_several_locks_in_a_with_block(r, kind):
    several = kind.run(kind.module.lock_all, kind.client, ["a", "b"], blocking_timeout=0.05)

    def sync():
        with several:
            assert held(r) == ["a", "b"]

    async def tasks():
        async with several:
            assert held(r) == ["a", "b"]

    kind.run(sync if kind.locks.loop is None else tasks)
    assert held(r) == []
    r.execute_command("DLOCK.ACQUIRE", "b", "holder", 60_000, "LABEL", "nightly")
    with pytest.raises(dlock.NotAcquiredError, match="nightly"):
        kind.run(sync if kind.locks.loop is None else tasks)
    assert held(r) == ["b"]


def test_a_wait_for_several_locks_ends_when_one_is_lost(r, kind):
    r.execute_command("DLOCK.ACQUIRE", "b", "holder", 60_000)
    several = kind.run(kind.module.lock_all, kind.client, ["a", "b"], timeout=60, thread_local=False)

    def lose():
        until("it waits", lambda: r.execute_command("DLOCK.WAITERS", "b"))
        several.locks[0].local.hold.valid_until = 0
        several.locks[0].local.hold.is_lost()

    helper = threading.Thread(target=lose)
    helper.start()
    with pytest.raises(dlock.LockNotOwnedError):
        kind.run(several.acquire)
    helper.join()
    until("nothing is left", lambda: held(r) == ["b"] and not r.execute_command("DLOCK.WAITERS", "b"))


def test_several_locks_of_a_quorum(members):
    module = dlock if members.locks.loop is None else dlock.asyncio
    kind = Kind.__new__(Kind)
    kind.locks = members.locks
    several = kind.run(module.lock_all, members.quorum, ["foo", "bar"], thread_local=False)
    assert kind.run(several.acquire)
    members.until_held()
    kind.run(several.release)
    members.until_free()


def test_at_least_does_not_close_locks_that_were_not_acquired_together(r, kind):
    """Their caller has never had them."""
    several = kind.run(kind.module.lock_all, kind.client, ["a", "b"], at_least=60, thread_local=False)
    path = kind.run(kind.module.lock_path, kind.client, "c/d", at_least=60, thread_local=False)
    r.execute_command("DLOCK.ACQUIRE", "b", "holder", 60_000)
    r.execute_command("DLOCK.ACQUIRE", "{c}/d", "holder", 60_000)
    for each in several, path:
        assert kind.run(each.acquire, blocking=False) is False
        assert kind.run(each.acquire, blocking_timeout=0.05) is False
        assert held(r) == ["b", "{c}/d"]
    r.execute_command("DLOCK.RELEASE", "b", "holder")
    assert kind.run(several.acquire)
    kind.run(several.release)
    assert r.execute_command("DLOCK.ACQUIRE", "a", "other", 1000) is None


def test_at_least_does_not_close_the_locks_of_a_wait_that_fails(r, kind):
    r.execute_command("DLOCK.ACQUIRE", "b", "holder", 60_000)
    several = kind.run(
        kind.module.lock_all, kind.client, ["a", "b"], timeout=60, at_least=60, thread_local=False
    )
    before = r.config_get("dlock.max-waiters-per-key")
    r.config_set("dlock.max-waiters-per-key", 0)
    try:
        with pytest.raises(dlock.QueueFullError):
            kind.run(several.acquire)
    finally:
        r.config_set("dlock.max-waiters-per-key", *before.values())
    until("a is released", lambda: held(r) == ["b"])


def test_a_reentrant_hold_keeps_its_at_least_when_other_locks_are_not_acquired(r, kind):
    several = kind.run(
        kind.module.lock_all, kind.client, ["a", "b"], at_least=60, reentrant=True, blocking=False
    )
    outer = several.locks[0]
    r.execute_command("DLOCK.ACQUIRE", "b", "holder", 60_000)

    def sync():
        with outer:
            assert several.acquire() is False
            assert outer.local.hold.depth == 1

    async def tasks():
        async with outer:
            assert await several.acquire() is False
            assert outer.local.hold.depth == 1

    kind.run(sync if kind.locks.loop is None else tasks)
    assert r.execute_command("DLOCK.ACQUIRE", "a", "other", 1000) is None


def test_at_least_does_not_close_locks_of_a_quorum_that_were_not_acquired_together(members):
    module = dlock if members.locks.loop is None else dlock.asyncio
    kind = Kind.__new__(Kind)
    kind.locks = members.locks
    several = kind.run(module.lock_all, members.quorum, ["bar", "foo"], at_least=60, thread_local=False)
    for client in members.direct:
        client.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    assert kind.run(several.acquire, blocking=False) is False
    assert kind.run(several.acquire, blocking_timeout=0.05) is False
    for client in members.direct:
        until("the lock is open", lambda: not client.exists("bar"))  # noqa: B023


def test_a_path_excludes_what_is_above_and_below(r, kind):
    def path(text, **options):
        return kind.run(
            kind.module.lock_path, kind.client, text, thread_local=False, blocking=False, **options
        )

    one = path("a/b/c")
    assert kind.run(one.acquire)
    assert held(r) == ["{a}", "{a}/b", "{a}/b/c"]
    for other, is_free in ("a/b", False), ("a", False), ("a/b/c", False), ("a/b/c/d", False), ("a/b/d", True):
        found = path(other)
        assert kind.run(found.acquire) is is_free, other
        if is_free:
            kind.run(found.release)
    sharer = path("a/b/c", shared=True)
    kind.run(one.release)
    assert kind.run(sharer.acquire) and kind.run(path("a/b/c", shared=True).acquire)


def test_the_options_that_keep_a_path_closed_are_not_those_of_its_ancestors(r, kind):
    def path(text, **options):
        return kind.run(
            kind.module.lock_path, kind.client, text, thread_local=False, blocking=False, **options
        )

    one = path("a/b", at_least=60, delay=60)
    assert [lock._options.delay for lock in one.locks] == [0, 60_000]
    assert kind.run(one.acquire)
    kind.run(one.release)
    assert not kind.run(path("a/b").acquire)
    assert kind.run(path("a/c").acquire)


@pytest.mark.parametrize("path", ["", "a//b", "/a", "a/", "{a}/b", "a/b}"])
def test_a_text_that_is_no_path_is_an_error(r, path):
    with pytest.raises(ValueError, match="is no path"):
        dlock.lock_path(r, path)


@pytest.mark.parametrize("path", ["a", "a/b"])
def test_a_path_has_no_permits(r, kind, path):
    """With permits, several clients would hold the path at once."""
    with pytest.raises(ValueError, match="a path has no permits: it is exclusive or shared"):
        kind.run(kind.module.lock_path, kind.client, path, permits=2)
    kind.run(kind.module.lock_path, kind.client, path, permits=None)


def test_no_names_and_a_single_text_are_errors(r):
    with pytest.raises(ValueError, match="at least one"):
        dlock.lock_all(r, [])
    with pytest.raises(TypeError, match="list of names"):
        dlock.lock_all(r, "foo")


def test_a_stale_fence_is_refused(r, kind):
    assert kind.run(kind.module.fenced, kind.client, "gate", 20, "SET", "data", "new") in (b"OK", "OK", True)
    with pytest.raises(dlock.StaleFenceError) as raised:
        kind.run(kind.module.fenced, kind.client, "gate", 10, "SET", "data", "old")
    assert raised.value.greatest == 20
    assert r.get("data") == b"new"


def test_a_write_with_the_fence_of_no_hold_is_refused(r, kind):
    lock = kind.run(kind.module.Lock, kind.client, "foo")
    with pytest.raises(dlock.LockError, match="the lock is not held"):
        kind.run(kind.module.fenced, kind.client, "gate", lock.fence, "SET", "data", "new")
    assert not r.exists("data")


def test_an_operator_reads_and_ends_holds_and_waits(r, kind):
    fence = r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000, "LABEL", "nightly")
    r.execute_command("DLOCK.ACQUIRE", "foo", "waiter", 60_000, "QUEUE", 60_000, "LABEL", "next")
    operator = kind.run(kind.module.Operator, kind.client)
    seen = kind.run(operator.inspect, "foo")
    assert (seen.mode, seen.fence, seen.holders_count, seen.waiters, seen.delay) == (
        "exclusive",
        fence,
        1,
        1,
        0,
    )
    [holder] = seen.holders
    assert (holder.token, holder.label, holder.ephemeral, holder.count) == (b"holder", "nightly", False, 1)
    assert 50 < holder.pttl <= 60 and holder.addr.startswith("127.0.0.1:")
    [waiter] = kind.run(operator.waiters, "foo")
    assert (waiter.token, waiter.label, waiter.client, waiter.mode) == (b"waiter", "next", -1, "exclusive")
    assert 50 < waiter.left <= 60
    listed = list(kind.run(operator.list))
    assert [(each.key, each.holders, each.waiters, each.label) for each in listed] == [
        (b"foo", 1, 1, "nightly")
    ]
    assert list(kind.run(operator.list, "other*")) == []
    assert [each.key for each in kind.run(operator.list, "f*", waited=True)] == [b"foo"]
    assert kind.run(operator.cancel, "foo", "waiter") == 1
    assert kind.run(operator.break_, "foo") == 1
    incident = kind.run(operator.log, 1, "foo")[0]
    assert (incident.what, incident.key, incident.fence) == ("broken", b"foo", fence)
    assert incident.held is not None and incident.waited is None
    assert kind.run(operator.inspect, "foo") is None


def test_a_leader_campaigns_through_an_outage_and_resigns(own_server):
    with patient_client(own_server) as r:
        r.execute_command("DLOCK.ACQUIRE", "leader", "other", 600_000)
        leader = dlock.Leader(patient_client(own_server), "leader", timeout=60)
        assert leader.current().token == b"other"
        assert leader.campaign(0.05) is False
        r.execute_command("CONFIG", "SET", "maxmemory", "1")
        r.execute_command("DLOCK.RELEASE", "leader", "other")
        threading.Timer(0.2, r.execute_command, ["CONFIG", "SET", "maxmemory", "0"]).start()
        assert leader.campaign(LIMIT)
        assert leader.current().fence == leader.lock.fence
        leader.resign()
        assert leader.current() is None


def test_a_leader_that_loses_its_lead_leads_again(r, server):
    fences = []

    def work(lock):
        fences.append(lock.fence)
        if len(fences) == 1:
            r.execute_command("DLOCK.BREAK", "leader")
            lock.extend(60)  # raises LockNotOwnedError
        return "done"

    leader = dlock.Leader(patient_client(server), "leader", timeout=60)
    assert leader.lead(work) == "done"
    assert len(fences) == 2 and fences[1] > fences[0]
    assert not r.exists("leader")


def test_the_work_of_a_leader_raises_and_it_resigns(r, server):
    def work(lock):
        raise KeyError("broken")

    with pytest.raises(KeyError):
        dlock.Leader(patient_client(server), "leader", timeout=60).lead(work)
    assert not r.exists("leader")


def test_an_asyncio_leader_is_cancelled_when_it_loses_its_lead(r, server):
    async def main():
        client = patient_async_client(server)
        leader = dlock.asyncio.Leader(client, "leader", timeout=60)
        fences, cancelled = [], []

        async def work(lock):
            fences.append(lock.fence)
            if len(fences) == 2:
                return "done"
            lock.local.hold.lose("broken")
            try:
                await asyncio.sleep(LIMIT)
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        assert await leader.lead(work) == "done"
        assert cancelled and fences[1] > fences[0]
        await client.connection_pool.disconnect()

    asyncio.run(asyncio.wait_for(main(), LIMIT))
    assert not r.exists("leader")


@pytest.mark.parametrize("option", ["shared", "permits"])
def test_an_option_with_which_several_would_lead_is_refused(r, kind, option):
    with pytest.raises(ValueError, match=f"no {option}: several processes would lead at once"):
        kind.run(kind.module.Leader, kind.client, "leader", **{option: 2})
    assert kind.run(kind.module.Leader(kind.client, "leader", shared=False, permits=None).current) is None


def test_the_leaders_are_observed(r, server, monkeypatch):
    monkeypatch.setattr("dlock.lock.OBSERVE_PAUSE", 0.01)
    monkeypatch.setattr("dlock.asyncio.OBSERVE_PAUSE", 0.01)
    seen = dlock.Leader(patient_client(server), "leader").observe()
    assert next(seen) is None
    fence = r.execute_command("DLOCK.ACQUIRE", "leader", "one", 60_000)
    assert next(seen).fence == fence

    async def main():
        client = patient_async_client(server)
        async for leader in dlock.asyncio.Leader(client, "leader").observe():
            assert leader.fence == fence
            break
        await client.connection_pool.disconnect()

    asyncio.run(main())
