"""Compares dlock.Lock with redis.lock.Lock on one server, in turns, in one run.

python bench.py redis://127.0.0.1:6379 [--seconds 10]
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import threading
import time
from typing import Any

import redis
import redis.lock

import dlock

KINDS = {"redis-py": redis.lock.Lock, "dlock": dlock.Lock}
# A contending client holds the lock for so long, and does something else for so long: too short for all to
# find it free, and long enough for most.
HOLD = 0.001
ELSEWHERE = 0.005, 0.2
PROCESSES = 8
# The first seconds do not count: everybody connects at the same moment.
WARM = 2


def pairs(url: str, rounds: int, each: int) -> None:
    """Acquire and release by a single client: the median of the rounds' ratios."""
    client = redis.Redis.from_url(url)
    for timeout in (30, None):
        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(rounds):
            for kind, lock_class in KINDS.items():
                lock = lock_class(client, "bench:" + kind, timeout=timeout)
                began = time.perf_counter()
                for _ in range(each):
                    lock.acquire()
                    lock.release()
                times[kind].append((time.perf_counter() - began) / each)
        ratio = statistics.median(ours / theirs for ours, theirs in zip(times["dlock"], times["redis-py"]))
        medians = {kind: statistics.median(found) * 1e6 for kind, found in times.items()}
        shown = ", ".join(f"{kind} {median:.0f} us" for kind, median in medians.items())
        print(f"acquire + release, timeout={timeout}: {shown}; ratio {ratio:.2f}")


def work(url: str, kind: str, threads: int, elsewhere: float, start: float, end: float, results: Any) -> None:
    client = redis.Redis.from_url(url)

    def one() -> None:
        waits = []
        lock = KINDS[kind](client, "bench:contended", timeout=30)
        time.sleep(max(start - time.time(), 0))
        while (at := time.time()) < end:
            began = time.perf_counter()
            lock.acquire()
            # A wait that outlasts the run counts too, or polling would hide those who starve.
            if at > start + WARM:
                waits.append(time.perf_counter() - began)
            time.sleep(HOLD)
            lock.release()
            time.sleep(elsewhere)
        results.put(waits)

    running = [threading.Thread(target=one) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def contend(url: str, clients: int, elsewhere: float, seconds: float) -> None:
    print(f"{clients} clients, each elsewhere for {elsewhere * 1000:.0f} ms")
    tails = {}
    for kind in KINDS:
        results: Any = multiprocessing.Queue()
        start = time.time() + 1
        arguments = (url, kind, clients // PROCESSES, elsewhere, start, start + WARM + seconds, results)
        processes = [multiprocessing.Process(target=work, args=arguments) for _ in range(PROCESSES)]
        for process in processes:
            process.start()
        found = [results.get() for _ in range(clients)]
        for process in processes:
            process.join()
        counts = [len(waits) for waits in found]
        waits = sorted(wait for each in found for wait in each)
        jain = sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts))
        tails[kind] = waits[int(len(waits) * 0.99)]
        print(
            f"  {kind}: {sum(counts) / seconds:.0f} grants/s, wait p50 "
            f"{statistics.median(waits) * 1e3:.1f} ms, p99 {tails[kind] * 1e3:.1f} ms, "
            f"max {waits[-1]:.2f} s, Jain {jain:.3f}"
        )
    print(f"  p99 of dlock is {tails['dlock'] / tails['redis-py']:.3f} of polling's")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--only", choices=["pairs", "contend"])
    options = parser.parse_args()
    if options.only != "contend":
        pairs(options.url, rounds=60, each=100)
    if options.only != "pairs":
        for elsewhere in ELSEWHERE:
            for clients in (8, 64):
                contend(options.url, clients, elsewhere, options.seconds)
