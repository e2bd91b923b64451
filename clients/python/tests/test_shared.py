"""Several tasks or threads use one lock object: they share its hold, or read its state."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

import pytest
import redis
import redis.asyncio
from conftest import LIMIT, expire, is_held, patient_async_client, until
from redis.exceptions import LockError, LockNotOwnedError

import dlock
import dlock.asyncio
from dlock import _threads
from dlock._clock import now


class DelayedReplies(redis.asyncio.Redis):
    """A client that delays the reply to the next command of a given kind until an event is set."""

    command = ""
    may_reply = None

    async def execute_command(self, *args, **options):
        outcome = await super().execute_command(*args, **options)
        if args[0] == self.command:
            self.command = ""
            await self.may_reply.wait()
        return outcome

    def delay_reply(self, command):
        self.command, self.may_reply = command, asyncio.Event()
        return self.may_reply


def test_a_release_that_is_answered_after_the_next_acquire_leaves_the_new_hold(r, server):
    async def main():
        async with DelayedReplies.from_url(server.url, socket_timeout=LIMIT) as client:
            lock = dlock.asyncio.Lock(client, "foo", timeout=60)
            await lock.acquire()
            may_reply = client.delay_reply("DLOCK.RELEASE")
            releasing = asyncio.create_task(lock.release())
            # The two commands go over two connections. The server must execute the RELEASE first.
            while is_held(r):
                await asyncio.sleep(0.005)
            await lock.acquire()
            may_reply.set()
            await releasing
            assert await lock.owned()
            await lock.release()
            assert not is_held(r)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_the_next_acquire_reports_a_broken_hold_as_lost(r, server):
    async def main():
        async with patient_async_client(server) as client:
            lock = dlock.asyncio.Lock(client, "foo", timeout=60)
            await lock.acquire()
            lost = lock.lost
            r.execute_command("DLOCK.BREAK", "foo")
            await lock.acquire()
            assert lost.is_set()
            assert not lock.lost.is_set()
            await lock.release()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_second_acquire_with_the_same_token_does_not_report_the_hold_as_taken_away(r, get_lock):
    reasons = []
    lock = get_lock(timeout=60, on_lost=reasons.append)
    for _ in range(2):
        assert lock.acquire(blocking=False, token="mine")
    expire(r, lock)
    until("the loss is reported", lambda: reasons)
    assert "taken away" not in reasons


def test_extensions_at_the_same_time_are_sent_one_after_the_other(r, server):
    async def main():
        async with DelayedReplies.from_url(server.url, socket_timeout=LIMIT) as client:
            lock = dlock.asyncio.Lock(client, "foo", timeout=10)
            await lock.acquire()
            may_reply = client.delay_reply("DLOCK.EXTEND")
            longer = asyncio.create_task(lock.extend(60, replace_ttl=True))
            while r.execute_command("DLOCK.PTTL", "foo") <= 10_000:
                await asyncio.sleep(0.005)
            shorter = asyncio.create_task(lock.extend(20, replace_ttl=True))
            # The client must not send the second extension before it has the answer to the first.
            await asyncio.wait([shorter], timeout=0.2)
            assert r.execute_command("DLOCK.PTTL", "foo") > 20_000
            may_reply.set()
            await asyncio.gather(longer, shorter)
            left_on_server = r.execute_command("DLOCK.PTTL", "foo")
            assert (lock.local.hold.valid_until - now()) * 1000 <= left_on_server
            await lock.release()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_on_lost_is_not_called_by_the_thread_that_finds_the_loss(r, server):
    callers = []
    lock = dlock.Lock(r, "foo", timeout=60, on_lost=lambda why: callers.append(threading.current_thread()))
    lock.acquire()
    # While the test holds this condition, the thread that watches the hold cannot continue.
    with _threads._background._lock:
        expire(r, lock)
        assert lock.lost.is_set()
        assert callers == []
    until("on_lost is called", lambda: callers)
    assert callers != [threading.current_thread()]


def test_on_lost_is_called_in_the_event_loop_when_another_thread_finds_the_loss(server):
    async def main():
        async with patient_async_client(server) as client:
            callers = []
            on_lost = lambda why: callers.append(threading.current_thread())  # noqa: E731
            lock = dlock.asyncio.Lock(client, "foo", timeout=60, on_lost=on_lost)
            await lock.acquire()
            lost = lock.lost
            lock.local.hold.valid_until = now() + 0.1
            waiting = asyncio.create_task(lost.wait())
            await asyncio.sleep(0)
            # `join` blocks the event loop until the other thread has found the loss.
            finder = threading.Thread(target=until, args=("the hold is lost", lost.is_set))
            finder.start()
            finder.join()
            assert callers == []
            assert await waiting
            while not callers:
                await asyncio.sleep(0.005)
            assert callers == [threading.current_thread()]

    # In debug mode, asyncio raises if another thread calls into the loop.
    asyncio.run(asyncio.wait_for(main(), 20), debug=True)


def test_a_coroutine_function_is_refused_as_on_lost(get_lock):
    async def on_lost(why):
        pass

    with pytest.raises(TypeError, match="on_lost"):
        get_lock(on_lost=on_lost)


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_the_attribute_lost_raises_in_another_thread(r, server, kind):
    seen = []

    def read_lost(lock):
        with pytest.raises(LockError, match="pass the event on"):
            lock.lost.is_set()
        seen.append(True)

    async def main():
        async with patient_async_client(server) as client:
            async with dlock.asyncio.Lock(client, "foo", timeout=10) as lock:
                await asyncio.get_running_loop().run_in_executor(None, read_lost, lock)
            assert not lock.lost.is_set()

    if kind == "asyncio":
        asyncio.run(main())
    else:
        with dlock.Lock(r, "foo", timeout=10) as lock:
            thread = threading.Thread(target=read_lost, args=[lock])
            thread.start()
            thread.join()
        assert not lock.lost.is_set()
    assert seen == [True]


def test_a_thread_with_a_reused_id_is_another_owner(r, server):
    lock = dlock.Lock(r, "foo", timeout=60, thread_local=False, reentrant=True)
    owner = threading.Thread(target=lock.acquire)
    owner.start()
    owner_id = owner.ident
    owner.join()
    entered = {}

    def enter():
        entered[threading.get_ident()] = lock.acquire(blocking=False)

    # A later thread can get the id of the first one, which has ended.
    for _ in range(200):
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    assert set(entered.values()) == {False}
    if owner_id not in entered:
        pytest.skip("no thread got the id of the first thread")


def test_a_with_block_leaves_the_hold_of_another_task(r, server):
    """Task A overruns its lease, and B acquires the lock through the same object."""

    async def main():
        async with patient_async_client(server) as client:
            lock = dlock.asyncio.Lock(client, "foo", timeout=60)

            async def overrun():
                async with lock:
                    expire(r, lock)
                    await asyncio.create_task(lock.acquire())

            for _ in range(2):
                with pytest.raises(LockNotOwnedError):
                    await overrun()
                assert await lock.owned()
                await lock.release()
            assert not is_held(r)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_release_by_a_task_whose_hold_was_replaced_leaves_the_new_hold(r, server):
    async def main():
        async with patient_async_client(server) as client:
            lock = dlock.asyncio.Lock(client, "foo", timeout=60)
            await lock.acquire()
            expire(r, lock)
            await asyncio.create_task(lock.acquire())
            with pytest.raises(LockNotOwnedError):
                await lock.release()
            assert await lock.owned()
            # As with redis-py, a task that has acquired nothing may release the lock.
            await asyncio.create_task(lock.release())
            assert not is_held(r)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_task_whose_hold_was_replaced_has_lost_it_until_it_acquires_again(r, server):
    async def main():
        async with patient_async_client(server) as client:
            lock = dlock.asyncio.Lock(client, "foo", timeout=60)
            await lock.acquire()
            fence, token = lock.fence, lock.token
            expire(r, lock)
            assert await asyncio.create_task(lock.acquire())
            for _ in range(2):
                assert not await lock.owned()
                assert lock.lost.is_set()
                assert (lock.fence, lock.token) == (fence, token)
                for use in (
                    lambda: lock.guard("SET", "{foo}:data", "late"),
                    lambda: lock.extend(60),
                    lock.reacquire,
                    lock.downgrade,
                ):
                    with pytest.raises(LockNotOwnedError, match="lease ended"):
                        await use()
                with pytest.raises(LockNotOwnedError):
                    lock.forget()
                # A helper has lost nothing, and may release the lock as with redis-py.
                if await asyncio.create_task(lock.owned()):
                    await asyncio.create_task(lock.release())
            assert not r.exists("{foo}:data")
            await lock.acquire()
            assert await lock.owned()
            assert lock.fence > fence
            await lock.release()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_thread_whose_hold_was_replaced_has_lost_it(r, server):
    lock = dlock.Lock(r, "foo", timeout=60, thread_local=False)
    lock.acquire()
    fence = lock.fence
    expire(r, lock)
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        assert other.submit(lock.acquire).result()
        assert not lock.owned()
        assert lock.lost.is_set()
        assert lock.fence == fence
        with pytest.raises(LockNotOwnedError):
            lock.extend(60)
        with pytest.raises(LockNotOwnedError):
            lock.guard("SET", "{foo}:data", "late")
        assert other.submit(lock.owned).result()
        other.submit(lock.release).result()


def test_a_semaphore_is_not_acquired_over_the_permit_of_another_task(r, server):
    async def main():
        async with patient_async_client(server) as client:
            lock = dlock.asyncio.Lock(client, "foo", timeout=60, permits=2)
            await lock.acquire()
            expire(r, lock)
            await asyncio.create_task(lock.acquire())
            with pytest.raises(LockError, match="Already acquired here"):
                await lock.acquire()
            await asyncio.create_task(lock.release())

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_with_block_may_end_in_another_task(r, server):
    async def main():
        async with patient_async_client(server) as client:
            lock = dlock.asyncio.Lock(client, "foo", timeout=60)
            await lock.__aenter__()
            await asyncio.create_task(lock.__aexit__(None, None, None))
            assert not is_held(r)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_with_block_releases_the_hold_that_it_has_acquired_again(r, server):
    with dlock.Lock(r, "foo", timeout=60) as lock:
        lock.release()
        lock.acquire()
    assert not is_held(r)


class BlockError(Exception):
    pass


@pytest.mark.parametrize("raises", [True, False])
def test_the_error_of_a_with_block_passes_when_the_release_fails(r, get_lock, raises, monkeypatch):
    logged = []
    monkeypatch.setattr("dlock._hold.logger.warning", lambda *args: logged.append(args))
    with pytest.raises(BlockError), get_lock(timeout=60, raise_on_release_error=raises) as lock:
        expire(r, lock)
        raise BlockError
    assert len(logged) == 1


def test_a_script_for_the_lock_is_refused(get_lock):
    """celery-redbeat replaces the script of `extend`, so that it sets the lease."""
    lock = get_lock(timeout=60)
    with pytest.raises(AttributeError, match="replace_ttl=True"):
        getattr(lock, "lock", lock).lua_extend = "a script"
