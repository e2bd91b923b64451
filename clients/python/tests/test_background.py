"""The background work continues after callbacks that fail, threads that cannot be started, and errors of
classes outside redis-py."""

from __future__ import annotations

import sys
import threading

import pytest
import redis
import redis.asyncio
from conftest import expire, until, until_renewed

import dlock
import dlock.asyncio
from dlock import _tasks, _threads
from dlock._clock import now


def exists(r):
    return r.exists("foo") == 1


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
    until_renewed(r, other)
    other.release()


@pytest.mark.parametrize("cluster", [False, True])
def test_a_thread_that_cannot_be_started_is_started_later(r, server, monkeypatch, cluster):
    start, refused = _threads._start, []

    def refuse(target, name, *args):
        if name == "dlock-renewal" and len(refused) < 2:
            refused.append(name)
            raise RuntimeError("can't start new thread")
        return start(target, name, *args)

    monkeypatch.setattr(_threads, "is_cluster", lambda client: cluster)
    lock = dlock.Lock(r, "foo", timeout=60, auto_renew=True)
    lock.acquire()
    monkeypatch.setattr(_threads, "_start", refuse)
    lock.local.hold.valid_until = now() + 30
    until("no thread can be started", lambda: len(refused) == 2)
    until_renewed(r, lock)
    lock.release()


def test_acquire_releases_the_lock_when_no_thread_can_renew_it(r, server, monkeypatch):
    def refuse(target, name, *args):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_threads, "_clock", _threads.Clock())
    monkeypatch.setattr(_threads, "_start", refuse)
    lock = dlock.Lock(r, "foo", timeout=60, auto_renew=True)
    with pytest.raises(RuntimeError):
        lock.acquire()
    assert not exists(r)
    assert lock.local.token is None


def test_the_end_of_a_hold_calls_every_waker_when_one_removes_itself(r):
    lock = dlock.Lock(r, "foo", timeout=60)
    lock.acquire()
    hold, woken = lock.local.hold, []

    def first():
        hold.wakers.remove(first)

    hold.wakers += [first, lambda: woken.append(1)]
    lock.release()
    assert woken == [1]


def test_a_listener_that_cannot_be_started_is_started_later(r, server, monkeypatch):
    start, refused = _threads._start, []

    def refuse(target, name, *args):
        if name == "dlock-messages" and not refused:
            refused.append(name)
            raise RuntimeError("can't start new thread")
        return start(target, name, *args)

    r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    monkeypatch.setattr(_threads, "_start", refuse)
    with redis.Redis.from_url(server.url) as client:
        lock = dlock.Lock(client, "foo", timeout=10, sleep=1000)
        with pytest.raises(RuntimeError):
            lock.acquire()
        monkeypatch.setattr("dlock._single_attempt.ASK", 1000)
        waiting = threading.Thread(target=lock.acquire)
        waiting.start()
        until("a client waits", lambda: r.execute_command("DLOCK.WAITERS", "foo"))
        r.execute_command("DLOCK.RELEASE", "foo", "holder")
        waiting.join(20)
        assert not waiting.is_alive()


class Strange(Exception):
    """An error of a class outside redis-py, as a credential provider may raise it."""


@pytest.fixture
def strange(locks, monkeypatch):
    """A switch that makes every connection of the background raise `Strange`."""
    factory = (_threads, "own_client") if locks.kind == "threads" else (_tasks, "own_async_client")
    make_client = getattr(*factory)

    class Switch:
        is_on = False
        tries = 0

        def check(self):
            self.tries += self.is_on
            if self.is_on:
                raise Strange("no password today")

    switch = Switch()

    def own_client(*args, **options):
        client = make_client(*args, **options)
        execute, pubsub = client.execute_command, client.pubsub

        def checked(call):
            def checking(*args, **options):
                switch.check()
                return call(*args, **options)

            return checking

        client.execute_command, client.pubsub = checked(execute), checked(pubsub)
        return client

    monkeypatch.setattr(*factory, own_client)
    return switch


def test_an_owed_release_is_sent_again_after_an_error_of_any_class(r, through, proxy, strange):
    lock = through(timeout=60)
    lock.acquire()
    strange.is_on = True
    proxy.match, proxy.cut_replies = b"RELEASE", 1
    proxy.refuse = True
    proxy.drop()
    with pytest.raises(redis.ConnectionError):
        lock.release()
    until("a request fails", lambda: strange.tries)
    assert exists(r)
    proxy.refuse = strange.is_on = False
    until("the hold is released", lambda: not exists(r))


def test_a_renewal_is_tried_again_after_an_error_of_any_class(r, get_lock, strange):
    lock = get_lock(timeout=60, auto_renew=True)
    lock.acquire()
    hold = lock.local.hold
    strange.is_on = True
    hold.valid_until = now() + 30
    until("a request fails", lambda: strange.tries)
    # The background tries again after a pause.
    until("the renewal fails", lambda: "Strange" in hold._failure)
    assert hold._retry_at > now()
    hold.valid_until = now()
    until("the hold is lost", lambda: lock.lost.is_set())
    assert "Strange" in hold.loss
    strange.is_on = False
    r.execute_command("DLOCK.RELEASE", "foo", hold.token, "ALL")
    lock.acquire()
    until_renewed(r, lock)
    lock.release()


def test_a_listener_listens_again_after_an_error_of_any_class(r, get_lock, strange, monkeypatch):
    monkeypatch.setattr("dlock._single_attempt.ASK", 1000)
    r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    strange.is_on = True
    lock = get_lock(timeout=10, sleep=1000, thread_local=False)
    waiting = threading.Thread(target=lock.acquire)
    waiting.start()
    until("a subscription fails", lambda: strange.tries)
    strange.is_on = False
    until("a client waits", lambda: r.execute_command("DLOCK.WAITERS", "foo"))
    r.execute_command("DLOCK.RELEASE", "foo", "holder")
    waiting.join(20)
    assert not waiting.is_alive()
