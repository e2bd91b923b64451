"""A client of a quorum, of one server, of a cluster or of sentinels, under faults: it locks, writes and
releases repeatedly until its input ends.

python contender.py threads|asyncio|command NUMBER LEASE URL.., with the lease in ms. `command` is the command
dlock, which DLOCK_COMMAND names. In the output, the name of each hold begins with NUMBER.
`crates/client/tests/chaos/foreign_clients.rs` reads the output.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import random
import subprocess
import sys
import threading
import time

import dlock
import dlock.asyncio
import redis
import redis.asyncio
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.backoff
import redis.retry
import redis.sentinel
from dlock._clock import now

# DLOCK_STEADY=ms: the client holds each lock for this time, and causes no faults itself.
STEADY = float(os.environ.get("DLOCK_STEADY", 0)) / 1000
RESOURCES = os.environ.get("DLOCK_RESOURCES", "r" if STEADY else "ledger desk till").split()
# Timeout of each wait, in seconds.
WAIT_TIMEOUT = float(os.environ.get("DLOCK_WAIT", 3000)) / 1000
# A wait or a release may take this much longer, in seconds.
MARGIN = 10

stopping = threading.Event()


def say(*words: object) -> None:
    print(*words, flush=True)


def happens(odds: float) -> bool:
    return not STEADY and random.random() < odds


def micros(seconds: float) -> int:
    return int(seconds * 1e6)


def nodes(url: str) -> list[tuple[str, int]]:
    """Returns the nodes that redis-cluster://HOST:PORT?node=HOST:PORT&node=.. names, or redis-sentinel://.."""
    words = url.split("://")[1].replace("?", "&").split("&")
    addresses = [word.removeprefix("node=") for word in words if not word.startswith("sentinelServiceName=")]
    return [(host, int(port)) for host, port in (address.split(":") for address in addresses)]


def connect(url: str, clients) -> redis.Redis | redis.RedisCluster:
    """`clients` is redis or redis.asyncio."""
    if url.startswith("redis-cluster:"):
        startup_nodes = [clients.cluster.ClusterNode(host, port) for host, port in nodes(url)]
        return clients.RedisCluster(startup_nodes=startup_nodes, socket_timeout=1)
    if url.startswith("redis-sentinel:"):
        # By default, redis-py tries for longer than any wait of these clients.
        options = dict(socket_timeout=1, retry=clients.retry.Retry(redis.backoff.NoBackoff(), 1))

        class Sentinel(clients.sentinel.Sentinel):
            def discover_master(self, name):
                # redis-py 8.1.0 reorders the list, and loses sentinels if two threads or tasks do it at once.
                self.sentinels = list(known)
                return super().discover_master(name)

        sentinel = Sentinel(nodes(url), sentinel_kwargs=options, **options)
        known = sentinel.sentinels
        return sentinel.master_for("locks")
    return clients.Redis.from_url(url)


