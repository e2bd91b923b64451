"""Fixtures: real servers, and locks for threads and for asyncio behind one interface."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import inspect
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import pytest
import redis
import redis.asyncio
from faults import Proxy

import dlock
import dlock.asyncio
from dlock import _tasks, _threads
from dlock._clock import now
from dlock._hold import Hold
from dlock._schedule import Job
from dlock._steps import Peer
from dlock._waits import Contention

SERVERS = dict(entry.split("=", 1) for entry in os.environ.get("DLOCK_TEST_SERVERS", "").split(",") if entry)
MODULE = os.environ.get("DLOCK_TEST_MODULE", "")
# The library of the clients under test: "redis" or "valkey". By default valkey-py for Valkey and redis-py for
# Redis.
LIBRARY = os.environ.get("DLOCK_TEST_CLIENT", "")
CLIENTS = {"redis": "Redis", "valkey": "Valkey"}
# Longest time in seconds that a test waits for a condition.
LIMIT = 30
# The value of a lock of redis-py or node-redlock.
FOREIGN_TOKEN = "0123456789abcdef" * 2


def pytest_terminal_summary(terminalreporter):
    """Prints the properties with the name "measured", in which tests record their results."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, value in report.user_properties:
            if name == "measured":
                terminalreporter.write_line(value)


def protocols():
    """Returns each server's name with a version of RESP. The versions alternate from server to server."""
    return [(server, 2 + number % 2) for number, server in enumerate(sorted(SERVERS))] or [("none", 2)]


def client_class(library, *, is_async=False):
    """Returns the class of clients of a library."""
    module = importlib.import_module(f"{library}.asyncio" if is_async else library)
    return getattr(module, CLIENTS[library])


def cluster_class(library, *, is_async=False):
    module = importlib.import_module(f"{library}.asyncio" if is_async else library)
    return getattr(module, {"redis": "RedisCluster", "valkey": "ValkeyCluster"}[library])


def calls(client, command):
    """Returns how many calls of a command the server has executed."""
    stats = client.info("commandstats")
    return sum(found["calls"] for name, found in stats.items() if name.lower() == f"cmdstat_{command}")


def expire(r, lock):
    """Ends the lease of a hold at once, on the server and for the client."""
    hold = lock.local.hold
    assert r.execute_command("DLOCK.EXTEND", lock.name, hold.token, 1) == 1
    until("the lease ends", lambda: not r.exists(lock.name))
    hold.valid_until = now()


def until_renewed_twice(r, lock):
    """Waits for two renewals of a hold with a lease of 60 s. Before each, it sets the lease to 30 s. A
    renewal is due once less than 40 s (two thirds of 60 s) are left."""
    hold = lock.local.hold
    for _ in range(2):
        assert r.execute_command("DLOCK.EXTEND", lock.name, hold.token, 30_000) == 1
        hold.valid_until = min(hold.valid_until, now() + 30)
        until("the server has the new lease", lambda: r.execute_command("DLOCK.PTTL", lock.name) > 30_000)
        until("the client relies on the new lease", lambda: hold.valid_until > now() + 30)


@contextlib.contextmanager
def stopped(server):
    """Suspends the process of a server."""
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


def is_held(r):
    """Returns whether the lock "foo" is held. The key may remain for a moment after the end of a delay."""
    return r.execute_command("DLOCK.PTTL", "foo") != -2


def until(what, condition, limit=LIMIT):
    """Waits for a condition, and returns its value. The error names the condition."""
    end = time.monotonic() + limit
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < end, f"not in {limit} s: {what}"
        time.sleep(0.005)


class Port:
    """A port of 127.0.0.1 that no other test takes until `close`, whether or not a server listens there. A
    node of a cluster also uses the port 10000 above its own. Both are below 32768, where the ports of
    outgoing connections begin.

    The claim is a socket that listens on the same port of 127.0.0.2. The tests in Rust and Node make such
    claims, too."""

    def __init__(self):
        while True:
            self.number = random.randrange(10_000, 20_000)
            self._claim = listen("127.0.0.2", self.number)
            if self._claim is None:
                continue
            if is_free(self.number) and is_free(self.number + 10_000):
                return
            self.close()

    def close(self):
        self._claim.close()


