"""A program that cancels all asyncio tasks also cancels those that renew and release locks in the background.
The client starts their work again.

If a KeyboardInterrupt ends an extension, a later extension does not wait for ever: it raises once the hold is
lost."""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
import types
import weakref

import pytest
import redis
import redis.asyncio
from conftest import LIMIT, patient_async_client, until

import dlock
import dlock.asyncio
from dlock import _tasks
from dlock._clock import now


class Cancelling:
    """Cancels the next three workers of the background: before their first step or, with `begun`, 20 ms after
    their start. With `begun`, the proxy passes no bytes while the first two workers run, so that neither ends
    before it is cancelled. While the third one runs, bytes pass, so it may end before it is cancelled."""

    def __init__(self, monkeypatch, proxy, *, begun):
        self.tasks_left = 3
        self.proxy = proxy
        self.begun = begun
        for worker in list(_tasks.background()._tasks):
            worker.cancel()
        self.start = _tasks.Background.start
        monkeypatch.setattr(_tasks.Background, "start", self.starting())

    def starting(self):
        def start(background, work):
            task = self.start(background, work)
            if self.tasks_left:
                self.tasks_left -= 1
                if self.begun:
                    asyncio.get_running_loop().call_later(0.02, task.cancel)
                else:
                    task.cancel()
            self.proxy.silent = self.begun and self.tasks_left > 0
            return task

        return start


@types.coroutine
def awaiting(work, number, repeats):
    """Awaits ``work``, and cancels this task at the await of this number; with ``repeats`` also at all later
    ones, as anyio does. Returns the number of awaits."""
    steps, count = work.__await__(), 0
    proceed = functools.partial(steps.send, None)
    while True:
        try:
            future = proceed()
        except StopIteration:
            return count
        count += 1
        if count == number or (repeats and count > number):
            asyncio.current_task().cancel()
        try:
            yield future
            proceed = functools.partial(steps.send, None)
        except BaseException as why:
            proceed = functools.partial(steps.throw, why)


async def use_several(client):
    async with dlock.asyncio.lock_all(client, ["a", "b", "c"], timeout=600):
        await asyncio.sleep(0)


async def use_path_of_a_quorum(client):
    async with dlock.asyncio.lock_path(dlock.Quorum([client]), "a/b", timeout=600):
        await asyncio.sleep(0)


async def lead(client):
    async def work(lock):
        await asyncio.sleep(0)

    await dlock.asyncio.Leader(client, "a", timeout=600).lead(work)


@pytest.mark.parametrize("repeats", [False, True], ids=["once", "again and again"])
@pytest.mark.parametrize("work", [use_several, use_path_of_a_quorum, lead])
def test_work_that_is_cancelled_at_any_await_leaves_no_lock(r, server, work, repeats):
    async def main():
        async with patient_async_client(server) as client:
            number, has_await = 0, True
            while has_await:
                number += 1
                task = asyncio.create_task(awaiting(work(client), number, repeats))
                await asyncio.wait([task])
                has_await = task.cancelled()
                assert has_await or task.result() < number
                await asyncio.to_thread(
                    until, f"no lock is left after await {number}", lambda: not r.dbsize()
                )
            assert number > 3

    asyncio.run(main())


@pytest.fixture(params=[False, True], ids=["before its first step", "while it waits for a reply"])
def cancelling(request, monkeypatch, proxy):
    return lambda: Cancelling(monkeypatch, proxy, begun=request.param)


def test_a_renewal_that_is_cancelled_is_tried_again(server, r, proxy, cancelling):
    async def main():
        async with redis.asyncio.Redis.from_url(proxy.url) as client:
            lock = dlock.asyncio.Lock(client, "foo", timeout=60, auto_renew=True)
            await lock.acquire()
            canceller = cancelling()
            # With 30 of 60 s left, a renewal is due now. The test shortens the pause before a retry to 0.1 s.
            hold = lock.local.hold
            hold.valid_until = now() + 30
            while hold.valid_until < now() + 40:
                assert not lock.lost.is_set()
                hold._retry_at = hold._retry_at and min(hold._retry_at, now() + 0.1)
                if hold.changed:
                    hold.changed()
                await asyncio.sleep(0.01)
            assert canceller.tasks_left == 0
            await lock.extend(60, replace_ttl=True)
            await lock.release()

    asyncio.run(asyncio.wait_for(main(), 20))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a swallowed cancellation leaves no trace")
