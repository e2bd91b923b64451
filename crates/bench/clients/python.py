"""The Python client under test, with threads or with asyncio: clients.py says what it reads and answers."""

import asyncio
import json
import resource
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import dlock
import dlock.asyncio
import redis
import redis.asyncio

TTL_S = 30
# Acquiring free locks and releasing them needs no thread for each.
THREADS = 1000


def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Answers:
    def __init__(self):
        self.last = cpu()

    def __call__(self, **values):
        now = cpu()
        print(json.dumps({"cpu_s": now - self.last, **values}), flush=True)
        self.last = now


def outcome(errors):
    return {"failed": len(errors), "why": repr(errors[0]) if errors else ""}


def threads(urls):
    clients = [redis.Redis.from_url(url) for url in urls]
    quorum = dlock.Quorum(clients) if len(clients) > 1 else None
    options = {"timeout": TTL_S, "auto_renew": True, "thread_local": False}

    def make(key):
        return dlock.Redlock(quorum, key, **options) if quorum else dlock.Lock(clients[0], key, **options)

    answer = Answers()
    held, errors = [], []
    pool = ThreadPoolExecutor(THREADS)
    futures = []

    def acquire(number):
        lock = make(f"key:{number}")
        try:
            if not lock.acquire():
                raise TimeoutError("not acquired")
            held.append(lock)
        except Exception as why:
            errors.append(why)

    def release(lock):
        try:
            lock.release()
        except Exception as why:
            errors.append(why)

    def contend(end, grants):
        try:
            while time.monotonic() < end:
                with make("contended"):
                    grants.append(1)
        except Exception as why:
            errors.append(why)

    for line in sys.stdin:
        verb, *numbers = line.split()
        errors.clear()
        if verb == "start":
            futures = [pool.submit(acquire, number) for number in range(int(numbers[0]))]
            answer()
        elif verb == "wait":
            for future in futures:
                future.result()
            answer(**outcome(errors))
        elif verb == "pause":
            time.sleep(float(numbers[0]))
            answer(lost=sum(lock.lost.is_set() for lock in held))
        elif verb == "release":
            list(pool.map(release, held))
            held.clear()
            answer(**outcome(errors))
        elif verb == "contend":
            end, grants = time.monotonic() + float(numbers[1]), []
            callers = [threading.Thread(target=contend, args=(end, grants)) for _ in range(int(numbers[0]))]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()
            answer(grants=len(grants), **outcome(errors))


async def tasks(urls):
    clients = [redis.asyncio.Redis.from_url(url) for url in urls]
    quorum = dlock.asyncio.Quorum(clients) if len(clients) > 1 else None
    options = {"timeout": TTL_S, "auto_renew": True}

    def make(key):
        return (
            dlock.asyncio.Redlock(quorum, key, **options)
            if quorum
            else dlock.asyncio.Lock(clients[0], key, **options)
        )

    answer = Answers()
    held, errors = [], []
    started, acquired = [], []
    done = asyncio.Event()

    async def acquire(number, ended):
        lock = make(f"key:{number}")
        try:
            if not await lock.acquire():
                raise TimeoutError("not acquired")
            held.append(lock)
        except Exception as why:
            errors.append(why)
            return
        finally:
            ended.set()
        # The hold belongs to this task.
        await done.wait()
        try:
            await lock.release()
        except Exception as why:
            errors.append(why)

    async def contend(end):
        grants = 0
        try:
            while time.monotonic() < end:
                async with make("contended"):
                    grants += 1
        except Exception as why:
            errors.append(why)
        return grants

    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, *numbers = line.split()
        if verb == "start":
            errors.clear()
            done.clear()
            acquired = [asyncio.Event() for _ in range(int(numbers[0]))]
            started = [asyncio.create_task(acquire(*each)) for each in enumerate(acquired)]
            answer()
        elif verb == "wait":
            for ended in acquired:
                await ended.wait()
            answer(**outcome(errors))
        elif verb == "pause":
            await asyncio.sleep(float(numbers[0]))
            answer(lost=sum(lock.lost.is_set() for lock in held))
        elif verb == "release":
            errors.clear()
            done.set()
            await asyncio.gather(*started)
            held.clear()
            answer(**outcome(errors))
        elif verb == "contend":
            errors.clear()
            end = time.monotonic() + float(numbers[1])
            grants = await asyncio.gather(*(contend(end) for _ in range(int(numbers[0]))))
            answer(grants=sum(grants), **outcome(errors))


def main():
    kind, addresses = sys.argv[1:]
    urls = [f"redis://{address}" for address in addresses.split(",")]
    if kind == "threads":
        threads(urls)
    else:
        asyncio.run(tasks(urls))


if __name__ == "__main__":
    main()