def listen(host, port):
    """Listens on a port. Returns the listener, or None if the port is in use."""
    try:
        return socket.create_server((host, port))
    except OSError as why:
        if why.errno != errno.EADDRINUSE:
            raise
        return None


def is_free(port):
    """Returns whether a server can listen on this port of 127.0.0.1."""
    listener = listen("127.0.0.1", port)
    if listener is not None:
        listener.close()
    return listener is not None


def remove_locks(client):
    """Removes all keys, and the waiters of database 0. FLUSHALL does not remove the waiters: after it, the
    server grants each lock to its first waiter. So FLUSHALL is repeated until no lock is left."""
    until("no lock is left", lambda: client.flushall() and not client.execute_command("DLOCK.LIST", 0)[1])


class Server:
    """A server with the module, on a free port, in a folder of its own."""

    def __init__(self, program, *options):
        self.program = program
        self.options = options
        self._port = Port()
        self.port = self._port.number
        self.folder = tempfile.mkdtemp(prefix="dlock-python-")
        self.start()

    def start(self):
        arguments = ["--port", str(self.port), "--save", "", "--dir", self.folder, "--loadmodule", MODULE]
        log = open(pathlib.Path(self.folder) / "log", "ab")  # noqa: SIM115
        self.process = subprocess.Popen(
            [self.program, "--bind", "127.0.0.1", *arguments, *self.options], stdout=log, stderr=log
        )
        self.url = f"redis://127.0.0.1:{self.port}"
        until("the server answers", self.answers)

    def answers(self):
        assert self.process.poll() is None, (pathlib.Path(self.folder) / "log").read_text()
        try:
            with redis.Redis.from_url(self.url) as client:
                return client.ping()
        except redis.RedisError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.kill()
        self._port.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def patient_client(server, **options):
    """Returns a client that waits 30 s for a reply. The 5 s of redis-py are too few on a busy machine."""
    return redis.Redis.from_url(server.url, socket_timeout=LIMIT, **options)


def patient_async_client(server):
    """Returns a client for asyncio that waits 30 s for a reply."""
    return redis.asyncio.Redis.from_url(server.url, socket_timeout=LIMIT)


@pytest.fixture(scope="session", params=sorted(SERVERS) or ["none"])
def shared_server(request):
    if not SERVERS or not MODULE:
        pytest.fail("set DLOCK_TEST_SERVERS and DLOCK_TEST_MODULE, or run make test-clients")
    server = Server(SERVERS[request.param])
    yield server
    server.stop()


def end_holds(schedule):
    """Ends the holds that a background would still claim or renew."""
    for _, _, task, _ in list(schedule._entries.values()):
        if isinstance(task, Hold):
            task.end()


def until_answered(links, submit):
    """Waits until the requests under way on these links of a background are answered. A link sends the next
    request of each job only after the answers to the last ones. A claim whose hold has ended sends one more,
    so there are two PINGs. ``submit`` is called with steps and a link."""
    answered = []

    def ping(link):
        for _ in range(2):
            with contextlib.suppress(Exception):
                yield ("PING",)
        answered.append(link)

    links = [link for link in links if hasattr(link.client, "connection_pool")]
    for link in links:
        submit(ping(link), link)
    until("the background has an answer to each request", lambda: len(answered) == len(links))


@pytest.fixture
def quiet_background():
    """Ends the background work of the test for threads. An ACQUIRE of it, such as the claim of a hold that a
    test leaves behind, would take the lock of the next test."""
    background = _threads._background
    earlier = set(background._links.values())
    yield
    with background._lock:
        end_holds(background._schedule)
        links = set(background._links.values()) - earlier
    until_answered(links, lambda steps, link: background.submit(steps, link.client, is_member=link.is_member))


@pytest.fixture(autouse=True)
def fresh_client_state(quiet_background, monkeypatch):
    """Makes the client forget the locks that earlier tests found taken, and the owners (OWNER in ACQUIRE) of
    its threads. Otherwise the client would queue at once for a lock that an earlier test found taken."""
    monkeypatch.setattr("dlock._single_attempt._contended", Contention())
    monkeypatch.setattr("dlock._owners._threads", threading.local())


