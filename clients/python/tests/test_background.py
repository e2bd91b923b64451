"""The background of a client renews and releases holds, and has a listener, which receives messages about the
client's waits. The background continues after callbacks that fail, threads that cannot be started, and errors
of classes outside redis-py."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import types

import pytest
import redis
import redis.asyncio
from conftest import LIMIT, expire, is_held, patient_client, until, until_renewed_twice
from redis.exceptions import LockNotOwnedError

import dlock
import dlock.asyncio
from dlock import _clients, _tasks, _threads
from dlock._clock import GRID, now
from dlock._schedule import Schedule


def test_other_holds_are_renewed_after_a_callback_that_exits(r, server):
    other = dlock.Lock(r, "other", timeout=60, auto_renew=True)
    other.acquire()
    called = []

    def leave(why):
        called.append(why)
        sys.exit(1)

    lock = dlock.Lock(r, "foo", timeout=60, on_lost=leave)
    lock.acquire()
    expire(r, lock)
    until("the callback is called", lambda: called)
    until_renewed_twice(r, other)
    other.release()


@pytest.mark.parametrize("cluster", [False, True])
def test_a_thread_that_cannot_be_started_is_started_later(r, server, monkeypatch, cluster):
    start, refused = _threads._start, []

    def refuse(target, name, *args):
        if name == "dlock-renewal" and len(refused) < 2:
            refused.append(name)
            raise RuntimeError("can't start new thread")
        return start(target, name, *args)

    # In a cluster, each renewal has a thread of its own.
    monkeypatch.setattr(_threads, "is_cluster", lambda client: cluster)
    lock = dlock.Lock(r, "foo", timeout=60, auto_renew=True)
    lock.acquire()
    monkeypatch.setattr(_threads, "_start", refuse)
    # A renewal is due once less than two thirds of the lease are left.
    lock.local.hold.valid_until = now() + 30
    until("two threads are refused", lambda: len(refused) == 2)
    until_renewed_twice(r, lock)
    lock.release()


def test_acquire_releases_the_lock_when_no_thread_can_renew_it(r, server, monkeypatch):
    def refuse(function, args):
        raise RuntimeError("can't start new thread")

    # This new background must first start its thread.
    monkeypatch.setattr(_threads, "_background", _threads.Background())
    monkeypatch.setattr("_thread.start_new_thread", refuse)
    lock = dlock.Lock(r, "foo", timeout=60, auto_renew=True)
    with pytest.raises(RuntimeError):
        lock.acquire()
    assert not is_held(r)
    assert lock.local.token is None


def test_the_end_of_a_hold_calls_every_waker_when_one_removes_itself(r):
    """The wakers of a hold are functions that wake the callers that wait for its end."""
    lock = dlock.Lock(r, "foo", timeout=60)
    lock.acquire()
    hold, woken = lock.local.hold, []

    def remove_itself():
        hold.wakers.remove(remove_itself)

    hold.wakers += [remove_itself, lambda: woken.append(1)]
    lock.release()
    assert woken == [1]


def test_a_wait_polls_when_no_thread_can_listen(r, server, monkeypatch):
    """As in a handler of atexit: some versions of Python start no thread there."""
    start = _threads._start

    def refuse(target, name, *args):
        if name == "dlock-messages":
            raise RuntimeError("can't create new thread at interpreter shutdown")
        return start(target, name, *args)

    r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    monkeypatch.setattr(_threads, "_start", refuse)
    with patient_client(server) as client:
        lock = dlock.Lock(client, "foo", timeout=10, sleep=0.01)
        waiting = threading.Thread(target=lock.acquire)
        waiting.start()
        until("a client waits", lambda: r.execute_command("DLOCK.WAITERS", "foo"))
        r.execute_command("DLOCK.RELEASE", "foo", "holder")
        waiting.join(20)
        assert not waiting.is_alive()


@pytest.mark.parametrize("kind", ["lock", "redlock"])
def test_a_release_tries_once_when_no_thread_can_be_started(r, server, monkeypatch, kind):
    """As in a handler of atexit in Python 3.12.0 to 3.12.2."""

    def refuse(*args):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with patient_client(server) as client:
        if kind == "lock":
            lock = dlock.Lock(client, "foo", timeout=60)
        else:
            lock = dlock.Redlock(dlock.Quorum([client]), "foo", timeout=60)
        lock.acquire()
        monkeypatch.setattr(_threads, "_background", _threads.Background())
        monkeypatch.setattr(_threads, "_thread", types.SimpleNamespace(start_new_thread=refuse))
        if kind == "lock":
            # Its release is owed, as it was lost for the client only.
            lock.local.hold.lose("as a test says")
            with pytest.raises(LockNotOwnedError):
                lock.release()
        else:
            lock.release()
    assert not is_held(r)


def test_renewals_of_many_holds_are_due_together(r, server):
    """Then they are one pipeline. Each by itself costs three times the processor time."""
    locks = [dlock.Lock(r, f"lock:{n}", timeout=60, auto_renew=True) for n in range(3)]
    for lock in locks:
        lock.acquire()
    due_at = [lock.local.hold.wake_at() for lock in locks]
    assert due_at == pytest.approx([round(at / GRID) * GRID for at in due_at], abs=1e-6)
    for lock in locks:
        lock.release()


def test_a_slow_callback_delays_no_renewal(r, server):
    other = dlock.Lock(r, "other", timeout=60, auto_renew=True)
    other.acquire()
    called, may_return = threading.Event(), threading.Event()

    def wait(why):
        called.set()
        may_return.wait(LIMIT)

    lock = dlock.Lock(r, "foo", timeout=60, on_lost=wait)
    lock.acquire()
    expire(r, lock)
    assert called.wait(LIMIT)
    until_renewed_twice(r, other)
    may_return.set()
    other.release()


class Ping:
    """A task that sends one PING, and ends once `may_end` is set."""

    changed = None

    def __init__(self):
        self.begun, self.may_end, self.ended = threading.Event(), threading.Event(), threading.Event()

    def finished(self):
        return False

    def wake_at(self):
        return math.inf if self.begun.is_set() else 0

    def wake(self):
        self.begun.set()
        return self._steps()

    def _steps(self):
        yield ("PING",)
        self.may_end.wait(LIMIT)

    def steps_ended(self):
        self.ended.set()


def test_work_stays_with_its_background(r, server, monkeypatch):
    """Otherwise the work of an earlier test keeps the thread of this test's background alive."""
    task, earlier, later = Ping(), _threads.Background(), _threads.Background()
    monkeypatch.setattr(_threads, "_background", earlier)
    earlier.watch(task, r)
    assert task.begun.wait(LIMIT)
    monkeypatch.setattr(_threads, "_background", later)
    task.may_end.set()
    assert task.ended.wait(LIMIT)
    until("the task is scheduled again", lambda: earlier._schedule or later._schedule)
    assert earlier._schedule and not later._schedule
    task.finished = lambda: True
    task.changed()


