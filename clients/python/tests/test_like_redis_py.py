"""The tests that redis-py has for its lock, run with the locks for threads and for asyncio. Instead of the
value and the TTL of the key, they read the replies of the module. The last tests are for programs that call
the `do_` methods or set the token of a lock object."""

from __future__ import annotations

import functools
import inspect
import time

import pytest
import redis
import redis.asyncio.lock
import redis.lock
from conftest import expire
from redis.exceptions import LockError, LockNotOwnedError

import dlock
import dlock.asyncio


def holds(r, lock):
    return r.execute_command("DLOCK.HOLDS", "foo", lock.local.token) == 1


def pttl(r):
    return r.execute_command("DLOCK.PTTL", "foo")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(dlock.Lock, redis.lock.Lock), (dlock.asyncio.Lock, redis.asyncio.lock.Lock)],
)
def test_the_methods_take_the_arguments_of_redis_py(ours, theirs):
    assert issubclass(ours, theirs)
    for name in ["__init__", "acquire", "release", "extend", "reacquire", "locked", "owned"]:
        expected = inspect.signature(getattr(theirs, name)).parameters
        found = list(inspect.signature(getattr(ours, name)).parameters.values())[: len(expected)]
        assert [(p.name, p.default) for p in found] == [(p.name, p.default) for p in expected.values()], name


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(dlock.Lock, redis.lock.Lock), (dlock.asyncio.Lock, redis.asyncio.lock.Lock)],
)
def test_no_method_of_redis_py_is_inherited(ours, theirs):
    methods = [name for name, value in vars(theirs).items() if inspect.isfunction(value)]
    assert "do_acquire" in methods
    assert [name for name in methods if getattr(ours, name) is getattr(theirs, name)] == []


def test_client_lock_makes_a_lock_of_the_class(server, r, locks):
    client = locks.client(server.url)
    lock_class = dlock.Lock if locks.kind == "threads" else dlock.asyncio.Lock
    lock = client.lock("foo", timeout=3, sleep=0.2, blocking=False, lock_class=lock_class)
    assert isinstance(lock, lock_class)
    assert (lock.name, lock.timeout, lock.sleep, lock.blocking) == ("foo", 3, 0.2, False)
    assert (lock.blocking_timeout, lock.thread_local, lock.raise_on_release_error) == (None, True, True)
    assert lock.local.token is None
    client.lock("foo", lock_class=functools.partial(lock_class, shared=True))


def test_acquire_holds_the_lock_without_a_ttl_of_the_key(r, get_lock):
    lock = get_lock()
    assert lock.acquire(blocking=False)
    assert holds(r, lock)
    assert r.ttl("foo") == -1
    lock.release()
    assert r.exists("foo") == 0


@pytest.mark.parametrize("thread_local", [True, False])
def test_acquire_uses_the_token_of_the_caller(r, get_lock, thread_local):
    lock = get_lock(thread_local=thread_local)
    assert lock.acquire(blocking=False, token="test")
    assert r.execute_command("DLOCK.HOLDS", "foo", "test") == 1
    assert lock.local.token == b"test"
    lock.release()
    assert r.exists("foo") == 0
    assert lock.local.token is None


def test_locked_is_true_while_the_lock_is_held(get_lock):
    lock = get_lock()
    assert lock.locked() is False
    lock.acquire(blocking=False)
    assert lock.locked() is True
    lock.release()
    assert lock.locked() is False


@pytest.mark.parametrize("decoded", [True, False])
def test_owned_is_true_for_the_object_that_holds_the_lock(server, locks, decoded):
    client = locks.client(server.url, decode_responses=decoded)
    lock, other = locks.lock(client, "foo"), locks.lock(client, "foo")
    assert lock.owned() is False
    lock.acquire(blocking=False)
    assert (lock.owned(), other.owned()) == (True, False)
    lock.release()
    assert lock.owned() is False
    other.acquire(blocking=False)
    assert (lock.owned(), other.owned()) == (False, True)
    other.release()
    assert (lock.owned(), other.owned()) == (False, False)


def test_two_locks_of_one_name_exclude_each_other(get_lock):
    lock1, lock2 = get_lock(), get_lock()
    assert lock1.acquire(blocking=False)
    assert not lock2.acquire(blocking=False)
    lock1.release()
    assert lock2.acquire(blocking=False)
    assert not lock1.acquire(blocking=False)
    lock2.release()


@pytest.mark.parametrize("timeout", [10, 9.5])
def test_the_lease_is_the_timeout(r, get_lock, timeout):
    lock = get_lock(timeout=timeout)
    assert lock.acquire(blocking=False)
    assert timeout * 1000 - 2000 < pttl(r) <= timeout * 1000
    lock.release()


def test_a_wait_ends_with_its_blocking_timeout(get_lock):
    lock1, lock2 = get_lock(), get_lock(blocking_timeout=0.2)
    assert lock1.acquire(blocking=False)
    start = time.monotonic()
    assert not lock2.acquire()
    assert time.monotonic() - start > 0.2
    lock1.release()


def test_a_with_block_holds_the_lock(r, get_lock):
    with get_lock(blocking_timeout=0.2) as lock:
        assert holds(r, lock)
    assert r.exists("foo") == 0


def test_a_with_block_raises_when_the_lock_is_not_acquired(r, get_lock):
    r.set("foo", "bar")
    with pytest.raises(LockError) as caught, get_lock(blocking_timeout=0.1):
        pass
    assert caught.value.lock_name == "foo"


