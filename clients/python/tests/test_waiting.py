"""Waiting in the queue: the order, one connection for messages, and faults during the wait."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import secrets
import threading
import time
from types import SimpleNamespace

import pytest
import redis
from conftest import (
    FOREIGN_TOKEN,
    LIMIT,
    Port,
    calls,
    patient_async_client,
    patient_client,
    stopped,
    until,
)
from redis._parsers import _RESP2Parser as PythonParser
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, ResponseError, TimeoutError
from redis.retry import Retry

import dlock
import dlock.asyncio
from dlock import _protocol, _tasks, _waits
from dlock._clock import now
from dlock._single_attempt import KEPT_PAUSE, SingleAttempt


def waiters(r, name="foo"):
    return len(r.execute_command("DLOCK.WAITERS", name))


def listeners(r, name):
    """Returns how many connections of the client of this name have a subscription."""
    return sum(int(client["sub"]) > 0 for client in r.client_list() if client["name"] == name)


class Waiter(threading.Thread):
    """Acquires in a thread of its own."""

    def __init__(self, lock, **options):
        super().__init__(daemon=True)
        self.lock = lock
        self.options = options
        self.outcome = None
        self.start()

    def run(self):
        try:
            self.outcome = self.lock.acquire(**self.options)
        except Exception as why:
            self.outcome = why


@pytest.fixture
def holder(r):
    """Holds "foo" with a bare command until `release` is called."""
    assert r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    return SimpleNamespace(release=lambda: r.execute_command("DLOCK.RELEASE", "foo", "holder"))


@pytest.fixture
def failures(monkeypatch):
    """The errors of the requests that acquire, in their order."""
    real, seen = _protocol.is_passing, []
    monkeypatch.setattr("dlock._protocol.is_passing", lambda answer: seen.append(answer) or real(answer))
    return seen


def test_waiters_are_served_in_their_order(r, get_lock, holder):
    order, threads = [], []

    def worker(number):
        lock = get_lock(timeout=10, thread_local=False)
        assert lock.acquire()
        order.append(number)
        lock.release()

    for number in range(8):
        thread = threading.Thread(target=worker, args=(number,))
        thread.start()
        threads.append(thread)
        until("a client waits", lambda number=number: waiters(r) == number + 1)
    holder.release()
    for thread in threads:
        thread.join(20)
    assert order == list(range(8))
    # A claim that the server has read after the last RELEASE is released again.
    until("the lock is free", lambda: r.exists("foo") == 0)


def test_all_waits_share_one_listening_connection(r, locks, server, holder):
    # The connection of an earlier try of this test may still listen.
    name = f"shared-{secrets.token_hex(8)}"
    client = locks.client(server.url, client_name=name)
    started = [
        Waiter(locks.lock(client, "foo", timeout=10, thread_local=False), blocking_timeout=30)
        for _ in range(20)
    ]
    until("all clients wait", lambda: waiters(r) == 20)
    # A wait begins without messages if the server is slow to confirm the subscription.
    until("a connection listens", lambda: listeners(r, name))
    assert listeners(r, name) == 1
    r.delete("foo")  # ends the hold
    until("the first waiter has the lock", lambda: any(waiter.outcome for waiter in started))
    for _ in started:
        (waiter,) = until("a waiter has the lock", lambda: [w for w in started if w.outcome is True])
        waiter.outcome = "done"
        waiter.lock.release()


def test_a_wait_that_times_out_leaves_the_queue(r, get_lock, holder):
    lock = get_lock(timeout=10, blocking_timeout=0.3)
    assert lock.acquire() is False
    assert waiters(r) == 0
    assert lock.acquire(blocking_timeout=0) is False
    assert lock.local.token is None


@pytest.mark.parametrize("blocking_timeout", [None, LIMIT])
def test_a_wait_continues_with_a_sleep_of_zero(r, get_lock, blocking_timeout):
    # While a lock of redis-py is at the key, the wait asks again after each `sleep`.
    r.set("foo", FOREIGN_TOKEN)
    lock = get_lock(timeout=10, sleep=0, blocking_timeout=blocking_timeout, thread_local=False)
    waiter = Waiter(lock)

    def asked():
        stats = r.info("commandstats").items()
        return sum(each["calls"] for name, each in stats if name.lower() == "cmdstat_dlock.acquire")

    until("the waiter asks again", lambda: asked() > 3 or waiter.outcome is not None)
    assert waiter.outcome is None
    r.delete("foo")
    waiter.join(20)
    assert waiter.outcome is True
    lock.release()


def test_acquire_returns_false_when_an_operator_cancels_the_wait(r, get_lock, holder):
    lock = get_lock(timeout=10)
    waiter = Waiter(lock)
    until("a client waits", lambda: waiters(r) == 1)
    # A waiter is a map in RESP3, which redis-py 8 speaks, and a list in RESP2.
    shown = r.execute_command("DLOCK.WAITERS", "foo")[0]
    token = shown[b"token"] if isinstance(shown, dict) else shown[shown.index(b"token") + 1]
    assert r.execute_command("DLOCK.CANCEL", "foo", token) == 1
    waiter.join(20)
    assert waiter.outcome is False
    assert waiters(r) == 0


def test_a_wait_succeeds_when_max_ttl_is_shorter_than_the_default_time_of_a_position(r, get_lock):
    # By default, a client asks the server to retain its position for 10 s.
    r.config_set("dlock.max-ttl", 5000)
    try:
        first, second = get_lock(timeout=4), get_lock(timeout=4, thread_local=False)
        first.acquire()
        waiter = Waiter(second)
        until("a client waits", lambda: waiters(r) == 1 or waiter.outcome)
        first.release()
        waiter.join(20)
        assert waiter.outcome is True
        second.release()
    finally:
        r.config_set("dlock.max-ttl", 86_400_000)


@pytest.mark.parametrize("socket_timeout", [0.5, 1])
def test_a_wait_outlasts_the_read_timeout(r, locks, server, holder, socket_timeout):
    waiter = Waiter(locks.lock(locks.client(server.url, socket_timeout=socket_timeout), "foo", timeout=10))
    until("a client waits", lambda: waiters(r) == 1)
    time.sleep(2 * socket_timeout)
    assert waiters(r) == 1
    holder.release()
    waiter.join(20)
    assert waiter.outcome is True


def test_a_wait_survives_broken_connections(r, locks, proxy, holder):
    client = locks.client(proxy.url, socket_timeout=2)
    first = Waiter(locks.lock(client, "foo", timeout=30, thread_local=False))
    until("a client waits", lambda: waiters(r) == 1)
    second = Waiter(locks.lock(client, "foo", timeout=30, thread_local=False))
    until("both wait", lambda: waiters(r) == 2)
    for _ in range(3):
        accepted = proxy.accepted
        proxy.drop()
        until("the waiters connect again", lambda accepted=accepted: proxy.accepted > accepted)
        assert waiters(r) == 2
    proxy.refuse, accepted = True, proxy.accepted
    proxy.drop()
    until("a connection is refused", lambda: proxy.accepted > accepted)
    proxy.refuse = False
    holder.release()
    first.join(20)
    assert (first.outcome, second.outcome) == (True, None)
    first.lock.release()
    second.join(20)
    assert second.outcome is True


def test_a_message_wakes_the_waiter(r, locks, server, holder, monkeypatch):
    # Without a message, the wait asks again only after 1000 s.
    monkeypatch.setattr("dlock._waits.ASK", 1000)
    waiter = Waiter(locks.lock(locks.client(server.url), "foo", timeout=30, sleep=1000))
    until("a client waits", lambda: waiters(r) == 1)
    holder.release()
    waiter.join(20)
    assert waiter.outcome is True


def test_a_wait_ends_after_a_lost_message(r, locks, server, holder, monkeypatch):
    # The wait asks again every 0.2 s.
    monkeypatch.setattr("dlock._waits.ASK", 0.2)
    waiter = Waiter(locks.lock(locks.client(server.url), "foo", timeout=30))
    until("a client waits", lambda: waiters(r) == 1)
    monkeypatch.setattr(_waits.WaitRegistry, "on_message", lambda *_: None)
    holder.release()
    waiter.join(20)
    assert waiter.outcome is True


def test_a_wait_outlasts_a_restart_of_the_server(own_server, locks):
    with patient_client(own_server) as r:
        r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
        waiter = Waiter(locks.lock(locks.client(own_server.url), "foo", timeout=30))
        until("a client waits", lambda: waiters(r) == 1)
    own_server.kill()
    own_server.start()
    waiter.join(20)
    assert waiter.outcome is True


def test_the_limit_of_an_outage_counts_from_the_first_request_without_answer(
    own_server, locks, failures, monkeypatch
):
    # The server may take long to start. The wait does not outlast this.
    monkeypatch.setattr("dlock._single_attempt.KEEP", 600)
    pauses, pause = [], SingleAttempt._pause
    monkeypatch.setattr(
        SingleAttempt, "_pause", lambda attempt, wait, s: pauses.append(s) or pause(attempt, wait, s)
    )
    with patient_client(own_server) as r:
        r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
        client = locks.client(own_server.url, **locks.retries(0))
        waiter = Waiter(locks.lock(client, "foo", timeout=30))
        # No request is under way: the background sends the next ones.
        until("the wait sends no request itself", lambda: KEPT_PAUSE in pauses)
    # The server last answered a while ago.
    for module in "_single_attempt", "_protocol":
        monkeypatch.setattr(f"dlock.{module}.now", lambda: now() + 1000)
    own_server.kill()
    until("a request fails", lambda: failures)
    own_server.start()
    waiter.join(LIMIT)
    assert waiter.outcome is True


def test_a_wait_raises_when_the_server_stays_down(own_server, locks, monkeypatch):
    monkeypatch.setattr("dlock._single_attempt.KEEP", 1.0)
    with patient_client(own_server) as r:
        r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
        waiter = Waiter(locks.lock(locks.client(own_server.url), "foo", timeout=30))
        until("a client waits", lambda: waiters(r) == 1)
    own_server.kill()
    waiter.join(30)
    assert isinstance(waiter.outcome, ConnectionError)


@pytest.mark.parametrize("options", [{}, {"at_least": 0.001}, {"ephemeral": True}], ids=str)
@pytest.mark.parametrize("connected", [False, True])
def test_a_wait_outlasts_a_server_that_is_silent_from_its_first_request_on(
    server, locks, failures, connected, options
):
    client = locks.client(server.url, socket_timeout=0.5, **locks.retries(0))
    lock = locks.lock(client, "foo", timeout=60, **options)
    if connected:
        assert lock.locked() is False
    with stopped(server):
        waiter = Waiter(lock, blocking_timeout=LIMIT)
        until("two requests fail", lambda: len(failures) > 1 or waiter.outcome)
    waiter.join(LIMIT)
    assert waiter.outcome is True


def test_a_wait_for_several_locks_outlasts_a_server_that_is_silent_at_first(server, failures):
    with redis.Redis.from_url(server.url, socket_timeout=0.5, retry=Retry(NoBackoff(), 0)) as client:
        locks = dlock.lock_path(client, "a/b", timeout=60, thread_local=False)
        with stopped(server):
            waiter = Waiter(locks, blocking_timeout=LIMIT)
            until("two requests fail", lambda: len(failures) > 1 or waiter.outcome)
        waiter.join(LIMIT)
        assert waiter.outcome is True
        locks.release()


def test_a_wait_outlasts_a_connection_that_breaks_at_its_first_request(r, locks, proxy):
    proxy.match, proxy.cut_replies = b"ACQUIRE", 2
    lock = locks.lock(locks.client(proxy.url, **locks.retries(0)), "foo", timeout=60)
    assert lock.acquire()
    assert proxy.lost == 2
    assert r.execute_command("DLOCK.HOLDS", "foo", lock.local.token) == 1


def test_a_wait_raises_when_the_server_is_silent_from_its_first_request_on(proxy, locks, monkeypatch):
    monkeypatch.setattr("dlock._single_attempt.KEEP", 1.0)
    proxy.silent = True
    lock = locks.lock(locks.client(proxy.url, socket_timeout=0.2, **locks.retries(0)), "foo", timeout=60)
    for limit in None, 0.5:
        with pytest.raises(TimeoutError):
            lock.acquire(blocking_timeout=limit)


def test_one_try_raises_when_the_server_is_silent(proxy, locks, failures):
    proxy.silent = True
    lock = locks.lock(locks.client(proxy.url, socket_timeout=0.2, **locks.retries(0)), "foo", timeout=60)
    for options in {"blocking": False}, {"blocking_timeout": 0}:
        failures.clear()
        with pytest.raises(TimeoutError):
            lock.acquire(**options)
        assert len(failures) <= 1


def test_a_wait_raises_at_once_when_no_server_is_at_the_address(locks, failures):
    port = Port()
    client = locks.client(f"redis://127.0.0.1:{port.number}", **locks.retries(0))
    try:
        with pytest.raises(ConnectionError):
            locks.lock(client, "foo", timeout=60).acquire()
    finally:
        port.close()
    assert len(failures) <= 1


@pytest.mark.parametrize("acquires", [True, False])
def test_a_wait_begins_while_the_master_fails_over(r, server, locks, acquires):
    kind = ".asyncio" if locks.loop else ""
    sentinels = importlib.import_module(f"{locks.library}{kind}.sentinel")
    down, asked = Port(), []

    def address():
        asked.append(now())
        return "127.0.0.1", down.number if len(asked) == 1 else server.port

    class Sentinel(sentinels.Sentinel):
        def discover_master(self, name):
            return address()

    class AsyncSentinel(sentinels.Sentinel):
        async def discover_master(self, name):
            return address()

    made = (AsyncSentinel if kind else Sentinel)([])
    client = made.master_for("main", socket_timeout=5, **locks.retries(0))
    locks.clients.append(client)
    try:
        lock = locks.lock(client, "foo", timeout=60)
        assert lock.acquire(blocking_timeout=LIMIT) if acquires else lock.wait_until_free(LIMIT)
    finally:
        down.close()
    assert len(asked) > 1


def test_a_wait_polls_when_its_user_may_not_subscribe(r, locks, server, holder, monkeypatch):
    r.execute_command("ACL", "SETUSER", "plain", "on", ">secret", "~*", "resetchannels", "+@all")
    url = server.url.replace("//", "//plain:secret@")
    client = locks.client(url)
    # The first acquire waits until the client's attempt to subscribe has failed. The second acquire must poll
    # without waiting for another attempt, which may take 1000 s with these limits.
    for name in "_single_attempt.SUBSCRIBING", "_threads.LIMIT", "_tasks.LIMIT":
        monkeypatch.setattr(f"dlock.{name}", 1000)
    for _ in range(2):
        lock = locks.lock(client, "foo", timeout=30, sleep=0.05, thread_local=False)
        waiter = Waiter(lock)
        until("a client waits", lambda: waiters(r) == 1)
        holder.release()
        waiter.join(20)
        assert waiter.outcome is True
        lock.release()
        r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)


def test_acquire_raises_for_a_cycle_of_tokens(r, get_lock):
    def pair(first, second, token):
        one, two = get_lock(first, timeout=30), get_lock(second, timeout=30)
        assert one.acquire(token=token)
        return one, two

    a1, b1 = pair("a", "b", "one")
    b2, a2 = pair("b", "a", "two")
    waiter = Waiter(b1, token="one")
    until("a client waits", lambda: waiters(r, "b") == 1)
    with pytest.raises(dlock.DeadlockError):
        a2.acquire(token="two")
    assert waiters(r, "a") == 0
    b2.release()
    waiter.join(20)
    assert waiter.outcome is True
    a1.release()
    assert r.exists("a") == 0


def test_a_dead_waiter_delays_the_others_only_until_its_position_expires(r, get_lock, holder):
    def retain():
        """Retains the position of another process, which dies later."""
        return r.execute_command("DLOCK.ACQUIRE", "foo", "dead", 60_000, "QUEUE", 1000) is None

    assert retain()
    waiter = Waiter(get_lock(timeout=30))
    until("a client waits", lambda: retain() and waiters(r) == 2)
    holder.release()
    waiter.join(20)
    assert waiter.outcome is True


def test_a_cancelled_wait_leaves_the_queue(r, server, holder):
    async def main():
        async with patient_async_client(server) as client:
            lock = dlock.asyncio.Lock(client, "foo", timeout=60)
            task = asyncio.create_task(lock.acquire())
            while not waiters(r):
                await asyncio.sleep(0.005)
            task.cancel()
            await asyncio.wait([task], timeout=10)
            assert task.cancelled()
            assert waiters(r) == 0

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_wait_is_unregistered_when_cancelled_before_its_subscription(server, holder, monkeypatch):
    async def never(*_):
        await asyncio.Event().wait()

    monkeypatch.setattr("redis.asyncio.client.PubSub.subscribe", never)

    async def main():
        async with patient_async_client(server) as client:
            task = asyncio.create_task(dlock.asyncio.Lock(client, "foo", timeout=60).acquire())
            registry = None
            while not (registry and registry.waits):
                await asyncio.sleep(0)
                registry = next(iter(_tasks.background().registries.values()), None)
            # The client joins the queue only after the subscription, so the server has no position of it.
            task.cancel()
            await asyncio.wait([task], timeout=10)
            assert task.cancelled()
            assert not registry.waits

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_wait_is_unregistered_when_interrupted_before_its_subscription(server, holder, monkeypatch):
    class Interrupted(threading.Event):
        def wait(self, timeout=None):
            raise KeyboardInterrupt

    registries, done = [], threading.Event()
    original_open = _waits.WaitRegistry.open

    def open_interrupted(registry):
        registries.append(registry)
        wait = original_open(registry)
        wait.event = Interrupted()
        return wait

    monkeypatch.setattr(_waits.WaitRegistry, "open", open_interrupted)
    monkeypatch.setattr("redis.client.PubSub.subscribe", lambda *_: done.wait(20))
    with patient_client(server) as client:
        with pytest.raises(KeyboardInterrupt):
            dlock.Lock(client, "foo", timeout=60).acquire()
        assert [len(registry.waits) for registry in registries] == [0]
        done.set()


def test_the_listening_connection_closes_when_no_client_waits(r, locks, server, holder, monkeypatch):
    monkeypatch.setattr(_waits, "IDLE", 0.1)
    name = f"idle-{locks.kind}"
    waiter = Waiter(locks.lock(locks.client(server.url, client_name=name), "foo", timeout=30))
    until("a client waits", lambda: waiters(r) == 1)
    until("a connection listens", lambda: listeners(r, name) == 1)
    holder.release()
    waiter.join(20)
    until("no connection listens", lambda: listeners(r, name) == 0)


# The words of errors that mean "no answer now", with what makes a server answer them.
REFUSALS = {
    "NOREPLICAS": ("CONFIG", "SET", "min-replicas-to-write", "1"),
    "OOM": ("CONFIG", "SET", "maxmemory", "1"),
    "READONLY": ("REPLICAOF", "127.0.0.1", "1"),
}


@contextlib.contextmanager
def refusing(r, word):
    """Lets the server answer ACQUIRE with this error. The function that it yields ends that, and the context
    does, too."""
    undo = {"NOREPLICAS": "0", "OOM": "0"}

    def end():
        if word == "READONLY":
            r.execute_command("REPLICAOF", "NO", "ONE")
        else:
            r.execute_command(*REFUSALS[word][:3], undo[word])

    r.execute_command(*REFUSALS[word])
    try:
        yield end
    finally:
        end()


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("word", sorted(REFUSALS))
def test_a_wait_outlasts_a_refusal_of_the_server(r, get_lock, holder, monkeypatch, word, queued):
    lock = get_lock(timeout=60, thread_local=False)
    monkeypatch.setattr("dlock._waits.ASK", 0.1)
    if queued:
        waiter = Waiter(lock, blocking_timeout=LIMIT)
        until("a client waits", lambda: waiters(r) == 1)
    with refusing(r, word) as end:
        if not queued:
            waiter = Waiter(lock, blocking_timeout=LIMIT)
        until("the server refuses an ACQUIRE", lambda: refused(r))
        assert waiter.outcome is None
        end()
        r.delete("foo")
        waiter.join(LIMIT)
    assert waiter.outcome is True
    lock.release()


def refused(r):
    stats = r.info("commandstats").items()
    counts = [found for name, found in stats if name.lower() == "cmdstat_dlock.acquire"]
    return sum(found["rejected_calls"] + found["failed_calls"] for found in counts)


@pytest.mark.parametrize("word", sorted(REFUSALS))
def test_a_wait_raises_the_last_refusal_at_its_limit(r, get_lock, word):
    lock = get_lock(timeout=60)
    with refusing(r, word):
        with pytest.raises(ResponseError) as raised:
            lock.acquire(blocking_timeout=0.3)
        assert _protocol.error_word(raised.value) == word
        with pytest.raises(ResponseError) as raised:
            lock.acquire(blocking=False)
        assert _protocol.error_word(raised.value) == word


@pytest.mark.parametrize(
    "text", ["BUSY a script runs", "MISCONF no disk", "LOADING the file", "MASTERDOWN no link", "CLUSTERDOWN"]
)
def test_the_errors_that_pass_are_recognised(text):
    answer = PythonParser(65536).parse_error(text)
    assert _protocol.is_passing(answer)
    assert not _protocol.is_misuse(answer)


def test_a_stranger_cannot_end_a_wait(r, server, get_lock, holder):
    """The messages of waits have a secret."""
    waiter = Waiter(get_lock(timeout=60))
    until("a client waits", lambda: waiters(r) == 1)
    for channel in r.pubsub_channels():
        for number in range(20):
            r.publish(channel, f"{number} cancelled")
            r.publish(channel, f"{number} granted 5")
    assert waiter.outcome is None
    holder.release()
    waiter.join(LIMIT)
    assert waiter.outcome is True


@contextlib.contextmanager
def full_queues(*servers):
    """Lets no client join a queue."""
    option = "dlock.max-waiters-per-key"
    before = [server.config_get(option)[option] for server in servers]
    for server in servers:
        server.config_set(option, 0)
    try:
        yield
    finally:
        for server, value in zip(servers, before):
            server.config_set(option, value)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_wait_of_no_time_is_one_try(r, get_lock, holder, limit):
    with full_queues(r):
        # The second time, the client knows that the lock is contended.
        for _ in range(2):
            assert get_lock().acquire(blocking_timeout=limit) is False
        with pytest.raises(dlock.QueueFullError):
            get_lock().acquire(blocking_timeout=LIMIT)


def test_a_wait_of_no_time_for_a_quorum_is_one_try(members):
    with members.lock(timeout=60):
        # The client knows that the lock is contended.
        assert members.lock().acquire(blocking_timeout=0.05) is False
    with members.lock(timeout=60), full_queues(*members.direct):
        for _ in range(2):
            assert members.lock().acquire(blocking_timeout=0) is False
        with pytest.raises(dlock.QueueFullError):
            members.lock().acquire(blocking_timeout=LIMIT)


def test_more_waits_than_the_pool_has_connections_all_get_the_lock(r, locks, server, holder, monkeypatch):
    # The background retains the positions.
    monkeypatch.setattr("dlock._waits.ASK", 0.2)
    monkeypatch.setattr("dlock._waits.SHORTEST_ASK", 0.2)
    client = locks.client(server.url, socket_timeout=LIMIT, max_connections=3)
    started = [
        Waiter(locks.lock(client, "foo", timeout=60, shared=True, thread_local=False)) for _ in range(20)
    ]
    until("all clients wait", lambda: waiters(r) == 20)
    asked = calls(r, "dlock.acquire")
    until("the positions are retained", lambda: calls(r, "dlock.acquire") >= asked + 40)
    assert waiters(r) == 20
    holder.release()
    for waiter in started:
        waiter.join(LIMIT)
        assert waiter.outcome is True
        waiter.lock.release()
    assert r.exists("foo") == 0


def test_a_late_request_of_a_wait_that_has_ended_leaves_nothing(r, locks, proxy, holder, monkeypatch):
    """The request that retains the position stalls, while the wait ends."""
    monkeypatch.setattr("dlock._waits.ASK", 0.05)
    monkeypatch.setattr("dlock._waits.SHORTEST_ASK", 0.05)
    # Shorter than the wait for the thread: its own request must have failed before the proxy resumes.
    client = locks.client(proxy.url, socket_timeout=LIMIT / 10, **locks.retries(0))
    waiter = Waiter(locks.lock(client, "foo", timeout=60), blocking_timeout=6)
    until("the position is retained", lambda: calls(r, "dlock.acquire") >= 4)
    proxy.stall()
    waiter.join(LIMIT)
    assert not waiter.is_alive()
    assert waiter.outcome is not True
    proxy.resume()
    # The late request arrives, and then the RELEASE that removes its position.
    until("no position is left", lambda: waiters(r) == 0)
    holder.release()
    until("the lock is free", lambda: not r.exists("foo"))
