"""Compares dlock.Lock with redis.lock.Lock on one server.

python bench.py redis://127.0.0.1:6379 [--seconds 10]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import threading
import time
from typing import Any

import redis
import redis.asyncio
import redis.lock

import dlock
import dlock.asyncio

KINDS = {"redis-py": redis.lock.Lock, "dlock": dlock.Lock}
# Loads: the number of clients, the ms of each hold, and the ms from a release until the client asks again. If
# clients ask again after 5 ms, none finds the lock free. If they ask again later, most find it free. The
# others wait: with dlock until the current hold ends, with redis-py until their next poll.
LOADS = (8, 1, 5), (64, 1, 5), (64, 5, 5), (8, 1, 200), (64, 1, 200), (64, 1, 400), (64, 5, 1000)
PROCESSES = 8
# Each round measures both kinds, one after the other.
ROUNDS = 3
# The first seconds of a run, which are not measured, because all clients begin at the same moment.
WARM_UP = 2


def pairs(url: str, rounds: int, pairs_per_round: int) -> None:
    """Prints the ratio of dlock's time to redis-py's for acquire and release by a single caller: the median
    of the rounds, of the time that passes and of the CPU time of this process."""
    asyncio.run(pairs_of_tasks(url, rounds, pairs_per_round))
    client = redis.Redis.from_url(url)
    for is_new in (True, False):
        times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
        for _ in range(rounds):
            for kind, lock_class in KINDS.items():
                lock = lock_class(client, "bench:" + kind, timeout=30)
                began = time.perf_counter(), time.process_time()
                for _ in range(pairs_per_round):
                    if is_new:
                        lock = lock_class(client, "bench:" + kind, timeout=30)
                    lock.acquire()
                    lock.release()
                times[kind].append((time.perf_counter() - began[0], time.process_time() - began[1]))
        print_ratios("threads", is_new, times, pairs_per_round)


async def pairs_of_tasks(url: str, rounds: int, pairs_per_round: int) -> None:
    client = redis.asyncio.Redis.from_url(url)
    kinds = {"redis-py": redis.asyncio.lock.Lock, "dlock": dlock.asyncio.Lock}
    for is_new in (True, False):
        times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind, lock_class in kinds.items():
                lock = lock_class(client, "bench:" + kind, timeout=30)
                began = time.perf_counter(), time.process_time()
                for _ in range(pairs_per_round):
                    if is_new:
                        lock = lock_class(client, "bench:" + kind, timeout=30)
                    await lock.acquire()
                    await lock.release()
                times[kind].append((time.perf_counter() - began[0], time.process_time() - began[1]))
        print_ratios("asyncio", is_new, times, pairs_per_round)
    await client.aclose()


def print_ratios(style: str, is_new: bool, times: dict[str, list[tuple[float, float]]], pairs: int) -> None:
    shown = []
    for index, measure in enumerate(("time", "CPU")):
        ours, theirs = ([each[index] for each in times[kind]] for kind in ("dlock", "redis-py"))
        ratio = statistics.median(mine / other for mine, other in zip(ours, theirs))
        us = [statistics.median(found) / pairs * 1e6 for found in (theirs, ours)]
        shown.append(f"{measure} {us[0]:.0f} and {us[1]:.0f} us, ratio {ratio:.2f}")
    lock = "a new lock object each time" if is_new else "one lock object"
    print(f"acquire + release, {style}, {lock}, redis-py and dlock: {'; '.join(shown)}")


def work(
    url: str, kind: str, threads: int, hold_ms: int, pause_ms: int, start: float, end: float, results: Any
) -> None:
    """Runs the clients of one process, a thread for each."""
    client = redis.Redis.from_url(url)

    def run_client() -> None:
        waits, held = [], 0.0
        lock = KINDS[kind](client, "bench:contended", timeout=30)
        time.sleep(max(start - time.time(), 0))
        while (asked_at := time.time()) < end:
            began = time.perf_counter()
            lock.acquire()
            acquired = time.perf_counter()
            time.sleep(hold_ms / 1000)
            # A wait that outlasts the run counts, too: otherwise the longest waits would be left out.
            if asked_at > start + WARM_UP:
                waits.append(acquired - began)
                held += time.perf_counter() - acquired
            lock.release()
            time.sleep(pause_ms / 1000)
        results.put((waits, held))

    running = [threading.Thread(target=run_client) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def run(
    url: str, kind: str, clients: int, hold_ms: int, pause_ms: int, seconds: float
) -> list[tuple[list[float], float]]:
    """Returns the waits of each client, and the time for which it held the lock, in seconds."""
    results: Any = multiprocessing.Queue()
    start = time.time() + 1
    load = hold_ms, pause_ms, start, start + WARM_UP + seconds, results
    arguments = (url, kind, clients // PROCESSES, *load)
    processes = [multiprocessing.Process(target=work, args=arguments) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    found = [results.get() for _ in range(clients)]
    for process in processes:
        process.join()
    return found


def contend(url: str, clients: int, hold_ms: int, pause_ms: int, seconds: float) -> None:
    print(f"{clients} clients, each holds for {hold_ms} ms and asks again after {pause_ms} ms")
    runs: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    for _ in range(ROUNDS):
        for kind, rounds in runs.items():
            rounds.append(run(url, kind, clients, hold_ms, pause_ms, seconds))
    p99, mean_hold = {}, {}
    for kind, rounds in runs.items():
        waits = sorted(wait for found in rounds for client_waits, _ in found for wait in client_waits)
        held = sum(held for found in rounds for _, held in found)
        p99[kind] = waits[int(len(waits) * 0.99)]
        mean_hold[kind] = held / len(waits)
        total = ROUNDS * seconds
        print(
            f"  {kind}: {len(waits) / total:.0f} grants/s, held {held / total * 100:.0f} % of the time, "
            f"wait p50, p99, max {statistics.median(waits) * 1e3:.0f}, {p99[kind] * 1e3:.0f}, "
            f"{waits[-1] * 1e3:.0f} ms, lowest Jain's index of a round {min(map(fairness, rounds)):.3f}"
        )
    # For comparison, the wait for a fair lock that is never free, if handoffs take no time. Between two holds
    # of one client, each other client holds the lock once. The client pauses for the first `pause_ms` of
    # these holds, and waits for the rest.
    fair_wait = max((clients - 1) * mean_hold["dlock"] - pause_ms / 1000, 0)
    print(
        f"  p99 of dlock / p99 of redis-py: {p99['dlock'] / p99['redis-py']:.3f}; "
        f"computed wait for a fair lock: {fair_wait * 1e3:.0f} ms"
    )


def fairness(found: list[tuple[list[float], float]]) -> float:
    """Returns Jain's index of the clients' numbers of grants: 1 if all are equal, less otherwise."""
    counts = [len(waits) for waits, _ in found]
    return sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--only", choices=["pairs", "contend"])
    options = parser.parse_args()
    if options.only != "contend":
        pairs(options.url, rounds=60, pairs_per_round=100)
    if options.only != "pairs":
        for load in LOADS:
            contend(options.url, *load, options.seconds)
