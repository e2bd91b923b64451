"""A client of a quorum, or of one server, under faults: it locks, writes and releases repeatedly until its
input ends.

python contender.py threads|asyncio NUMBER LEASE URL.., with the lease in ms. In the output, the name of each
hold begins with NUMBER. `crates/client/tests/chaos/foreign_clients.rs` reads the output.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import random
import sys
import threading
import time

import dlock
import dlock.asyncio
import redis
import redis.asyncio
from dlock._clock import now

RESOURCES = os.environ.get("DLOCK_RESOURCES", "ledger stock till").split()
# Timeout of each wait, in seconds.
WAIT_TIMEOUT = float(os.environ.get("DLOCK_WAIT", 3000)) / 1000
# DLOCK_STEADY=ms: the client uses one resource, holds it for this time, and causes no faults itself.
STEADY = float(os.environ.get("DLOCK_STEADY", 0)) / 1000

stopping = threading.Event()


def say(*words: object) -> None:
    print(*words, flush=True)


def happens(odds: float) -> bool:
    return not STEADY and random.random() < odds


def micros(seconds: float) -> int:
    return int(seconds * 1e6)


class Attempt:
    """One acquisition, and the output about it. The client only prints its writes. The test that reads the
    output carries out each write."""

    count = 0

    def __init__(self, number: str, lease: int) -> None:
        self.name = f"{number}:{Attempt.count}"
        Attempt.count += 1
        self.resource = "r" if STEADY else random.choice(RESOURCES)
        # A holder that will pause does not renew its lease.
        self.pauses = happens(0.04)
        self.options = dict(timeout=lease / 1000, auto_renew=not self.pauses)
        # If set, the client gives up its wait after this time, in seconds.
        self.gives_up_after = random.uniform(0, 0.03) if happens(0.05) else None
        self.asked = time.monotonic()

    def begin(self, lock: dlock.Lock | dlock.asyncio.Lock | dlock.Redlock | dlock.asyncio.Redlock) -> None:
        self.lock, self.fence = lock, lock.fence
        self.since = time.monotonic()
        self.release_at = self.since + (STEADY or random.uniform(0, 1.5 if happens(0.05) else 0.005))
        say("holds")
        if self.pauses:
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
        until = min(at, at + self.lock.local.hold.valid_until - now())
        moments = micros(self.asked), micros(self.since), micros(until)
        say("held", self.resource, self.fence, self.name, *moments)


async def outcome(returned: object) -> object:
    """Returns the outcome of a call: the returned value, awaited if it is awaitable."""
    return await returned if inspect.isawaitable(returned) else returned


async def work(kind: str, number: str, lease: int, urls: list[str]) -> None:
    locks, clients = (dlock, redis) if kind == "threads" else (dlock.asyncio, redis.asyncio)
    servers = [clients.Redis.from_url(url) for url in urls]
    quorum = dlock.Quorum(servers)
    while not stopping.is_set():
        attempt = Attempt(number, lease)
        # A client for threads gives up by a short timeout, one for asyncio by cancelling the wait.
        wait_timeout, cancel_after = WAIT_TIMEOUT, 2 * WAIT_TIMEOUT
        if attempt.gives_up_after is not None and kind == "threads":
            wait_timeout = attempt.gives_up_after
        elif attempt.gives_up_after is not None:
            cancel_after = attempt.gives_up_after
        options = dict(attempt.options, blocking_timeout=wait_timeout)
        if len(servers) > 1:
            lock = locks.Redlock(quorum, attempt.resource, fenced=True, **options)
        else:
            lock = locks.Lock(servers[0], attempt.resource, **options)
        try:
            acquired = await asyncio.wait_for(outcome(lock.acquire()), cancel_after)
        except (redis.RedisError, asyncio.TimeoutError):
            acquired = False
        if not acquired:
            say("none")
            continue
        attempt.begin(lock)
        while attempt.continues():
            await asyncio.sleep(STEADY or random.uniform(0, 0.01))
            attempt.write()
        attempt.end()
        with contextlib.suppress(redis.RedisError):
            await outcome(lock.release())


def main() -> None:
    kind, number, lease, *urls = sys.argv[1:]
    threading.Thread(target=lambda: (sys.stdin.read(), stopping.set()), daemon=True).start()
    asyncio.run(work(kind, number, int(lease), urls))


main()
