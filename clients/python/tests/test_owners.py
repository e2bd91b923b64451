"""By default, a cycle of waits between owners raises an error.

The server detects cycles by the names of owners. If a client gives up a hold that the server may still have,
it changes the name of the owner: otherwise the owner would seem to wait for itself when it waits for the lock
again."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import threading

import pytest
import redis
import redis.asyncio
from conftest import LIMIT, is_held, patient_async_client, patient_client, until
from redis.exceptions import ConnectionError

import dlock
import dlock.asyncio
from dlock._owners import of_thread
from dlock._steps import SINGLE


def waiters(r, name):
    return len(r.execute_command("DLOCK.WAITERS", name))


def release_when_waited_for(r, token):
    until("a client waits", lambda: waiters(r, "foo"))
    assert r.execute_command("DLOCK.RELEASE", "foo", token) == 1


@contextlib.contextmanager
def release_refused(r):
    """The server refuses RELEASE. Yields a function that starts a thread, which permits RELEASE once a client
    waits."""
    is_over = threading.Event()

    def permit_release():
        until("a client waits", lambda: waiters(r, "foo") or is_over.is_set())
        r.execute_command("ACL", "SETUSER", "default", "+dlock.release")

    thread = threading.Thread(target=permit_release)
    r.execute_command("ACL", "SETUSER", "default", "-dlock.release")
    try:
        yield thread.start
    finally:
        is_over.set()
        if thread.ident is not None:
            thread.join()
        r.execute_command("ACL", "SETUSER", "default", "+dlock.release")


def acquire_in_opposite_orders(make):
    """Runs two threads, which acquire two locks in opposite orders. Returns their outcomes."""
    outcomes, barrier = [], threading.Barrier(2)

    def work(first, second):
        one, two = make(first), make(second)
        with one:
            barrier.wait(LIMIT)
            try:
                with two:
                    outcomes.append("both")
            except dlock.DeadlockError:
                outcomes.append("deadlock")

    threads = [threading.Thread(target=work, args=names) for names in ("ab", "ba")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT)
    return sorted(outcomes)


@pytest.mark.parametrize("options", [{}, {"timeout": 300}], ids=["renewed", "timeout"])
def test_two_threads_that_acquire_two_locks_in_opposite_orders_get_a_deadlock(server, r, options):
    def make(name):
        return dlock.Lock(patient_client(server), name, **options)

    assert acquire_in_opposite_orders(make) == ["both", "deadlock"]


def test_two_threads_that_acquire_two_locks_in_opposite_orders_get_a_deadlock_from_a_quorum(masters):
    quorum = dlock.Quorum([patient_client(master) for master in masters])

    def make(name):
        return dlock.Redlock(quorum, name, timeout=300)

    assert acquire_in_opposite_orders(make) == ["both", "deadlock"]


@pytest.mark.parametrize("kind", ["lock", "redlock"])
def test_two_tasks_that_acquire_two_locks_in_opposite_orders_get_a_deadlock(server, r, kind):
    async def main():
        client = patient_async_client(server)
        acquired = [asyncio.Event(), asyncio.Event()]

        def make(name):
            if kind == "lock":
                return dlock.asyncio.Lock(client, name)
            return dlock.asyncio.Redlock(dlock.Quorum([client]), name)

        async def work(number, first, second):
            async with make(first):
                acquired[number].set()
                await acquired[1 - number].wait()
                try:
                    async with make(second):
                        return "both"
                except dlock.DeadlockError:
                    return "deadlock"

        found = await asyncio.gather(work(0, "a", "b"), work(1, "b", "a"))
        await client.connection_pool.disconnect()
        return sorted(found)

    assert asyncio.run(asyncio.wait_for(main(), 2 * LIMIT)) == ["both", "deadlock"]


def test_a_thread_that_waits_for_its_own_lock_gets_a_deadlock(r, server):
    with dlock.Lock(r, "foo", timeout=60), pytest.raises(dlock.DeadlockError):
        dlock.Lock(r, "foo", timeout=60).acquire()
    assert waiters(r, "foo") == 0


@pytest.mark.parametrize("kind", ["lock", "redlock"])
def test_a_thread_that_waits_for_its_own_lock_with_a_limit_gets_false(r, server, kind):
    def make():
        if kind == "lock":
            return dlock.Lock(r, "foo", timeout=60)
        return dlock.Redlock(dlock.Quorum([r]), "foo", timeout=60)

    with make():
        assert make().acquire(blocking_timeout=0.2) is False
    assert waiters(r, "foo") == 0


def test_a_thread_that_waits_with_a_limit_gets_its_own_lock_after_the_lease(r, server):
    lock = dlock.Lock(r, "foo", timeout=60)
    lock.acquire()
    token = lock.local.token

    def end_lease():
        until("a client waits", lambda: waiters(r, "foo"))
        r.execute_command("DLOCK.EXTEND", "foo", token, 1)

    helper = threading.Thread(target=end_lease)
    helper.start()
    other = dlock.Lock(r, "foo", timeout=60)
    assert other.acquire(blocking_timeout=LIMIT)
    helper.join()
    other.release()


@pytest.mark.parametrize(
    "options", [{"thread_local": False}, {"owner": ""}], ids=["shared object", "no owner"]
)
def test_no_owner_is_sent_for_a_shared_object_or_an_empty_owner(r, server, options):
    lock = dlock.Lock(r, "foo", timeout=60, **options)
    lock.acquire()
    other = dlock.Lock(r, "foo", timeout=60, **options)
    helper = threading.Thread(target=release_when_waited_for, args=[r, lock.local.token])
    helper.start()
    # This thread holds the lock, and waits for it without a time limit.
    assert other.acquire()
    helper.join()
    other.release()


def test_a_named_owner_waits_for_another_owner_in_the_same_thread(r, server):
    lock = dlock.Lock(r, "foo", timeout=60, owner="job 1")
    lock.acquire()
    helper = threading.Thread(target=release_when_waited_for, args=[r, lock.local.token])
    helper.start()
    other = dlock.Lock(r, "foo", timeout=60, owner="job 2")
    assert other.acquire()
    helper.join()
    other.release()


def test_a_named_owner_replaces_the_owner_of_the_thread(r, server):
    with dlock.Lock(r, "foo", timeout=60, owner="job 1", thread_local=False):
        same = dlock.Lock(r, "foo", timeout=60, owner="job 1")
        with pytest.raises(dlock.DeadlockError, match="job 1"):
            same.acquire()


def test_a_hold_that_the_background_releases_causes_no_deadlock(r, server, proxy):
    """The reply to ACQUIRE is lost, and the server refuses the release in the background at first."""
    client = redis.Redis.from_url(proxy.url, retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0))
    lock = dlock.Lock(client, "foo", timeout=600)
    proxy.match, proxy.cut_replies = b"ACQUIRE", 1
    with release_refused(r) as permit_when_a_client_waits:
        with pytest.raises(ConnectionError):
            lock.acquire()
        assert r.exists("foo")
        permit_when_a_client_waits()
        assert lock.acquire()
        lock.release()


@pytest.mark.parametrize("kind", ["lock", "redlock"])
def test_an_acquisition_whose_answer_is_lost_changes_the_name_of_the_owner(r, server, proxy, kind):
    client = redis.Redis.from_url(proxy.url, retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0))
    if kind == "lock":
        lock = dlock.Lock(client, "foo", timeout=600)
    else:
        lock = dlock.Redlock(dlock.Quorum([client]), "foo", timeout=600)
    name = of_thread().options()
    proxy.match, proxy.cut_replies = b"ACQUIRE", 1
    with pytest.raises(redis.RedisError):
        lock.acquire(blocking=False)
    assert of_thread().options() != name


@pytest.mark.parametrize("kind", ["lock", "redlock"])
def test_a_hold_whose_release_the_server_refused_causes_no_deadlock(r, server, kind):
    def make():
        if kind == "lock":
            return dlock.Lock(r, "foo", timeout=600)
        return dlock.Redlock(dlock.Quorum([r]), "foo", timeout=600)

    held = make()
    held.acquire()
    name = of_thread().options()
    with release_refused(r) as permit_when_a_client_waits:
        with pytest.raises(redis.RedisError):
            held.release()
        assert of_thread().options() != name
        permit_when_a_client_waits()
        other = make()
        # Waits until the background has released the hold.
        assert other.acquire()
        other.release()


def test_a_release_that_is_not_confirmed_yet_changes_the_name_of_the_owner(r, server, proxy):
    lock = dlock.Redlock(dlock.Quorum([redis.Redis.from_url(proxy.url)]), "foo", timeout=600)
    lock.acquire()
    name = of_thread().options()
    proxy.silent = True
    with pytest.raises(dlock.NoQuorumError, match="Not confirmed yet"):
        lock.release()
    assert of_thread().options() != name
    proxy.silent = False
    until("the lock is released", lambda: not is_held(r))


def test_release_renames_the_owner_when_an_unanswered_acquire_may_arrive_later(r, server, monkeypatch):
    lock = dlock.Lock(r, "foo", timeout=60)
    lock.acquire()
    # Pretends that redis-py sent the ACQUIRE twice: the server may execute the unanswered copy later.
    lock.local.hold.members_to_release_again.add(SINGLE)
    # The background repeats the release until the lease and `KEEP` have passed: here, for 1 ms.
    monkeypatch.setattr("dlock._single_attempt.KEEP", 0)
    lock.local.hold.lease = 1
    name = of_thread().options()
    lock.release()
    assert of_thread().options() != name


def test_a_lost_hold_causes_no_deadlock_while_its_lease_lasts_on_the_server(r, server):
    lock = dlock.Lock(r, "foo", timeout=600)
    lock.acquire()
    # The client counts the hold as lost, while the lease on the server still lasts.
    lock.local.hold.valid_until = 0
    assert lock.lost.is_set()
    helper = threading.Thread(target=release_when_waited_for, args=[r, lock.local.hold.token])
    helper.start()
    other = dlock.Lock(r, "foo", timeout=60)
    assert other.acquire()
    helper.join()
    other.release()


@pytest.mark.parametrize("options", [{"thread_local": False}, {"owner": ""}, {"owner": "job 1"}])
def test_the_loss_of_a_hold_with_no_or_another_owner_keeps_the_owner_name_of_the_thread(r, server, options):
    name = of_thread().options()
    lock = dlock.Lock(r, "foo", timeout=600, **options)
    lock.acquire()
    lock.local.hold.valid_until = 0
    assert lock.lost.is_set()
    assert of_thread().options() == name


def test_the_loss_of_several_holds_changes_the_name_of_the_owner_once(r, server):
    before = of_thread().options()
    locks = [dlock.Lock(r, name, timeout=600) for name in ("one", "two")]
    for lock in locks:
        lock.acquire()
        lock.local.hold.valid_until = 0
    assert locks[0].lost.is_set()
    name = of_thread().options()
    assert name != before
    assert locks[1].lost.is_set()
    assert of_thread().options() == name


def test_a_deadlock_error_keeps_the_name_of_the_owner(r, server):
    with dlock.Lock(r, "foo", timeout=60):
        # With a new name, the second acquire would wait for the hold, and raise no error.
        for _ in range(2):
            with pytest.raises(dlock.DeadlockError):
                dlock.Lock(r, "foo", timeout=60).acquire()


def test_a_forked_process_has_owners_of_its_own():
    def child(answers):
        answers.put(of_thread().options())

    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=child, args=(answers,))
    mine = of_thread().options()
    process.start()
    assert answers.get(timeout=LIMIT) != mine
    process.join()


@pytest.mark.parametrize(
    "name",
    ["pool/" + "ü" * 200, "\N{GRINNING FACE}" * 64, "\ud800" * 64],
    ids=["two bytes", "four bytes", "surrogates"],
)
def test_an_owner_has_no_slash_and_a_limited_length_whatever_the_name_of_the_thread(name):
    found = []
    thread = threading.Thread(target=lambda: found.append(of_thread().options()), name=name)
    thread.start()
    thread.join()
    ((word, owner),) = found
    assert word == "OWNER"
    assert b"/" not in owner and len(owner) < 128
