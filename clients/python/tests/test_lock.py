"""The additions to the lock of redis-py: fences, modes, renewal, and notice of a loss."""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading

import pytest
import redis
import redis.asyncio
from conftest import (
    FOREIGN_TOKEN,
    LIMIT,
    expire,
    is_held,
    patient_async_client,
    patient_client,
    until,
    until_renewed_twice,
)
from redis.exceptions import LockError, LockNotOwnedError

import dlock
import dlock.asyncio
from dlock import _tasks, _threads
from dlock._clock import now


@pytest.mark.parametrize("value, error", [(float("nan"), ValueError), ("5", TypeError)], ids=["nan", "text"])
def test_a_time_that_is_not_a_number_of_seconds_is_refused(get_lock, value, error):
    for argument in "timeout", "sleep", "blocking_timeout":
        with pytest.raises(error, match=f"{argument} is a number of seconds"):
            get_lock(**{"timeout": 10, argument: value})
    lock = get_lock(timeout=10)
    with pytest.raises(error, match="blocking_timeout is a number of seconds"):
        lock.acquire(blocking_timeout=value)
    with lock, pytest.raises(error, match="additional_time is a number of seconds"):
        lock.extend(value)
    with pytest.raises(ValueError, match="timeout is a number of seconds"):
        get_lock(timeout=math.inf)
    assert lock.acquire(blocking_timeout=math.inf)
    lock.release()


def test_an_on_lost_that_is_not_a_function_is_refused(get_lock):
    with pytest.raises(TypeError, match="on_lost is a function"):
        get_lock(timeout=10, on_lost="print")


def test_each_hold_has_a_greater_fence(get_lock):
    lock, fences = get_lock(timeout=10), []
    assert lock.fence is None
    for _ in range(5):
        with lock:
            fences.append(lock.fence)
    assert fences == sorted(set(fences))
    assert lock.fence is None


def test_shared_holds_exclude_an_exclusive_one(get_lock):
    first, second, writer = get_lock(shared=True), get_lock(shared=True), get_lock()
    assert first.acquire(blocking=False)
    assert second.acquire(blocking=False)
    assert not writer.acquire(blocking=False)
    with pytest.raises(LockError, match="Already acquired"):
        first.acquire(blocking=False)
    first.release()
    second.release()
    assert writer.acquire(blocking=False)
    writer.release()


def test_permits_limit_the_number_of_holders(get_lock):
    held = [get_lock(permits=2) for _ in range(3)]
    assert [lock.acquire(blocking=False) for lock in held] == [True, True, False]
    held[0].release()
    assert held[2].acquire(blocking=False)
    with pytest.raises(ValueError, match="shared or has permits"):
        get_lock(permits=2, shared=True)
    for lock in held[1:]:
        lock.release()


def test_a_reentrant_hold_ends_with_its_last_release(r, server):
    lock = dlock.Lock(r, "foo", timeout=10, reentrant=True)
    with lock:
        fence = lock.fence
        with lock:
            assert lock.fence == fence
        assert lock.owned()
        # Another thread is another owner.
        others = []
        thread = threading.Thread(target=lambda: others.append(lock.acquire(blocking=False)))
        thread.start()
        thread.join()
        assert others == [False]
    assert not is_held(r)


def test_a_reentrant_hold_belongs_to_a_task(server):
    async def main():
        async with patient_async_client(server) as client:
            lock = dlock.asyncio.Lock(client, "foo", timeout=10, reentrant=True)
            async with lock:
                async with lock:
                    pass
                assert await lock.owned()
                assert not await asyncio.create_task(lock.acquire(blocking=False))
            assert not await lock.locked()

    asyncio.run(main())


def test_a_lost_reentrant_hold_must_be_released_before_the_next_acquire(r, server):
    lock = dlock.Lock(r, "foo", timeout=60, reentrant=True)
    lock.acquire()
    lock.acquire()
    expire(r, lock)
    for method in (lock.acquire, lock.release, lock.release):
        with pytest.raises(LockNotOwnedError):
            method()
    assert lock.acquire(blocking=False)
    lock.release()


def test_a_renewed_hold_lasts_longer_than_its_lease(r, get_lock):
    lock = get_lock(timeout=60, auto_renew=True)
    lock.acquire()
    until_renewed_twice(r, lock)
    assert lock.owned()
    lock.release()
    assert not is_held(r)


def test_a_hold_without_renewal_ends_with_its_lease(r, get_lock):
    lost = []
    lock = get_lock(timeout=60, on_lost=lost.append)
    lock.acquire()
    expire(r, lock)
    until("on_lost is called", lambda: lost)
    # The background records one of these reasons: by the clock, or by an announcement of the server. A method
    # of the lock would record another one, but none was called.
    assert len(lost) == 1 and re.match("not renewed in time|it expired", lost[0])
    assert not lock.owned()
    with pytest.raises(LockNotOwnedError):
        lock.release()


