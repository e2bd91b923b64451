"""One process of a fleet: processes that lock the same key, with old libraries and with dlock. Locks and
releases the key repeatedly until its input ends, and prints its actions.

python member.py KIND PORT KEY LEASE, with the lease in ms. Each line of the output has an action and its
time: `waits`, `holds` (with the end of the validity) or `late` (the lease ended before the wait did),
`leaves` (before the request to release), `left`. The time is of the monotonic clock, which all processes of a
machine share.
"""

from __future__ import annotations

import random
import secrets
import sys
import threading
import time

import dlock
import redis
import redis.lock

RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"

stopping = threading.Event()


def say(what: str, *moments: float) -> None:
    print(what, *moments, flush=True)


class Library:
    """Locks with `redis.lock.Lock` or `dlock.Lock`."""

    def __init__(self, client: redis.Redis, key: str, lease: int, lock_class: type) -> None:
        self.lock = client.lock(key, timeout=lease / 1000, sleep=0.02, lock_class=lock_class)

    def acquire(self) -> float:
        self.lock.acquire()
        # The lease began at an unknown time during the call, so it is set again.
        sent = time.monotonic()
        self.lock.reacquire()
        return sent

    def release(self) -> None:
        self.lock.release()


class SetNx:
    """Locks with SET NX PX, and releases with a script that deletes the key if its value is the token."""

    def __init__(self, client: redis.Redis, key: str, lease: int) -> None:
        self.client, self.key, self.lease = client, key, lease

    def acquire(self) -> float:
        self.token = secrets.token_hex(16)
        while True:
            sent = time.monotonic()
            if self.client.set(self.key, self.token, nx=True, px=self.lease):
                return sent
            time.sleep(random.uniform(0.01, 0.03))

    def release(self) -> None:
        self.client.eval(RELEASE, 1, self.key, self.token)


class Commands:
    """Locks with DLOCK.ACQUIRE and BLOCK, as a program without a client of dlock does."""

    def __init__(self, client: redis.Redis, key: str, lease: int) -> None:
        self.client, self.key, self.lease = client, key, lease

    def acquire(self) -> float:
        self.token = secrets.token_hex(16)
        self.client.execute_command("DLOCK.ACQUIRE", self.key, self.token, self.lease, "BLOCK", 0)
        sent = time.monotonic()
        if not self.client.execute_command("DLOCK.EXTEND", self.key, self.token, self.lease):
            raise redis.lock.LockNotOwnedError("the lease ended before the EXTEND")
        return sent

    def release(self) -> None:
        self.client.execute_command("DLOCK.RELEASE", self.key, self.token)


def is_late(why: Exception) -> bool:
    """Returns whether the release came after the end of the lease. Then the script of redis-py or set-nx may
    find a lock of dlock, and get WRONGTYPE."""
    return isinstance(why, redis.lock.LockNotOwnedError) or "WRONGTYPE" in str(why)


def work(locker: Library | SetNx | Commands, lease_seconds: float) -> None:
    while not stopping.is_set():
        say("waits", time.monotonic())
        try:
            sent = locker.acquire()
        except redis.lock.LockNotOwnedError:
            say("late", time.monotonic())
            continue
        # The validity as every client of dlock computes it.
        valid_until = sent + lease_seconds - lease_seconds / 100 - 0.002
        say("holds", time.monotonic(), valid_until)
        # Of ten holds, one outlasts its validity, one lasts for 80 ms, and the others are short.
        draw = random.random()
        if draw < 0.1:
            time.sleep(max(valid_until + 0.05 - time.monotonic(), 0))
        else:
            time.sleep(0.08 if draw < 0.2 else random.uniform(0.001, 0.005))
        say("leaves", time.monotonic())
        try:
            locker.release()
        except redis.RedisError as why:
            if not is_late(why):
                raise
        say("left", time.monotonic())
        time.sleep(random.uniform(0.02, 0.1))


def main() -> None:
    kind, port, key, lease = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    threading.Thread(target=lambda: (sys.stdin.read(), stopping.set()), daemon=True).start()
    client = redis.Redis(port=port, socket_timeout=None)
    lockers = {
        "redis-py": lambda: Library(client, key, lease, redis.lock.Lock),
        "set-nx": lambda: SetNx(client, key, lease),
        "dlock": lambda: Library(client, key, lease, dlock.Lock),
        "commands": lambda: Commands(client, key, lease),
    }
    work(lockers[kind](), lease / 1000)


main()
