"""Lost and late replies: no hold is left behind, and no client relies on a hold for too long. If a RELEASE
has no answer, the client repeats it in the background until the server confirms it."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys

import faults
import pytest
import redis
import redis.asyncio
from conftest import LIMIT, expire, is_held, patient_async_client, stopped, until
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, LockNotOwnedError, TimeoutError
from redis.retry import Retry

import dlock
import dlock.asyncio
from dlock import _tasks
from dlock._clock import validity
from dlock._protocol import Options
from dlock._single_attempt import SingleAttempt

# Before Python 3.11, a task does not count its cancellations, so dlock cannot notice a cancellation that the
# Redis client drops.
needs_cancelling = pytest.mark.skipif(not hasattr(asyncio.Task, "cancelling"), reason="needs Python 3.11")


@pytest.mark.parametrize("half_close", [False, True])
def test_a_lost_answer_of_acquire_leaves_nothing_behind(r, get_proxied_lock, proxy, half_close):
    proxy.match, proxy.cut_replies, proxy.half_close = b"ACQUIRE", 1, half_close
    lock = get_proxied_lock(timeout=60)
    with pytest.raises((ConnectionError, TimeoutError)):
        lock.acquire(blocking=False)
    assert proxy.lost == 1
    until("the hold is released", lambda: not is_held(r))
    assert lock.local.token is None


def test_a_wait_outlasts_a_connection_that_was_closed_between_check_and_use(r, server, locks, monkeypatch):
    client = locks.client(server.url, **locks.retries(0))
    connection = client.connection_pool.connection_class
    send, check_health, closed = connection.send_packed_command, connection.check_health, []

    def sending(self, command, check_health=True):
        self.sends_acquire = b"DLOCK.ACQUIRE" in b"".join(command)
        return send(self, command, check_health)

    # redis-py checks the health between connecting and sending: another caller may close the connection then.
    def closing(self):
        if not self.sends_acquire or closed:
            return check_health(self)
        closed.append(self)
        return self.disconnect()

    monkeypatch.setattr(connection, "send_packed_command", sending)
    monkeypatch.setattr(connection, "check_health", closing)
    lock = locks.lock(client, "foo", timeout=60)
    assert lock.acquire(blocking_timeout=LIMIT)
    assert len(closed) == 1
    assert r.execute_command("DLOCK.HOLDS", "foo", lock.local.token) == 1
    lock.release()


def test_a_late_answer_of_acquire_leaves_nothing_behind(r, get_proxied_lock, proxy):
    lock = get_proxied_lock(timeout=60, socket_timeout=1)
    # Connects the client.
    assert lock.locked() is False
    proxy.delay = 2
    with pytest.raises(TimeoutError):
        lock.acquire(blocking=False)
    proxy.delay = 0
    until("the hold is released", lambda: not is_held(r))


def test_acquire_is_granted_once_when_the_client_sends_it_again(r, locks, proxy):
    client = locks.client(proxy.url, **locks.retries(3))
    lock = locks.lock(client, "foo", timeout=60)
    proxy.match, proxy.cut_replies = b"ACQUIRE", 2
    assert lock.acquire()
    assert proxy.lost == 2
    assert r.execute_command("DLOCK.HOLDS", "foo", lock.local.token) == 1
    lock.release()
    assert not is_held(r)


@pytest.fixture
def get_resending_lock(r, locks, proxy):
    """Returns a function that makes a lock whose client sends a command again after a lost reply. The reply
    to the first RELEASE is lost."""
    client = locks.client(proxy.url, **locks.retries(3))
    proxy.match, proxy.cut_replies = b"RELEASE", 1
    return lambda **options: locks.lock(client, "foo", **options)


def test_a_release_that_is_sent_again_raises_nothing(r, get_resending_lock, proxy):
    lock = get_resending_lock(timeout=60)
    lock.acquire()
    lock.release()
    assert proxy.lost == 1
    assert lock.local.token is None
    assert not is_held(r)


def test_a_release_that_is_sent_again_raises_when_the_hold_had_expired(r, get_resending_lock, proxy):
    lock = get_resending_lock(timeout=60)
    lock.acquire()
    expire(r, lock)
    with pytest.raises(LockNotOwnedError):
        lock.release()
    assert proxy.lost == 1


def test_acquire_raises_when_each_grant_arrives_after_its_lease(r, get_proxied_lock, proxy):
    lock = get_proxied_lock(timeout=0.1)
    proxy.delay = 0.15
    with pytest.raises(dlock.LateError):
        lock.acquire()
    until("no client has a hold", lambda: not is_held(r))


def test_the_validity_of_a_hold_counts_from_the_time_at_which_its_request_is_sent(monkeypatch):
    clock = [100.0]
    for module in "_single_attempt", "_protocol":
        monkeypatch.setattr(f"dlock.{module}.now", lambda: clock[0])
    attempt = SingleAttempt(b"foo", "foo", token=None, lease=500, options=Options())
    steps = attempt.run(sleep=0.1, blocking=True, end=None)
    next(steps)
    clock[0] = 100.4
    with pytest.raises(StopIteration) as end:
        steps.send(7)  # the reply: a fence
    assert end.value.value is True
    assert attempt.valid_until == 100 + validity(0.5)


def test_a_release_is_repeated_until_it_is_confirmed(r, get_proxied_lock, proxy):
    lock = get_proxied_lock(timeout=60)
    lock.acquire()
    proxy.refuse = True
    proxy.drop()
    with pytest.raises(ConnectionError):
        lock.release()
    assert is_held(r)
    proxy.refuse = False
    until("the hold is released", lambda: not is_held(r))
    # The background has released the hold. A further release raises nothing.
    lock.release()
    assert lock.local.token is None


def leave(entered):
    """Ends a `with` of a lock or of several."""
    entered.__exit__(None, None, None)


@contextlib.contextmanager
def unreachable(proxy):
    """Closes the connections through the proxy, and refuses new ones."""
    proxy.refuse = True
    proxy.drop()
    try:
        yield
    finally:
        proxy.refuse = False


@pytest.mark.parametrize("fault", ["down", "silent"])
@pytest.mark.parametrize("end", [lambda lock: lock.release(), leave], ids=["release", "with"])
def test_a_lost_hold_is_reported_as_lost_while_the_server_is_away(
    r, server, get_proxied_lock, proxy, fault, end
):
    """Its release is owed in the background."""
    lock = get_proxied_lock(timeout=60, auto_renew=True)
    lock.__enter__()
    with unreachable(proxy) if fault == "down" else stopped(server):
        lock.local.hold.lose("not renewed")
        with pytest.raises(LockNotOwnedError, match="not renewed"):
            end(lock)
    until("the hold is released", lambda: not is_held(r))


def test_a_loss_is_reported_before_a_failed_release_of_another_lock(locks, proxy):
    client = locks.client(proxy.url, socket_timeout=5, **locks.retries(0))
    made = [locks.lock(client, name, timeout=60) for name in ("a", "b")]
    for lock in made:
        lock.acquire()
    several = (dlock if locks.loop is None else dlock.asyncio).Locks(
        [lock if locks.loop is None else lock.lock for lock in made]
    )
    made[0].local.hold.lose("not renewed")
    with unreachable(proxy), pytest.raises(LockNotOwnedError, match="not renewed"):
        several.release() if locks.loop is None else locks.loop.run(several.release())


def test_a_lost_hold_of_a_quorum_is_reported_as_lost_while_the_masters_are_away(members):
    lock = members.lock(timeout=60)
    lock.acquire()
    members.until_held()
    lock.local.hold.lose("not renewed")
    with contextlib.ExitStack() as away:
        for proxy in members.proxies:
            away.enter_context(unreachable(proxy))
        with pytest.raises(LockNotOwnedError, match="not renewed"):
            lock.release()
    members.until_free()


def test_a_cancelled_acquire_leaves_nothing_behind(r, server, proxy):
    async def main():
        async with redis.asyncio.Redis.from_url(proxy.url) as client:
            await client.ping()
            lock = dlock.asyncio.Lock(client, "foo", timeout=60)
            proxy.delay = 0.2
            task = asyncio.create_task(lock.acquire())
            while not is_held(r):
                await asyncio.sleep(0.005)
            task.cancel()
            await asyncio.wait([task], timeout=10)
            assert task.cancelled()
            while is_held(r):
                await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(main(), 20))


class DropsCancellation(redis.asyncio.Redis):
    """A client that cancels its own task during its ACQUIRE number `cancelled_acquire`, and then drops the
    cancellation."""

    acquires_sent = 0
    cancelled_acquire = 0
    fails = False  # whether that ACQUIRE raises an error

    async def execute_command(self, *args, **options):
        outcome = await super().execute_command(*args, **options)
        if args[0] != "DLOCK.ACQUIRE":
            return outcome
        self.acquires_sent += 1
        if self.acquires_sent == self.cancelled_acquire:
            asyncio.current_task().cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            if self.fails:
                raise redis.ConnectionError
        return outcome


@needs_cancelling
@pytest.mark.parametrize("fails", [False, True], ids=["answered", "failed"])
@pytest.mark.parametrize("free", [False, True], ids=["taken", "free"])
def test_a_cancellation_that_the_client_drops_ends_the_acquire(r, server, free, fails):
    if not free:
        r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)

    async def main():
        async with DropsCancellation.from_url(server.url, socket_timeout=LIMIT) as client:
            # If the lock is taken, the first ACQUIRE begins a wait, and the second one is cancelled.
            client.cancelled_acquire, client.fails = 1 if free else 2, fails
            task = asyncio.create_task(dlock.asyncio.Lock(client, "foo", timeout=60).acquire())
            await asyncio.wait([task], timeout=10)
            assert task.cancelled()
            assert client.acquires_sent == client.cancelled_acquire
            while r.execute_command("DLOCK.WAITERS", "foo") or (free and is_held(r)):
                await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(main(), 20))


@needs_cancelling
@pytest.mark.parametrize("redlock", [False, True], ids=["lock", "redlock"])
def test_a_cancellation_right_after_a_message_of_the_server_ends_the_acquire(r, server, redlock):
    r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)

    async def main():
        async with patient_async_client(server) as client:
            if redlock:
                lock = dlock.asyncio.Redlock(dlock.Quorum([client]), "foo", timeout=60)
            else:
                lock = dlock.asyncio.Lock(client, "foo", timeout=60)
            task = asyncio.create_task(lock.acquire())
            while not r.execute_command("DLOCK.WAITERS", "foo"):
                await asyncio.sleep(0.005)
            (registry,) = _tasks.background().registries.values()
            # Each call of the wait has an entry.
            (wait,) = set(registry.waits.values())
            while not wait.event._waiter:
                await asyncio.sleep(0)
            # The event wakes the task, as a message of the server does. The cancellation follows at once.
            wait.event.set()
            asyncio.get_running_loop().call_soon(task.cancel)
            await asyncio.wait([task], timeout=10)
            assert task.cancelled()
            assert not wait.registry.waits
            while r.execute_command("DLOCK.WAITERS", "foo"):
                await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_the_background_completes_a_cancelled_release(r, server, proxy):
    async def main():
        async with redis.asyncio.Redis.from_url(proxy.url) as client:
            lock = dlock.asyncio.Lock(client, "foo")
            await lock.acquire()
            proxy.silent = True
            task = asyncio.create_task(lock.release())
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.wait([task], timeout=10)
            assert task.cancelled()
            proxy.silent = False
            while is_held(r):
                await asyncio.sleep(0.005)
            await lock.release()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_the_proxy_run_as_a_program_obeys_its_input(server, r):
    command = [sys.executable, faults.__file__, str(server.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:

        def send(*lines):
            print(*lines, sep="\n", file=proxy.stdin, flush=True)

        try:
            port = int(proxy.stdout.readline())
            client = redis.Redis(port=port, retry=Retry(NoBackoff(), 0))
            client.set("a", 1)
            # The reply to `lost` shows that the proxy has read the two settings before it.
            send("match SET", "cut_replies 1", "lost")
            assert proxy.stdout.readline() == "0\n"
            with pytest.raises(ConnectionError):
                client.set("a", 2)
            send("lost")
            assert (proxy.stdout.readline(), r.get("a"), client.get("a")) == ("1\n", b"2", b"2")
        finally:
            proxy.kill()