def set_patience(monkeypatch, seconds):
    """Sets how long a release waits for its answers."""
    for module in "_threads", "_tasks":
        monkeypatch.setattr(f"dlock.{module}.PATIENCE", seconds)


@pytest.fixture
def patience(monkeypatch):
    """Lets a release wait up to 10 s for its answers, because a busy machine is slow."""
    set_patience(monkeypatch, 10)


@pytest.fixture
def slow_answers(monkeypatch):
    """Lets a member take up to 10 s for its answer, because a busy machine answers late."""
    monkeypatch.setattr("dlock._clients.LIMIT", 10)
    for module in "_threads", "_tasks":
        monkeypatch.setattr(f"dlock.{module}.ASK_LIMIT", 20)


@pytest.fixture
def server(shared_server):
    """A server without keys, and without waiters."""
    with patient_client(shared_server) as client:
        remove_locks(client)
        client.config_resetstat()
    return shared_server


@pytest.fixture
def own_server(shared_server):
    """A server that the test may kill."""
    server = Server(shared_server.program)
    yield server
    server.stop()


CLUSTER_OPTIONS = "--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"


@pytest.fixture(scope="module")
def cluster(shared_server):
    """Three masters that share the slots."""
    nodes = start_cluster(shared_server.program)
    yield nodes
    for node in nodes:
        node.stop()


def start_cluster(program, *options):
    nodes = [Server(program, *CLUSTER_OPTIONS, *options) for _ in range(3)]
    clients = [patient_client(node) for node in nodes]
    for number, client in enumerate(clients):
        first = 16384 * number // 3
        last = 16384 * (number + 1) // 3 - 1
        client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
        client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        client.execute_command("CLUSTER MEET", "127.0.0.1", nodes[0].port)

    def is_whole(client):
        info = client.execute_command("CLUSTER INFO")
        if info["cluster_state"] == "ok" and info["cluster_slots_assigned"] == "16384":
            return True
        # A node forgets a handshake that takes longer than cluster-node-timeout.
        client.execute_command("CLUSTER MEET", "127.0.0.1", nodes[0].port)
        return False

    for client in clients:
        until("the cluster is whole", lambda client=client: is_whole(client))
        client.close()
    return nodes


@pytest.fixture
def sentinel(shared_server, tmp_path):
    """A master, its replica and the sentinel that watches them. On a busy machine, a master may be silent for
    a while. So the sentinel takes none for dead before `kill_master`."""
    master = Server(shared_server.program)
    replica = Server(shared_server.program, "--replicaof", "127.0.0.1", str(master.port))
    with redis.Redis(port=master.port) as client:
        until("the replica is connected", lambda: client.info("replication").get("connected_slaves") == 1)
    with started_sentinel(shared_server.program, tmp_path, master, 1) as port:
        yield port, master
    master.stop()
    replica.stop()


@contextlib.contextmanager
def started_sentinel(program, folder, master, replicas):
    """Starts a sentinel that watches a master, and waits until it knows the replicas. Returns its port."""
    claimed = Port()
    config = folder / f"sentinel-{claimed.number}.conf"
    config.write_text(
        f"sentinel monitor main 127.0.0.1 {master.port} 1\n"
        "sentinel down-after-milliseconds main 600000\nsentinel failover-timeout main 3000\n"
    )
    log = open(pathlib.Path(folder) / "log", "ab")  # noqa: SIM115
    options = "--bind", "127.0.0.1", "--port", str(claimed.number)
    process = subprocess.Popen([program, str(config), "--sentinel", *options], stdout=log, stderr=log)

    def knows_replicas():
        try:
            with redis.Redis(port=claimed.number) as client:
                return len(client.sentinel_slaves("main")) == replicas
        except redis.RedisError:
            return False

    until("the sentinel knows the replicas", knows_replicas)
    yield claimed.number
    process.kill()
    process.wait()
    claimed.close()


def kill_master(sentinel, master):
    """``sentinel``: a client of the sentinel, which begins a failover soon."""
    master.kill()
    sentinel.execute_command("SENTINEL", "SET", "main", "down-after-milliseconds", 300)


