"""Measures dlock.Lock and redis.lock.Lock in turns on one server, and compares them.

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
# Loads: the number of clients, the ms for which each holds the lock, and the ms until it asks again. If
# clients ask again after 5 ms, the lock is never free, and a fair wait lasts as long as the holds of all
# other clients. If they ask again later, most find it free; the others wait only briefly in a
# queue, but for a whole pause if they poll.
LOADS = (8, 1, 5), (64, 1, 5), (64, 5, 5), (8, 1, 200), (64, 1, 200), (64, 1, 400), (64, 5, 1000)
PROCESSES = 8
# Each round measures both kinds, one after the other.
ROUNDS = 3
# The first seconds do not count, as all clients connect then.
WARM = 2


def pairs(url: str, rounds: int, each: int) -> None:
    """Prints the time of acquire and release by a single client, and the median ratio of the rounds."""
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


def work(
    url: str, kind: str, threads: int, hold: int, pause: int, start: float, end: float, results: Any
) -> None:
    client = redis.Redis.from_url(url)

    def run_client() -> None:
        waits, held = [], 0.0
        lock = KINDS[kind](client, "bench:contended", timeout=30)
        time.sleep(max(start - time.time(), 0))
        while (at := time.time()) < end:
            began = time.perf_counter()
            lock.acquire()
            acquired = time.perf_counter()
            time.sleep(hold / 1000)
            # A wait that ends after the run counts too: with polling, some clients starve.
            if at > start + WARM:
                waits.append(acquired - began)
                held += time.perf_counter() - acquired
            lock.release()
            time.sleep(pause / 1000)
        results.put((waits, held))

    running = [threading.Thread(target=run_client) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def run(
    url: str, kind: str, clients: int, hold: int, pause: int, seconds: float
) -> list[tuple[list[float], float]]:
    """Returns the waits of each client, and the time for which it held the lock."""
    results: Any = multiprocessing.Queue()
    start = time.time() + 1
    load = hold, pause, start, start + WARM + seconds, results
    arguments = (url, kind, clients // PROCESSES, *load)
    processes = [multiprocessing.Process(target=work, args=arguments) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    found = [results.get() for _ in range(clients)]
    for process in processes:
        process.join()
    return found


def contend(url: str, clients: int, hold: int, pause: int, seconds: float) -> None:
    print(f"{clients} clients, each holds for {hold} ms and asks again after {pause} ms")
    runs: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    for _ in range(ROUNDS):
        for kind, found in runs.items():
            found.append(run(url, kind, clients, hold, pause, seconds))
    tails = {}
    least = 0.0
    for kind, rounds in runs.items():
        waits = sorted(wait for found in rounds for each, _ in found for wait in each)
        held = sum(held for found in rounds for _, held in found) / (ROUNDS * seconds)
        tails[kind] = waits[int(len(waits) * 0.99)]
        # The wait of a client that asks again and finds all other clients ahead of it in the queue.
        least = max((clients - 1) * held * ROUNDS * seconds / len(waits) - pause / 1000, 0)
        print(
            f"  {kind}: {len(waits) / ROUNDS / seconds:.0f} grants/s, held {held * 100:.0f} % of the time, "
            f"wait p50, p99, max {statistics.median(waits) * 1e3:.0f}, {tails[kind] * 1e3:.0f}, "
            f"{waits[-1] * 1e3:.0f} ms, least Jain {min(map(fairness, rounds)):.3f}"
        )
    print(
        f"  p99 of dlock is {tails['dlock'] / tails['redis-py']:.3f} of polling's; if handoffs took no "
        f"time, a fair wait would last {least * 1e3:.0f} ms, {least / tails['redis-py']:.3f} of polling's p99"
    )


def fairness(found: list[tuple[list[float], float]]) -> float:
    """Returns Jain's index of the grants."""
    counts = [len(waits) for waits, _ in found]
    return sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--only", choices=["pairs", "contend"])
    options = parser.parse_args()
    if options.only != "contend":
        pairs(options.url, rounds=60, each=100)
    if options.only != "pairs":
        for load in LOADS:
            contend(options.url, *load, options.seconds)