def test_a_with_block_raises_a_release_error_unless_raise_on_release_error_is_false(r, get_lock):
    with get_lock(timeout=60, raise_on_release_error=False) as lock:
        expire(r, lock)
    with pytest.raises(LockNotOwnedError), get_lock(timeout=60) as lock:
        expire(r, lock)
    with get_lock(timeout=10, raise_on_release_error=False) as lock:
        lock.release()
    with pytest.raises(LockError), get_lock(timeout=10) as lock:
        lock.release()


def test_release_raises_for_a_lock_that_is_not_held(get_lock):
    with pytest.raises(LockError):
        get_lock().release()


def test_release_raises_for_a_lost_hold_and_clears_the_token(r, get_lock):
    lock = get_lock()
    lock.acquire(blocking=False)
    # Ends the hold.
    r.set("foo", "a")
    with pytest.raises(LockNotOwnedError):
        lock.release()
    # The token is cleared in spite of the error.
    assert lock.local.token is None
    assert r.get("foo") == b"a"


def test_extend_adds_to_the_lease(r, get_lock):
    lock = get_lock(timeout=10)
    assert lock.acquire(blocking=False)
    assert 8000 < pttl(r) <= 10000
    assert lock.extend(10)
    assert 16000 < pttl(r) <= 20000
    lock.release()


def test_extend_replaces_the_lease(r, get_lock):
    lock = get_lock(timeout=10)
    assert lock.acquire(blocking=False)
    assert lock.extend(10, replace_ttl=True)
    assert 8000 < pttl(r) <= 10000
    lock.release()


def test_extend_accepts_a_float(r, get_lock):
    lock = get_lock(timeout=10.5)
    assert lock.acquire(blocking=False)
    old = pttl(r)
    assert lock.extend(10.5)
    assert old + 9000 < pttl(r) <= old + 10500
    lock.release()


@pytest.mark.parametrize("ttl", [0, -1])
def test_a_hold_survives_an_extension_that_the_server_refuses(get_lock, ttl):
    lock = get_lock("foo", timeout=10)
    assert lock.acquire()
    with pytest.raises(redis.ResponseError):
        lock.extend(ttl, replace_ttl=True)
    assert lock.owned()
    lock.release()


@pytest.mark.parametrize("method", ["extend", "reacquire"])
def test_extend_and_reacquire_raise_without_a_hold(r, get_lock, method):
    arguments = {"extend": [10], "reacquire": []}[method]
    with pytest.raises(LockError):
        getattr(get_lock(timeout=10), method)(*arguments)
    lock = get_lock()
    assert lock.acquire(blocking=False)
    with pytest.raises(LockError, match="no timeout"):
        getattr(lock, method)(*arguments)
    lock.release()
    lock = get_lock(timeout=10)
    assert lock.acquire(blocking=False)
    r.set("foo", "a")
    with pytest.raises(LockNotOwnedError):
        getattr(lock, method)(*arguments)


def test_reacquire_sets_the_lease_to_the_timeout(r, get_lock):
    lock = get_lock(timeout=10)
    assert lock.acquire(blocking=False)
    assert lock.extend(5, replace_ttl=True)
    assert pttl(r) <= 5000
    assert lock.reacquire()
    assert 8000 < pttl(r) <= 10000
    lock.release()


def test_a_lock_of_redis_py_and_a_lock_of_dlock_exclude_each_other(r, get_lock):
    theirs = r.lock("foo", timeout=10)
    assert theirs.acquire(blocking=False)
    lock = get_lock(timeout=10)
    assert lock.locked()
    assert not lock.owned()
    assert not lock.acquire(blocking=False)
    theirs.release()
    assert lock.acquire(blocking=False)
    assert not theirs.acquire(blocking=False)
    lock.release()


def test_the_do_methods_of_redis_py_acquire_extend_and_release(r, get_lock):
    lock, other_object = get_lock(timeout=10), get_lock(timeout=10)
    assert lock.do_acquire("mine")
    assert not other_object.do_acquire("other")
    lock.local.token = "mine"
    assert lock.do_extend(10, False)
    assert 16000 < pttl(r) <= 20000
    assert lock.do_reacquire()
    assert pttl(r) <= 10000
    other_object.do_release("mine")
    assert r.exists("foo") == 0
    with pytest.raises(LockNotOwnedError):
        other_object.do_release("mine")


def test_do_release_ends_the_hold_and_reports_no_loss(r, get_lock):
    reasons = []
    lock = get_lock(timeout=10, auto_renew=True, on_lost=reasons.append)
    lock.acquire()
    hold = lock.local.hold
    # `release` of redis-py also clears the token before it calls `do_release`.
    token, lock.local.token = lock.local.token, None
    lock.do_release(token)
    assert r.exists("foo") == 0
    assert hold.over
    assert reasons == []


def test_extend_raises_while_an_unanswered_extend_may_still_shorten_the_lease(get_proxied_lock, proxy):
    lock, other_object = (
        get_proxied_lock(timeout=60, socket_timeout=1),
        get_proxied_lock(timeout=60, socket_timeout=1),
    )
    assert lock.acquire(blocking=False)
    other_object.local.token = lock.local.token
    assert other_object.owned()
    proxy.silent = True
    with pytest.raises(redis.TimeoutError):
        other_object.extend(15, replace_ttl=True)
    proxy.silent = False
    with pytest.raises(redis.TimeoutError, match="Only 15 s are certain"):
        other_object.extend(60, replace_ttl=True)


def test_a_lock_object_with_the_token_of_another_object_owns_its_hold(r, get_lock):
    lock, other_object = get_lock(timeout=10), get_lock(timeout=10)
    assert lock.acquire(blocking=False)
    other_object.local.token = lock.local.token
    assert other_object.owned()
    assert other_object.extend(10)
    other_object.release()
    assert not lock.owned()
