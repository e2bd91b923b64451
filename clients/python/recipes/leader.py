"""Leader election: one of the processes that run this program leads until it stops, dies or loses its lock.
The others wait in the queue, and the first of them leads next.

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
        pass  # A piece of work. Store the term with the data, and reject writes with a lower term.


def main(url: str, name: str) -> None:
    # The exit leaves the queue, or releases the lock.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    client = redis.Redis.from_url(url)
    while True:
        # Within 10 s after the death of a leader, the next one leads. `lost` is set a second before that.
        lock = dlock.Lock(client, f"leader:{name}", timeout=10, auto_renew=True)
        try:
            with lock:
                lead(lock)
        except (LockError, RedisError) as why:
            print(f"{os.getpid()} leads no more: {why}", flush=True)
            time.sleep(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