def test_a_broken_hold_is_lost_at_the_next_renewal(r, get_lock):
    lost = []
    lock = get_lock(timeout=60, auto_renew=True, on_lost=lost.append)
    lock.acquire()
    assert not lock.lost.is_set()
    r.execute_command("DLOCK.BREAK", "foo")
    # A renewal is due once less than two thirds of the lease are left.
    lock.local.hold.valid_until = now() + 30
    until("on_lost is called", lambda: lost)
    assert len(lost) == 1 and "DLOCK.BREAK" in lost[0]
    assert lock.lost.is_set()
    assert not lock.owned()
    with pytest.raises(LockNotOwnedError):
        lock.extend(1)


def test_on_lost_is_called_before_the_lease_ends_when_the_server_is_silent(r, get_proxied_lock, proxy):
    seen = []
    lock = get_proxied_lock(timeout=60, auto_renew=True, on_lost=lambda why: seen.append((why, is_held(r))))
    lock.acquire()
    proxy.silent = True
    # A renewed hold is lost once only a tenth of its lease is left.
    lock.local.hold.valid_until = now() + 6
    until("on_lost is called", lambda: seen)
    assert seen[0][0].startswith("not renewed in time")
    assert seen[0][1], "on_lost was called after the lease"
    proxy.silent = False


def test_a_renewal_whose_reply_is_lost_is_repeated(r, get_proxied_lock, proxy):
    lock = get_proxied_lock(timeout=60, auto_renew=True)
    lock.acquire()
    proxy.match, proxy.cut_replies = b"EXTEND", 2
    hold = lock.local.hold
    # A renewal is due once less than two thirds of the lease are left.
    hold.valid_until = now() + 30
    for lost in 1, 2:
        # `_retry_at` is None before the first renewal, infinite during a renewal, and a time after a failure.
        until(
            "a reply is lost", lambda lost=lost: proxy.lost == lost and hold._retry_at not in (None, math.inf)
        )
        # Makes the next try due now.
        hold._retry_at = now()
    until("the hold is renewed", lambda: hold.valid_until > now() + 40)
    assert not lock.lost.is_set()
    lock.release()


def test_lost_is_set_before_any_task_notices_the_end_of_the_lease(server):
    async def main():
        async with patient_async_client(server) as client:
            lock = dlock.asyncio.Lock(client, "foo", timeout=60, auto_renew=True)
            await lock.acquire()
            # No other task runs between these statements, so no task has noticed the end of the lease.
            lock.local.hold.valid_until = now()
            assert lock.lost.is_set()
            assert not await lock.owned()
            assert await lock.lost.wait()

    asyncio.run(main())


def test_a_connection_that_does_not_close_in_time_logs_no_error(server, monkeypatch, caplog):
    async def times_out(connection, *_, **__):
        raise redis.TimeoutError("Timed out closing connection")

    async def main():
        client = patient_async_client(server)
        lock = dlock.asyncio.Lock(client, "foo", timeout=60, auto_renew=True)
        await lock.acquire()
        # A renewal is due: it opens the background's connection.
        lock.local.hold.valid_until = now() + 30
        while lock.local.hold.valid_until < now() + 40:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(redis.asyncio.Connection, "disconnect", times_out)
        await lock.release()
        # The link ends once it has tried to close its connection.
        while _tasks.background()._links:
            await asyncio.sleep(0.01)

    asyncio.run(main())
    assert not caplog.records


