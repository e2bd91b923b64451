"""Callers use a part of the pool's connections at once. Further calls wait for their turn, and are sent
later."""

from __future__ import annotations

import pytest
from conftest import LIMIT, until
from test_grant_messages import Position
from test_waiting import Waiter

from dlock._clock import now, validity
from dlock._protocol import CountedName
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

    def call(lock, method, *args):
        stalled, proxy.stall_requests = proxy.stalled, True
        busy = Call(locks.lock(client, "busy", timeout=LEASE), "locked")
        until("the only turn is used", lambda: proxy.stalled > stalled)
        started, queued = now(), Call(lock, method, *args)
        until("the call has waited", lambda: now() > started + 0.5)
        resumed = now()
        proxy.stall_requests = False
        for each in busy, queued:
            each.join(LIMIT)
        return queued.outcome, resumed

    return call


def test_a_lease_counts_from_when_its_request_is_sent(locks, client, queued):
    lock = locks.lock(client, "foo", timeout=LEASE, thread_local=False)
    for method, *args in ("acquire", 0.1, False), ("reacquire",), ("extend", LEASE, True):
        outcome, resumed = queued(lock, method, *args)
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