@pytest.fixture
def r(server):
    """A client of the server."""
    with patient_client(server) as client:
        yield client


# Fixtures with a name in SERVERS as parameter. The fixture `locks` chooses the client library by this name.
SERVER_FIXTURES = "shared_server", "masters", "five_masters", "moved"


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(LIMIT)

    def close(self):
        async def end_work():
            background = _tasks.background()
            end_holds(background._schedule)
            return list(background._links.values())

        def submit(steps, link):
            self.loop.call_soon_threadsafe(link.submit, Job(steps, None))

        until_answered(self.run(end_work()), submit)

        async def cancel():
            # When a background task of dlock ends, it may start another one, which closes the connection.
            while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
                for task in tasks:
                    task.cancel()
                # redis-py can swallow a cancellation, so it is repeated.
                await asyncio.wait(tasks, timeout=0.5)

        self.run(cancel())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


class Blocking:
    """An asyncio lock with the methods of a lock for threads."""

    def __init__(self, lock, loop):
        self.lock = lock
        self.loop = loop

    def __getattr__(self, name):
        found = getattr(self.lock, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args, **options: self.loop.run(found(*args, **options))

    def __enter__(self):
        self.loop.run(self.lock.__aenter__())
        return self

    def __exit__(self, *error):
        return self.loop.run(self.lock.__aexit__(*error))


class Locks:
    """Makes locks of one kind ("threads" or "asyncio"), over clients of one library."""

    def __init__(self, kind, library):
        self.kind = kind
        self.library = library
        self.loop = Loop() if kind == "asyncio" else None
        self.clients = []

    def retries(self, times):
        """Returns the options of a client that sends a command again, up to this number of times, if its
        connection fails."""
        module = "asyncio.retry" if self.kind == "asyncio" else "retry"
        retry = importlib.import_module(f"{self.library}.{module}").Retry
        backoff = importlib.import_module(f"{self.library}.backoff").NoBackoff()
        failures = [importlib.import_module(f"{self.library}.exceptions").ConnectionError] if times else []
        return {"retry": retry(backoff, times), "retry_on_error": failures}

    def client(self, url, **options):
        kind = client_class(self.library, is_async=self.kind == "asyncio")
        if self.loop is None:
            client = kind.from_url(url, **options)
        else:

            async def make():
                return kind.from_url(url, **options)

            client = self.loop.run(make())
        self.clients.append(client)
        return client

    def lock(self, client, name, *, redlock=False, **options):
        module = dlock if self.loop is None else dlock.asyncio
        lock_class = module.Redlock if redlock else module.Lock
        if self.loop is None:
            return lock_class(client, name, **options)

        # The loop has a thread of its own, and the tests read the lock from theirs.
        options["thread_local"] = False

        async def make():
            return lock_class(client, name, **options)

        return Blocking(self.loop.run(make()), self.loop)

    def call_soon(self, function):
        """Calls a function of the client where its code may be called from another thread."""
        if self.loop is None:
            function()
        else:
            self.loop.loop.call_soon_threadsafe(function)

    def close(self):
        for client in self.clients:
            if self.loop is None:
                client.close()
            else:
                self.loop.run(client.connection_pool.disconnect())
        if self.loop is not None:
            self.loop.close()


class Carrier:
    """A client of one library, for threads or asyncio, and what calls it."""

    def __init__(self, library, is_async):
        self.library = library
        self.is_async = is_async
        self.loop = Loop() if is_async else None
        self.module = dlock.asyncio if is_async else dlock
        self.client = None

    def connect(self, make):
        async def connect():
            return make()

        self.client = make() if self.loop is None else self.loop.run(connect())

    def run(self, function, *args, **options):
        """Calls a function, or awaits it in the event loop."""
        if self.loop is None:
            outcome = function(*args, **options)
            return list(outcome) if hasattr(outcome, "__next__") else outcome

        async def call():
            outcome = function(*args, **options)
            if hasattr(outcome, "__aiter__"):
                return [each async for each in outcome]
            return await outcome if hasattr(outcome, "__await__") else outcome

        return self.loop.run(call())

    def lock(self, name="foo", **options):
        return self.run(self.module.Lock, self.client, name, **{"thread_local": False, **options})

    def package(self, name):
        return importlib.import_module(f"{self.library}.{'asyncio.' if self.is_async else ''}{name}")

    def close(self):
        if self.loop is None:
            self.client.close()
        else:
            with contextlib.suppress(Exception):
                self.run(getattr(self.client, "aclose", self.client.close))
            self.loop.close()


@pytest.fixture(params=["redis", "redis-asyncio", "valkey", "valkey-asyncio"])
def carrier(request):
    made = Carrier(request.param.partition("-")[0], "asyncio" in request.param)
    yield made
    made.close()


@pytest.fixture(params=["threads", "asyncio"])
def locks(request):
    servers = [server for name, server in request.node.callspec.params.items() if name in SERVER_FIXTURES]
    library = LIBRARY or ("valkey" if servers and servers[0].startswith("valkey") else "redis")
    made = Locks(request.param, library)
    yield made
    made.close()


@pytest.fixture
def get_lock(locks, server):
    """Returns a function that makes a lock at the server, by default "foo"."""
    client = locks.client(server.url)
    return lambda name="foo", **options: locks.lock(client, name, **options)


@pytest.fixture
def proxy(server):
    """A proxy in front of the server."""
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def get_proxied_lock(locks, proxy):
    """Returns a function that makes a lock "foo" through the proxy, over a client that sends each command
    only once."""

    def make(**options):
        timeout = options.pop("socket_timeout", 5)
        client = locks.client(proxy.url, socket_timeout=timeout, **locks.retries(0))
        return locks.lock(client, "foo", **options)

    return make


@pytest.fixture(scope="session", params=sorted(SERVERS))
def masters(request):
    servers = [Server(SERVERS[request.param]) for _ in range(3)]
    yield servers
    for server in servers:
        server.stop()


class Members:
    """A quorum of masters, each behind a proxy."""

    def __init__(self, masters, locks):
        # Clients that reach the masters without the proxies.
        self.direct = [patient_client(master) for master in masters]
        for client in self.direct:
            remove_locks(client)
        self.proxies = [Proxy(master.port) for master in masters]
        self.locks = locks
        self.quorum = self.make_quorum([proxy.url for proxy in self.proxies])

    def make_quorum(self, urls):
        return dlock.Quorum(
            [self.locks.client(url, socket_timeout=5, **self.locks.retries(0)) for url in urls]
        )

    def lock(self, name="foo", quorum=None, **options):
        return self.locks.lock(quorum or self.quorum, name, redlock=True, **options)

    def until_idle(self):
        """Waits until no request to any member is under way. A member gets one command at a time, so a PING
        is answered after all earlier commands. The client may send more commands because of this answer, such
        as one that sets its name. The second PING waits for these commands."""
        for _ in range(2):
            steps = self.quorum.ask_all(("PING",))
            if self.locks.loop is None:
                _threads.run(steps, self.quorum)
            else:
                self.locks.loop.run(_tasks.run(steps, self.quorum))

    def until_held(self):
        until("all members have the hold", lambda: all(self.held()))

    def until_free(self):
        until("no member has a hold", lambda: not any(self.held()))

    def held(self):
        """Returns for each member whether it has a hold of the lock "foo"."""
        return [client.execute_command("DLOCK.PTTL", "foo") != -2 for client in self.direct]

    def close(self):
        for proxy in self.proxies:
            proxy.close()
        for client in self.direct:
            client.close()


def queue_order(members, masters):
    """Returns the members in the order in which all clients try their queues."""
    run_ids = [patient_client(master).info("server")["run_id"] for master in masters]
    return sorted(range(len(masters)), key=run_ids.__getitem__)


def quorum_of(members, silent=()):
    """Returns a quorum of this number of members, without servers. All members have run ids, and the `silent`
    ones have not answered the last request."""
    quorum = dlock.Quorum([redis.Redis() for _ in range(members)])
    for member in quorum.all():
        quorum.record_answer(member, "anything", Peer(f"server {member}"))
        if member in silent:
            quorum.record_answer(member, redis.TimeoutError(), Peer(None))
    return quorum


@pytest.fixture
def members(masters, locks):
    made = Members(masters, locks)
    yield made
    made.close()