def test_the_clock_is_monotonic_without_a_boot_time_clock():
    program = """
import time

del time.CLOCK_BOOTTIME
import dlock._clock

assert dlock._clock._CLOCK == time.CLOCK_MONOTONIC
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_lost_wait_returns_at_the_loss_or_the_release(r, server):
    lock = dlock.Lock(r, "foo", timeout=60)
    assert lock.lost.wait(0) is False
    lock.acquire()
    lost = lock.lost
    assert lost.wait(0) is False
    expire(r, lock)
    assert lost.wait(LIMIT) is True
    with pytest.raises(LockNotOwnedError):
        lock.release()
    lock.acquire()
    lost, seen = lock.lost, []
    thread = threading.Thread(target=lambda: seen.append(lost.wait()))
    thread.start()
    lock.release()
    thread.join(LIMIT)
    assert seen == [False]


def test_a_forked_process_neither_owns_nor_releases_the_hold(r, server):
    lock = dlock.Lock(r, "foo", timeout=60, auto_renew=True)
    lock.acquire()

    def child(answers):
        with pytest.raises(LockNotOwnedError, match="another process"):
            lock.release()
        client = patient_client(server)
        own = dlock.Lock(client, "bar", timeout=60, auto_renew=True)
        held = own.acquire()
        # The child has a background of its own.
        until_renewed_twice(client, own)
        answers.put((lock.owned(), held, own.owned()))
        own.release()

    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=child, args=(answers,))
    process.start()
    assert answers.get(timeout=2 * LIMIT) == (False, True, True)
    process.join()
    until_renewed_twice(r, lock)
    assert lock.owned()
    lock.release()


def test_lost_is_set_in_a_forked_process(r, server):
    lock = dlock.Lock(r, "foo", timeout=60, auto_renew=True)
    lock.acquire()
    lost = lock.lost
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=lambda: answers.put(lost.is_set()))
    process.start()
    assert answers.get(timeout=LIMIT) is True
    process.join()
    assert not lost.is_set()
    lock.release()


def test_lost_is_set_in_a_process_that_is_forked_while_the_background_works(r, server):
    lock = dlock.Lock(r, "foo", timeout=60, auto_renew=True)
    lock.acquire()
    lost = lock.lost
    locked, may_end = threading.Event(), threading.Event()

    def work():
        with _threads._background._lock:
            locked.set()
            may_end.wait(LIMIT)

    helper = threading.Thread(target=work)
    helper.start()
    assert locked.wait(LIMIT)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=lambda: answers.put(lost.is_set()))
    process.start()
    may_end.set()
    try:
        assert answers.get(timeout=LIMIT) is True
    finally:
        process.kill()
    helper.join()
    lock.release()


def test_a_renewed_hold_ends_after_its_process_is_killed(r, server):
    def child():
        dlock.Lock(patient_client(server), "foo", timeout=15, auto_renew=True).acquire()
        threading.Event().wait()

    def left():
        return r.execute_command("DLOCK.PTTL", "foo")

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    until("the process has the hold", lambda: is_held(r))
    until("the lease goes down", lambda: 0 < left() < 13_000)
    until("the hold is renewed", lambda: left() > 13_000)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    until("the lock is free", lambda: not is_held(r))


def test_a_thread_sees_only_its_own_hold(r, server):
    lock = dlock.Lock(r, "foo", timeout=10)
    lock.acquire()
    seen = []

    def other():
        seen.append((lock.owned(), lock.local.token, lock.fence))
        with pytest.raises(LockError):
            lock.release()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [(False, None, None)]
    assert lock.owned()
    lock.release()


def test_acquire_raises_in_a_grace_period_without_waiting(r, get_lock):
    # A flush that ends a hold begins a grace period.
    r.config_set("dlock.restart-grace", 60_000)
    get_lock("forgotten", timeout=60).acquire()
    r.flushall()
    try:
        with pytest.raises(dlock.GraceError) as caught:
            get_lock(timeout=60).acquire(blocking=False)
        assert 0 < caught.value.left <= 60
    finally:
        r.config_set("dlock.restart-grace", 0)


def test_acquire_waits_for_the_end_of_a_grace_period(r, get_lock):
    # A flush that ends a hold begins a grace period.
    r.config_set("dlock.restart-grace", 5000)
    get_lock("forgotten", timeout=5).acquire()
    r.flushall()
    try:
        lock = get_lock(timeout=5)
        assert lock.acquire(blocking_timeout=LIMIT)
    finally:
        r.config_set("dlock.restart-grace", 0)


def test_acquire_asks_again_before_the_announced_end_of_a_grace_period(r, get_lock):
    # A flush that ends a hold begins a grace period.
    r.config_set("dlock.restart-grace", 600_000)
    try:
        get_lock("forgotten", timeout=60).acquire()
        r.flushall()
        r.config_resetstat()
        lock = get_lock(timeout=60, thread_local=False)
        waiting = threading.Thread(target=lock.acquire, daemon=True)
        waiting.start()
        until("the first request arrives", lambda: "dlock.acquire" in str(r.info("commandstats")).lower())
    finally:
        # Ends the grace period.
        r.config_set("dlock.restart-grace", 0)
    until("the acquire returns", lambda: not waiting.is_alive())
    lock.release()


def test_the_background_repeats_a_release_that_the_server_refuses(r, get_lock):
    lock = get_lock(timeout=600)
    lock.acquire()
    r.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
            lock.release()
    finally:
        r.config_set("min-replicas-to-write", 0)
    until("the hold is released", lambda: not r.exists("foo"))


def test_acquire_waits_for_a_lock_of_redis_py(r, get_lock):
    r.set("foo", FOREIGN_TOKEN, px=200)
    lock = get_lock(timeout=10, sleep=0.02)
    assert lock.acquire(blocking_timeout=20)
    lock.release()
