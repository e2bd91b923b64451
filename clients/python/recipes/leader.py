"""Leader election: one of the processes that run this program leads until it stops, dies or loses its lock.
The others wait in the queue, and the first of them leads next. The fence of the lock is the term of the
leader: each leader has a greater term than those before it.

python leader.py redis://127.0.0.1:6379 service
"""

from __future__ import annotations

import os
import signal
import sys
import time

import redis
from redis.exceptions import LockError, RedisError

import dlock


def lead(lock: dlock.Lock) -> None:
    print(f"{os.getpid()} leads, term {lock.fence}", flush=True)
    while not lock.lost.wait(0.5):
        pass  # Do a piece of work. Store the term with the data, and reject writes with a lower term.


def main(url: str, name: str) -> None:
    # `sys.exit` raises SystemExit in the `with` below, which then leaves the queue or releases the lock.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    client = redis.Redis.from_url(url)
    while True:
        # If a leader dies, the next one leads within 10 s. If a leader cannot renew its lease, dlock declares
        # the lock lost 1 s (a tenth of the lease) before the lease ends, so that the leader can stop in time.
        lock = dlock.Lock(client, f"leader:{name}", timeout=10, auto_renew=True)
        try:
            with lock:
                lead(lock)
        except (LockError, RedisError) as why:
            print(f"{os.getpid()} leads no more: {why}", flush=True)
            time.sleep(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