def test_no_thread_is_left_without_work(r, server, monkeypatch):
    monkeypatch.setattr(_threads, "_background", _threads.Background())
    monkeypatch.setattr(_threads, "LINK_IDLE", 0.1)
    monkeypatch.setattr("dlock._waits.IDLE", 0.1)
    with patient_client(server) as client:
        r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
        lock = dlock.Lock(client, "foo", timeout=60, auto_renew=True)
        assert lock.acquire(blocking_timeout=0.1) is False
        r.execute_command("DLOCK.RELEASE", "foo", "holder")
        lock.acquire()
        until_renewed_twice(r, lock)
        lock.release()
    # A thread that ends removes itself from the background.
    background = _threads._background
    until(
        "all threads have ended",
        lambda: not (background._clock_started or background._links or background._subscribers),
    )


def test_a_wait_for_a_signal_ends_at_its_limit():
    """Even if the limit has passed before the wait begins, as it often has on a busy machine."""

    def wait():
        for _ in range(50_000):
            _threads.Signal().wait(1e-7)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(LIMIT)
    assert not waiting.is_alive()


def test_a_release_ends_although_the_background_sends_it_too_late(r, get_lock, monkeypatch):
    """When the busy process would send it, the hold has expired, and the request is dropped."""
    lock = get_lock(timeout=60, auto_renew=True, thread_local=False)
    lock.acquire()
    until_renewed_twice(r, lock)  # so the background has a connection
    expire(r, lock)
    monkeypatch.setattr("dlock._hold.Owed.finished", lambda owed: True)
    outcomes = []

    def release():
        with pytest.raises(LockNotOwnedError):
            lock.release()
        outcomes.append("released")

    threading.Thread(target=release, daemon=True).start()
    until("the release ends", lambda: outcomes)


class CredentialError(Exception):
    """An error of a class outside redis-py, as a credential provider may raise it."""