class Command:
    """A lock that `dlock run` holds while the program that it runs copies its input."""

    def __init__(self, url: str, resource: str, lease: int) -> None:
        self.url, self.resource, self.lease = url, resource, lease
        self.lost = threading.Event()

    def acquire(self) -> bool:
        options = ["--ttl", f"{self.lease}ms", "--wait", f"{WAIT_TIMEOUT}s", "--quiet"]
        program = ["sh", "-c", "echo $DLOCK_FENCE; exec cat >/dev/null"]
        self.process = subprocess.Popen(
            [os.environ["DLOCK_COMMAND"], "run", self.resource, *options, "--", *program],
            env={**os.environ, "DLOCK_SERVERS": self.url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        fence = self.process.stdout.readline()
        if not fence:
            self.process.communicate()
            return False
        self.fence = int(fence)
        threading.Thread(target=self.watch, daemon=True).start()
        return True

    def watch(self) -> None:
        # The program ends early if the hold is lost.
        self.process.stdout.read()
        self.ended = time.monotonic()
        self.lost.set()

    def release(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


class Attempt:
    """One acquisition, and the output about it. The client only prints its writes. The test that reads the
    output carries out each write."""

    count = 0

    def __init__(self, number: str, lease: int) -> None:
        self.name = f"{number}:{Attempt.count}"
        Attempt.count += 1
        self.resource = random.choice(RESOURCES)
        # A holder that will pause does not renew its lease.
        self.pauses = happens(0.04)
        self.options = dict(timeout=lease / 1000, auto_renew=not self.pauses)
        # If set, the client gives up its wait after this time, in seconds.
        self.gives_up_after = random.uniform(0, 0.03) if happens(0.05) else None
        self.asked = time.monotonic()

    def begin(
        self, lock: dlock.Lock | dlock.asyncio.Lock | dlock.Redlock | dlock.asyncio.Redlock | Command
    ) -> None:
        self.lock, self.fence = lock, lock.fence
        self.since = time.monotonic()
        self.release_at = self.since + (STEADY or random.uniform(0, 1.5 if happens(0.05) else 0.005))
        say("holds")
        if self.pauses and not isinstance(lock, Command):
            # Blocks until after the end of the validity.
            time.sleep(self.valid_for() + random.uniform(0, 1))
        self.write()

    def valid_for(self) -> float:
        return max(self.lock.local.hold.valid_until - now(), 0)

    def write(self) -> None:
        say("writes", self.resource, self.fence, self.name)

    def continues(self) -> bool:
        if self.lock.lost.is_set():
            say("lost")
            return False
        return time.monotonic() < self.release_at

    def end(self) -> None:
        # The hold ends now, or has ended with its validity.
        at = time.monotonic()
        if not isinstance(self.lock, Command):
            until = min(at, at + self.lock.local.hold.valid_until - now())
        else:
            until = min(at, self.lock.ended) if self.lock.lost.is_set() else at
        moments = micros(self.asked), micros(self.since), micros(until)
        say("held", self.resource, self.fence, self.name, *moments)


async def outcome(returned: object) -> object:
    """Returns the outcome of a call: the returned value, awaited if it is awaitable."""
    return await returned if inspect.isawaitable(returned) else returned


def check_time(what: str, begun: float) -> None:
    took = time.monotonic() - begun
    if took > WAIT_TIMEOUT + MARGIN:
        say("overdue", what, int(1000 * took))


async def work(kind: str, number: str, lease: int, urls: list[str]) -> None:
    locks, clients = (dlock.asyncio, redis.asyncio) if kind == "asyncio" else (dlock, redis)
    servers = [] if kind == "command" else [connect(url, clients) for url in urls]
    quorum = dlock.Quorum(servers) if len(servers) > 1 else None
    while not stopping.is_set():
        attempt = Attempt(number, lease)
        # A client for threads gives up by a short timeout, one for asyncio by cancelling the wait.
        wait_timeout, cancel_after = WAIT_TIMEOUT, 2 * WAIT_TIMEOUT
        if attempt.gives_up_after is not None and kind == "threads":
            wait_timeout = attempt.gives_up_after
        elif attempt.gives_up_after is not None:
            cancel_after = attempt.gives_up_after
        options = dict(attempt.options, blocking_timeout=wait_timeout)
        if kind == "command":
            lock = Command(urls[0], attempt.resource, lease)
        elif quorum:
            lock = locks.Redlock(quorum, attempt.resource, fenced=True, **options)
        else:
            lock = locks.Lock(servers[0], attempt.resource, **options)
        try:
            acquired = await asyncio.wait_for(outcome(lock.acquire()), cancel_after)
        except (redis.RedisError, asyncio.TimeoutError):
            acquired = False
        check_time("acquire", attempt.asked)
        if not acquired:
            say("none")
            continue
        attempt.begin(lock)
        while attempt.continues():
            await asyncio.sleep(STEADY or random.uniform(0, 0.01))
            attempt.write()
        attempt.end()
        begun = time.monotonic()
        with contextlib.suppress(redis.RedisError):
            await outcome(lock.release())
        check_time("release", begun)


def main() -> None:
    kind, number, lease, *urls = sys.argv[1:]
    threading.Thread(target=lambda: (sys.stdin.read(), stopping.set()), daemon=True).start()
    asyncio.run(work(kind, number, int(lease), urls))


main()
