"""The server moves: a planned failover behind one address. The former master lives on as a replica, and the
connections to it stay open."""

from __future__ import annotations

import contextlib
import math
import threading

import pytest
from conftest import SERVERS, Server, calls, patient_client, until
from faults import Proxy
from redis.exceptions import ReadOnlyError

import dlock
from dlock import _protocol, _waits
from dlock._clock import now


class Pair:
    """A master and its replica behind one address: that of the proxy."""

    def __init__(self, program):
        self.servers = [Server(program), Server(program)]
        self.clients = [patient_client(server) for server in self.servers]
        self.proxy = Proxy(self.servers[0].port)
        self.clients[1].execute_command("REPLICAOF", "127.0.0.1", self.servers[0].port)
        until(
            "the replica is in step",
            lambda: self.clients[1].info("replication").get("master_link_status") == "up",
        )

    def until_in_step(self):
        # WAIT waits for the writes of its own connection.
        with self.clients[0].pipeline(transaction=False) as pipe:
            until(
                "the replica has everything",
                lambda: pipe.set("step", 1).execute_command("WAIT", 1, 100).execute()[1] == 1,
            )

    def fail_over(self):
        self.until_in_step()
        old, new = self.clients
        new.execute_command("REPLICAOF", "NO", "ONE")
        old.execute_command("REPLICAOF", "127.0.0.1", self.servers[1].port)
        # Only new connections lead to the new master.
        self.proxy.target = self.servers[1].port

    def close(self):
        self.proxy.close()
        for client in self.clients:
            client.close()
        for server in self.servers:
            server.stop()


@pytest.fixture(params=sorted(SERVERS))
def moved(request):
    with contextlib.closing(Pair(SERVERS[request.param])) as pair:
        yield pair


@pytest.fixture
def make(locks, moved):
    """Returns a function that makes a lock "foo" through the address. The client sends each command once."""
    client = locks.client(moved.proxy.url, socket_timeout=5, **locks.retries(0))
    quorum = dlock.Quorum([client])

    def make(kind, **options):
        if kind == "lock":
            return locks.lock(client, "foo", **options)
        return locks.lock(quorum, "foo", redlock=True, **options)

    return make


KINDS = pytest.mark.parametrize("kind", ["lock", "redlock"])


@KINDS
def test_a_renewed_hold_follows_the_master(moved, make, kind):
    lock = make(kind, timeout=60, auto_renew=True)
    lock.acquire()
    hold = lock.local.hold
    moved.fail_over()
    new = moved.clients[1]
    hold.valid_until = now() + 30

    def is_renewed():
        if hold._retry_at is not None and hold._retry_at < math.inf:
            # The background tries again now.
            hold._retry_at = now()
            hold.valid_until -= 0.001
        return calls(new, "dlock.extend") and hold.valid_until > now() + 40

    until("the new master renews the hold", is_renewed)
    lock.release()
    assert not new.exists("foo")


def test_a_loss_is_noticed_at_the_new_master(moved, make):
    # The new master has no connection with the number of the subscription at the former one.
    for _ in range(200):
        with patient_client(moved.servers[0]) as client:
            client.ping()
    reasons = []
    lock = make("lock", timeout=600, on_lost=reasons.append)
    lock.acquire()
    until("the former master tracks the key", lambda: calls(moved.clients[0], "dlock.holds"))
    moved.fail_over()
    new = moved.clients[1]

    def extended():
        with contextlib.suppress(ReadOnlyError):
            return lock.extend(600, replace_ttl=True)

    until("the new master extends the hold", extended)
    until("the new master tracks the key", lambda: calls(new, "dlock.holds"))
    assert not reasons
    new.execute_command("DLOCK.BREAK", "foo")
    until("the loss is noticed", lambda: reasons)


def test_the_subscriber_does_not_reconnect_in_a_loop_while_the_address_leads_to_a_replica(monkeypatch):
    time = 0.0
    monkeypatch.setattr(_waits, "now", lambda: time)
    registry = _waits.WaitRegistry(threading.Event)
    registry.must_reconnect = True
    assert registry.next_action() == "reconnect"
    registry.on_disconnected()
    # The new subscription lets the waits ask, and the replica refuses them.
    registry.must_reconnect = True
    assert registry.next_action() == ""
    time += _waits.LEAST_SUBSCRIBED
    assert registry.next_action() == "reconnect"