@pytest.fixture
def credential_errors(locks, monkeypatch):
    """A switch that makes every connection of the background raise `CredentialError`."""
    is_async = locks.kind == "asyncio"
    module, factory = (_tasks, "own_async_client") if is_async else (_threads, "own_client")
    pipe = _clients.AsyncPipe if is_async else _clients.Pipe
    make_client = getattr(module, factory)

    class Switch:
        is_on = False
        raised = 0  # number of errors

        def check(self):
            if self.is_on:
                self.raised += 1
                raise CredentialError("no password today")

    switch = Switch()

    def own_client(*args, **options):
        client = make_client(*args, **options)
        pubsub = client.pubsub

        def checking(*args, **options):
            switch.check()
            return pubsub(*args, **options)

        client.pubsub = checking
        return client

    connected = pipe._connected

    def checked(self):
        switch.check()
        return connected(self)

    async def checked_async(self):
        switch.check()
        return await connected(self)

    monkeypatch.setattr(module, factory, own_client)
    monkeypatch.setattr(pipe, "_connected", checked_async if is_async else checked)
    return switch


def test_the_background_repeats_a_release_after_an_error_of_any_class(
    r, get_proxied_lock, proxy, credential_errors
):
    lock = get_proxied_lock(timeout=60)
    lock.acquire()
    credential_errors.is_on = True
    proxy.refuse = True
    proxy.drop()
    with pytest.raises(redis.ConnectionError):
        lock.release()
    until("a request fails", lambda: credential_errors.raised)
    assert is_held(r)
    proxy.refuse = credential_errors.is_on = False
    until("the hold is released", lambda: not is_held(r))


def test_a_renewal_is_tried_again_after_an_error_of_any_class(r, get_lock, credential_errors):
    lock = get_lock(timeout=60, auto_renew=True)
    lock.acquire()
    hold = lock.local.hold
    credential_errors.is_on = True
    # A renewal is due once less than two thirds of the lease are left.
    hold.valid_until = now() + 30
    until("a request fails", lambda: credential_errors.raised)
    until("the renewal fails", lambda: "CredentialError" in hold._failure)
    # The background tries again after a pause.
    assert hold._retry_at > now()
    hold.valid_until = now()
    until("the hold is lost", lambda: lock.lost.is_set())
    assert "CredentialError" in hold.loss
    credential_errors.is_on = False
    r.execute_command("DLOCK.RELEASE", "foo", hold.token, "ALL")
    lock.acquire()
    until_renewed_twice(r, lock)
    lock.release()


def test_a_listener_listens_again_after_an_error_of_any_class(r, get_lock, credential_errors, monkeypatch):
    # Without a message, the wait asks again only after 1000 s.
    monkeypatch.setattr("dlock._waits.ASK", 1000)
    r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    credential_errors.is_on = True
    lock = get_lock(timeout=10, sleep=1000, thread_local=False)
    waiting = threading.Thread(target=lock.acquire)
    waiting.start()
    until("a subscription fails", lambda: credential_errors.raised)
    credential_errors.is_on = False
    until("a client waits", lambda: r.execute_command("DLOCK.WAITERS", "foo"))
    r.execute_command("DLOCK.RELEASE", "foo", "holder")
    waiting.join(20)
    assert not waiting.is_alive()


class Due:
    """A task of the schedule."""


def test_a_removed_task_hides_no_later_one():
    first, second, third = Due(), Due(), Due()
    schedule = Schedule()
    assert schedule.set(first, 1, None)
    schedule.remove(first)
    # A driver sets its timer if a task becomes the first.
    assert schedule.set(second, 2, None)
    assert not schedule.set(third, 3, None)
    schedule.remove(third)
    assert schedule.pop(2) == (second, None)
    assert schedule.next_at() == math.inf
    assert schedule.set(second, 4, None)
    assert schedule.next_at() == 4


def test_a_hold_is_renewed_after_the_release_of_an_earlier_one(r, server):
    async def hold_again():
        client = redis.asyncio.Redis.from_url(server.url)
        # Its first renewal would be due after the timer has ended, which looks at the clock once a second.
        async with dlock.asyncio.Lock(client, "earlier", timeout=12, auto_renew=True):
            pass
        background = _tasks.background()
        while background._timer is not None:
            await asyncio.sleep(0.01)
        async with dlock.asyncio.Lock(client, "foo", timeout=12, auto_renew=True) as lock:
            hold = lock.local.hold
            first = hold.valid_until
            await asyncio.to_thread(until, "the hold is renewed", lambda: hold.valid_until > first)
        await client.aclose()

    asyncio.run(hold_again())
