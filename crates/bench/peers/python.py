"""Measures dlock's lock and redis-py's own, with threads and with asyncio; called by peers.py."""

import argparse
import asyncio
import importlib.metadata
import json
import threading
import time

import dlock
import dlock.asyncio
import redis
import redis.asyncio

RETRY_S = 0.01
TTL_S = 30


def threads_of(address):
    client = redis.Redis.from_url(f"redis://{address}", max_connections=200)
    client.ping()
    return {
        "redis-py Lock": lambda key: client.lock(key, timeout=TTL_S, sleep=RETRY_S),
        "dlock.Lock": lambda key: dlock.Lock(client, key, timeout=TTL_S),
    }


def tasks_of(address):
    client = redis.asyncio.Redis.from_url(f"redis://{address}", max_connections=200)
    return client, {
        "redis-py asyncio Lock": lambda key: client.lock(key, timeout=TTL_S, sleep=RETRY_S),
        "dlock.asyncio.Lock": lambda key: dlock.asyncio.Lock(client, key, timeout=TTL_S),
    }


def parse(load):
    """Returns the number of callers, the seconds of each hold, and whether all want the same lock."""
    kind, callers, *hold = load.split("-")
    return int(callers), float(hold[0].removesuffix("ms")) / 1000 if hold else 0, kind == "contend"


def in_threads(make, callers, hold, same, seconds):
    """Returns the waits of each caller, in s."""
    waits = [[] for _ in range(callers)]
    start = threading.Barrier(callers)

    def call(number):
        key = "bench" if same else f"bench:{number}"
        with make(f"warm:{number}"):
            pass
        start.wait()
        end = time.perf_counter() + seconds
        while (asked := time.perf_counter()) < end:
            lock = make(key)
            lock.acquire()
            waits[number].append(time.perf_counter() - asked)
            if hold:
                time.sleep(hold)
            lock.release()

    callers = [threading.Thread(target=call, args=[number]) for number in range(callers)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return waits


async def in_tasks(make, callers, hold, same, seconds):
    waits = [[] for _ in range(callers)]

    async def warm(number):
        async with make(f"warm:{number}"):
            pass

    async def call(number):
        key = "bench" if same else f"bench:{number}"
        while (asked := time.perf_counter()) < end:
            lock = make(key)
            await lock.acquire()
            waits[number].append(time.perf_counter() - asked)
            if hold:
                await asyncio.sleep(hold)
            await lock.release()

    await asyncio.gather(*map(warm, range(callers)))
    end = time.perf_counter() + seconds
    await asyncio.gather(*map(call, range(callers)))
    return waits


def report(library, load, waits, took, commands):
    everything = sorted(wait * 1000 for caller in waits for wait in caller)
    grants = [len(caller) for caller in waits]
    version = importlib.metadata.version("redis") if library.startswith("redis") else ""
    result = {
        "library": library,
        "version": version,
        "load": load,
        "grants_per_s": sum(grants) / took,
        "p50_ms": everything[int(0.5 * (len(everything) - 1))],
        "p99_ms": everything[int(0.99 * (len(everything) - 1))],
        "max_ms": everything[-1],
        "jain": sum(grants) ** 2 / len(grants) / sum(count * count for count in grants),
        "commands_per_grant": commands / sum(grants),
    }
    print(json.dumps(result), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-addr")
    parser.add_argument("-seconds", type=float)
    parser.add_argument("-loads")
    options = parser.parse_args()
    admin = redis.Redis.from_url(f"redis://{options.addr}")

    def measure(load, library, run):
        admin.flushall()
        before = admin.info("stats")["total_commands_processed"]
        began = time.perf_counter()
        waits = run()
        took = time.perf_counter() - began
        report(library, load, waits, took, admin.info("stats")["total_commands_processed"] - before)

    async def measure_tasks(load):
        client, libraries = tasks_of(options.addr)
        for library, make in libraries.items():
            admin.flushall()
            before = admin.info("stats")["total_commands_processed"]
            began = time.perf_counter()
            waits = await in_tasks(make, *parse(load), options.seconds)
            took = time.perf_counter() - began
            report(library, load, waits, took, admin.info("stats")["total_commands_processed"] - before)
        await client.aclose()

    for load in options.loads.split(","):
        for library, make in threads_of(options.addr).items():
            measure(
                load, library, lambda make=make, load=load: in_threads(make, *parse(load), options.seconds)
            )
        asyncio.run(measure_tasks(load))


if __name__ == "__main__":
    main()
