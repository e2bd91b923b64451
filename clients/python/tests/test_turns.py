"""Callers use a part of the pool's connections at once. Further calls wait for their turn, and are sent
later."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from conftest import LIMIT, calls, until
from redis.exceptions import BusyLoadingError, ConnectionError, ResponseError, TimeoutError
from test_grant_messages import Position
from test_waiting import Waiter

from dlock import _protocol, _tasks
from dlock._clock import now, validity
from dlock._protocol import CountedName
from dlock._schedule import TurnsCore
from dlock._waits import KEEP

LEASE = 60


@pytest.fixture
def client(locks, proxy):
    """A client whose calls are sent one at a time, and only once."""
    return locks.client(proxy.url, socket_timeout=LIMIT, max_connections=2, **locks.retries(0))


class Call(Waiter):
    """Calls a method of a lock in a thread of its own."""

    def __init__(self, lock, method, *args, **options):
        self.method, self.args = method, args
        super().__init__(lock, **options)

    def run(self):
        try:
            self.outcome = getattr(self.lock, self.method)(*self.args, **self.options)
        except Exception as why:
            self.outcome = why


@pytest.fixture
def queued(locks, client, proxy):
    """Returns a function that calls a method of a lock, which waits for its turn for a while. Then the
    server answers. Returns the outcome, and a time before the request was sent."""

    def call(lock, method, *args, **options):
        stalled, proxy.stall_requests = proxy.stalled, True
        busy = Call(locks.lock(client, "busy", timeout=LEASE), "locked")
        until("the only turn is used", lambda: proxy.stalled > stalled)
        started, queued = now(), Call(lock, method, *args, **options)
        until("the call has waited", lambda: now() > started + 0.5)
        resumed = now()
        proxy.stall_requests = False
        for each in busy, queued:
            each.join(LIMIT)
        return queued.outcome, resumed

    return call


def test_a_lease_counts_from_when_its_request_is_sent(locks, client, queued):
    lock = locks.lock(client, "foo", timeout=LEASE, thread_local=False)
    options = {
        "acquire": {"blocking": False},
        "reacquire": {},
        "extend": {"additional_time": LEASE, "replace_ttl": True},
    }
    for method in options:
        outcome, resumed = queued(lock, method, **options[method])
        assert outcome is True
        assert lock.local.hold.valid_until >= resumed + validity(LEASE), method
    token = lock.forget()
    outcome, resumed = queued(lock, "adopt", token)
    assert outcome is None
    assert lock.local.hold.valid_until >= resumed + validity(LEASE)
    lock.release()


def test_the_grant_of_a_message_counts_from_when_its_request_is_sent(monkeypatch):
    time = 1000.0
    monkeypatch.setattr("dlock._waits.now", lambda: time)
    monkeypatch.setattr("dlock._protocol.now", lambda: time)
    position, names = Position(), [CountedName("DLOCK.ACQUIRE") for _ in range(2)]
    message = position.call(names[0])
    time += 2 * KEEP
    names[0].encode()
    # Another call does not end the first one, which is sent just now.
    position.call(names[1])
    position.receive(message)
    assert position.wait.valid_grant().valid_until == time + validity(KEEP)


def test_a_release_waits_for_no_turn(r, locks, client, proxy):
    lock = locks.lock(client, "foo", timeout=LEASE, thread_local=False)
    lock.acquire()
    proxy.stall()
    busy = Call(locks.lock(client, "busy", timeout=LEASE), "locked")
    until("the only turn is used", lambda: proxy.stalled)
    lock.release()
    assert not r.exists("foo")
    assert busy.is_alive()
    proxy.resume()
    busy.join(LIMIT)
    assert busy.outcome is False


def test_a_release_in_a_cluster_waits_for_its_turn():
    """The background of a cluster uses a client that has turns, too."""

    class Nodes:
        async def execute_command(self, *_):
            return 1

    async def work():
        client, background = Nodes(), _tasks.background()
        turns = background.turns(client)
        turns.free = 0
        releasing = asyncio.create_task(
            _tasks.run(_protocol.send(_protocol.release(b"foo", b"token")), client)
        )
        await asyncio.sleep(0)
        assert not background._links
        turns.give()
        assert await releasing == 1

    asyncio.run(work())


def test_a_call_waits_for_its_turn_no_longer_than_its_limit(r, locks, client, proxy):
    before = calls(r, "dlock.acquire")
    proxy.silent = True
    busy = Call(locks.lock(client, "busy", timeout=LEASE), "locked")
    until("the only turn is used", lambda: proxy.stalled)
    lock = locks.lock(client, "foo", timeout=LEASE, thread_local=False)
    with pytest.raises(TimeoutError, match="no connection was free"):
        lock.acquire(blocking_timeout=0.1)
    with pytest.raises(TimeoutError, match="no connection was free"):
        locks.lock(client, "foo", timeout=LEASE, blocking_timeout=0.1).__enter__()
    assert busy.is_alive()
    proxy.silent = False
    busy.join(LIMIT)
    # Not the releases: those of an earlier test may still be repeated.
    assert calls(r, "dlock.acquire") == before


def test_a_wait_that_finds_no_turn_at_its_end_was_not_granted(r, locks, client, proxy):
    r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    waiter = Waiter(locks.lock(client, "foo", timeout=LEASE), blocking_timeout=2)
    until("the client waits", lambda: r.execute_command("DLOCK.WAITERS", "foo"))
    proxy.stall()
    proxy.stalled = 0
    busy = Call(locks.lock(client, "busy", timeout=LEASE), "locked")
    waiter.join(LIMIT)
    assert waiter.outcome is False
    assert busy.is_alive()
    proxy.resume()
    busy.join(LIMIT)
    until("no position is left", lambda: not r.execute_command("DLOCK.WAITERS", "foo"))


@pytest.mark.parametrize("method, options", [("locked", {}), ("acquire", {"blocking": False})])
def test_a_queue_behind_a_silent_server_fails_at_once(locks, proxy, method, options):
    client = locks.client(proxy.url, socket_timeout=1, max_connections=2, **locks.retries(0))
    proxy.silent = True
    started = [Call(locks.lock(client, "foo", timeout=LEASE), method, **options) for _ in range(30)]
    for call in started:
        call.join(LIMIT)
        assert isinstance(call.outcome, TimeoutError)
    # Each call that was sent has connected anew.
    assert proxy.accepted < 10


@pytest.mark.parametrize(
    "sent, took, answered, why, fails",
    [
        (5, 1, None, ConnectionError("down"), True),
        (5, 1, None, TimeoutError("silent"), True),
        # The call has waited for a part of the command.
        (3, 1, None, TimeoutError("silent"), False),
        # Another command was answered meanwhile, or before.
        (5, 1, 5.5, TimeoutError("silent"), False),
        (5, 1, 4.5, TimeoutError("silent"), True),
        # It may be the error of a single connection.
        (5, 0.05, None, ConnectionError("broken"), False),
        # The server has answered.
        (5, 1, None, ResponseError("WRONGTYPE"), False),
        (5, 1, None, BusyLoadingError("the file"), False),
    ],
)
def test_a_call_that_waits_fails_with_a_whole_command(monkeypatch, sent, took, answered, why, fails):
    turns, began = TurnsCore(), 4
    if answered is not None and answered < sent:
        turns.answered = answered
    before = turns.answered
    if answered is not None:
        turns.answered = answered
    monkeypatch.setattr("dlock._schedule.now", lambda: sent + took)
    turns.note_failure(sent, before, why)
    with pytest.raises(type(why), match=str(why)) if fails else contextlib.nullcontext():
        turns.raise_failure(began)
    turns.answered = 7
    turns.raise_failure(began)