def test_a_cancelled_worker_ends_although_redis_py_swallows_the_cancellation(server, r, proxy, monkeypatch):
    async def main():
        async with redis.asyncio.Redis.from_url(proxy.url) as client:
            lock = dlock.asyncio.Lock(client, "foo", timeout=600, auto_renew=True)
            await lock.acquire()
            hold = lock.local.hold
            read = redis.asyncio.Connection.read_response

            async def swallow(*args, **options):
                try:
                    return await read(*args, **options)
                except asyncio.CancelledError:
                    raise redis.TimeoutError from None

            monkeypatch.setattr(redis.asyncio.Connection, "read_response", swallow)
            proxy.silent = True
            hold.valid_until = now() + 100
            while not hold._extend_lock.locked():
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)  # the worker begins to wait for the reply
            workers = set(_tasks.background()._tasks)
            for worker in workers:
                worker.cancel()
            ended, _ = await asyncio.wait(workers, timeout=LIMIT)
            proxy.silent = False
            assert ended == workers
            await lock.release()

    monkeypatch.setattr(_tasks, "LINK_IDLE", 10 * LIMIT)
    asyncio.run(asyncio.wait_for(main(), 2 * LIMIT))


def test_a_release_in_the_background_that_is_cancelled_is_sent_again(server, r, proxy, cancelling):
    async def main():
        async with redis.asyncio.Redis.from_url(proxy.url) as client:
            lock = dlock.asyncio.Lock(client, "foo", timeout=600)
            await lock.acquire()
            canceller = cancelling()
            # The RELEASE cannot reach the server until `Cancelling` lets bytes pass again.
            proxy.silent = True
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(lock.release(), 0.1)
            while r.exists("foo"):
                await asyncio.sleep(0.01)
            assert canceller.tasks_left == 0

    asyncio.run(asyncio.wait_for(main(), 2 * LIMIT))


def test_extend_raises_for_a_lost_hold_after_an_interrupted_extension(r):
    lock = dlock.Lock(r, "foo", timeout=60)
    lock.acquire()
    extend_lock = lock.local.hold._extend_lock

    # Interrupts `extend` in the first line after it has locked `extend_lock`, which then stays locked.
    def interrupt(frame, event, argument):
        if event == "line" and extend_lock.locked():
            sys.settrace(None)
            raise KeyboardInterrupt
        return interrupt

    sys.settrace(lambda frame, *_: interrupt if frame.f_code.co_name == "extend" else None)
    try:
        with pytest.raises(KeyboardInterrupt):
            lock.extend(60, replace_ttl=True)
    finally:
        sys.settrace(None)
    assert extend_lock.locked()
    lock.local.hold.valid_until = now()
    with pytest.raises(dlock.LockNotOwnedError):
        lock.extend(60, replace_ttl=True)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["without a loop", "in another loop"])
def test_a_loop_that_is_closed_under_the_background_raises_nothing(server, r, monkeypatch, elsewhere):
    """asyncio says that tasks were destroyed. Those of dlock end quietly, and raise nothing."""

    async def wait():
        async with redis.asyncio.Redis.from_url(server.url) as client:
            assert not await dlock.asyncio.Lock(client, "foo").acquire(blocking_timeout=0.05)
            renewed = dlock.asyncio.Lock(client, "bar")
            assert await renewed.acquire()
            renewed.local.hold.valid_until = now() + 10
            while renewed.local.hold.valid_until < now() + 20:
                await asyncio.sleep(0.005)
            # The next background forgets this loop.
            loops.append(weakref.ref(_tasks.background()))

    async def collect():
        _tasks.background()
        gc.collect()
        gc.collect()

    def note(why):
        # The connections of redis-py 5.0 raise in `__del__`.
        if "__del__" not in repr(why.object):
            raised.append(str(why))

    raised, loops = [], []
    monkeypatch.setattr(sys, "unraisablehook", note)
    r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(wait())
    loop.close()
    if elsewhere:
        del loop
        asyncio.run(collect())
    else:
        del _tasks._backgrounds[loop], loop
        gc.collect()
        gc.collect()  # what the finalizers of the first time have kept
    assert loops[0]() is None
    assert not raised