@KINDS
def test_a_release_follows_the_master(moved, make, kind, patience):
    lock = make(kind, timeout=60)
    lock.acquire()
    moved.fail_over()
    lock.release()
    assert not moved.clients[1].exists("foo")


@KINDS
def test_a_wait_follows_the_master(moved, make, kind):
    moved.clients[0].execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    lock = make(kind, timeout=60, thread_local=False)
    outcomes = []
    waiter = threading.Thread(target=lambda: outcomes.append(lock.acquire(blocking_timeout=30)))
    waiter.start()
    until("the client waits", lambda: moved.clients[0].execute_command("DLOCK.WAITERS", "foo"))
    moved.fail_over()
    new = moved.clients[1]
    until("the client waits at the new master", lambda: new.execute_command("DLOCK.WAITERS", "foo"))
    new.execute_command("DLOCK.RELEASE", "foo", "holder")
    waiter.join(30)
    assert outcomes == [True]
    lock.release()


def test_the_subscriber_follows_when_only_the_commands_connect_anew(moved, make, monkeypatch):
    # The wait asks again every 0.2 s.
    monkeypatch.setattr(_waits, "ASK", 0.2)
    moved.clients[0].execute_command("DLOCK.ACQUIRE", "foo", "holder", 600_000)
    lock = make("lock", timeout=60, thread_local=False)
    outcomes = []
    waiter = threading.Thread(target=lambda: outcomes.append(lock.acquire(blocking_timeout=30)))
    waiter.start()
    old, new = moved.clients
    until("the client waits", lambda: old.pubsub_channels("dlock:*") and calls(old, "dlock.acquire") > 3)
    moved.until_in_step()
    new.execute_command("REPLICAOF", "NO", "ONE")
    moved.proxy.target = moved.servers[1].port
    # The connection of the subscriber stays open, and the former master accepts requests.
    old.execute_command("CLIENT", "KILL", "TYPE", "normal")
    until("the client waits at the new master", lambda: new.execute_command("DLOCK.WAITERS", "foo"))
    assert old.pubsub_channels("dlock:*")
    new.execute_command("DLOCK.RELEASE", "foo", "holder")
    waiter.join(30)
    assert outcomes == [True]
    lock.release()
    until("the subscriber has followed", lambda: new.pubsub_channels("dlock:*"))


def test_a_grant_without_its_message_ends_a_silent_subscription(monkeypatch):
    registry = _waits.WaitRegistry(threading.Event)

    def subscribe():
        registry.on_message({"type": "subscribe", "channel": registry.channel.encode()})

    def null():
        wait.note_null(wait.next_message(_protocol.CountedName("DLOCK.ACQUIRE"), math.inf))

    wait = registry.open()
    subscribe()
    wait.note_grant()  # to the first request
    registry.on_message(None)
    assert registry.next_action() == ""
    null()
    wait.note_grant()
    # A message may be on its way, and would show that the subscription works.
    assert registry.next_action() == ""
    registry.on_message({"type": "message", "channel": registry.channel.encode(), "data": b"a.1 timeout"})
    registry.on_message(None)
    assert registry.next_action() == ""
    null()
    registry.on_disconnected()
    subscribe()
    wait.note_grant()  # while the client was not subscribed
    registry.on_message(None)
    assert registry.next_action() == ""
    monkeypatch.setattr(_waits, "LEAST_SUBSCRIBED", 0)
    null()
    wait.note_grant()
    registry.on_message(None)
    assert registry.next_action() == "reconnect"


def test_a_try_raises_once_and_then_reaches_the_new_master(moved, make):
    lock = make("lock", timeout=60)
    with lock:
        pass
    moved.fail_over()
    with pytest.raises(ReadOnlyError):
        lock.acquire(blocking=False)
    assert lock.acquire(blocking=False)
    assert moved.clients[1].exists("foo")


def test_a_client_with_a_single_connection_follows_the_master(moved, locks):
    client = locks.client(moved.proxy.url, single_connection_client=True, **locks.retries(0))
    lock, waiting = locks.lock(client, "foo", timeout=60), locks.lock(client, "bar", timeout=60)
    lock.acquire()
    moved.fail_over()
    assert waiting.acquire(blocking_timeout=30)
    assert moved.clients[1].exists("bar")
    lock.release()
    assert not moved.clients[1].exists("foo")
    waiting.release()
