"""What redis-py promises of its lock, and tests: the same here, for both kinds. What a key of a
`redis.lock.Lock` shows (its value, its TTL) is asked of the module instead."""

from __future__ import annotations

import functools
import inspect

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
def test_the_methods_take_the_same_arguments(ours, theirs):
    assert issubclass(ours, theirs)
    for name in ["__init__", "acquire", "release", "extend", "reacquire", "locked", "owned"]:
        expected = inspect.signature(getattr(theirs, name)).parameters
        found = list(inspect.signature(getattr(ours, name)).parameters.values())[: len(expected)]
        assert [(p.name, p.default) for p in found] == [(p.name, p.default) for p in expected.values()], name


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(dlock.Lock, redis.lock.Lock), (dlock.asyncio.Lock, redis.asyncio.lock.Lock)],
)
def test_no_method_is_left_that_would_make_a_lock_of_redis_py(ours, theirs):
    methods = [name for name, value in vars(theirs).items() if inspect.isfunction(value)]
    assert "do_acquire" in methods
    assert [name for name in methods if getattr(ours, name) is getattr(theirs, name)] == []


def test_client_lock_makes_one(server, r, locks):
    client = locks.client(server.url)
    lock_class = dlock.Lock if locks.kind == "threads" else dlock.asyncio.Lock
    lock = client.lock("foo", timeout=3, sleep=0.2, blocking=False, lock_class=lock_class)
    assert isinstance(lock, lock_class)
    assert (lock.name, lock.timeout, lock.sleep, lock.blocking) == ("foo", 3, 0.2, False)
    assert (lock.blocking_timeout, lock.thread_local, lock.raise_on_release_error) == (None, True, True)
    assert lock.local.token is None
    client.lock("foo", lock_class=functools.partial(lock_class, shared=True))


def test_lock(r, get_lock):
    lock = get_lock()
    assert lock.acquire(blocking=False)
    assert holds(r, lock)
    assert r.ttl("foo") == -1
    lock.release()
    assert r.exists("foo") == 0


@pytest.mark.parametrize("thread_local", [True, False])
def test_lock_token(r, get_lock, thread_local):
    lock = get_lock(thread_local=thread_local)
    assert lock.acquire(blocking=False, token="test")
    assert r.execute_command("DLOCK.HOLDS", "foo", "test") == 1
    assert lock.local.token == b"test"
    lock.release()
    assert r.exists("foo") == 0
    assert lock.local.token is None


def test_locked(get_lock):
    lock = get_lock()
    assert lock.locked() is False
    lock.acquire(blocking=False)
    assert lock.locked() is True
    lock.release()
    assert lock.locked() is False


@pytest.mark.parametrize("decoded", [True, False])
def test_owned(server, locks, decoded):
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


def test_competing_locks(get_lock):
    lock1, lock2 = get_lock(), get_lock()
    assert lock1.acquire(blocking=False)
    assert not lock2.acquire(blocking=False)
    lock1.release()
    assert lock2.acquire(blocking=False)
    assert not lock1.acquire(blocking=False)
    lock2.release()


@pytest.mark.parametrize("timeout", [10, 9.5])
def test_timeout(r, get_lock, timeout):
    lock = get_lock(timeout=timeout)
    assert lock.acquire(blocking=False)
    assert timeout * 1000 - 2000 < pttl(r) <= timeout * 1000
    lock.release()


def test_context_manager(r, get_lock):
    with get_lock(blocking_timeout=0.2) as lock:
        assert holds(r, lock)
    assert r.exists("foo") == 0


def test_context_manager_raises_when_locked_not_acquired(r, get_lock):
    r.set("foo", "bar")
    with pytest.raises(LockError) as caught, get_lock(blocking_timeout=0.1):
        pass
    assert caught.value.lock_name == "foo"


def test_context_manager_raise_on_release_error(r, get_lock):
    with get_lock(timeout=60, raise_on_release_error=False) as lock:
        expire(r, lock)
    with pytest.raises(LockNotOwnedError), get_lock(timeout=60) as lock:
        expire(r, lock)
    with get_lock(timeout=10, raise_on_release_error=False) as lock:
        lock.release()
    with pytest.raises(LockError), get_lock(timeout=10) as lock:
        lock.release()


def test_releasing_unlocked_lock_raises_error(get_lock):
    with pytest.raises(LockError):
        get_lock().release()


def test_releasing_lock_no_longer_owned_raises_error(r, get_lock):
    lock = get_lock()
    lock.acquire(blocking=False)
    r.set("foo", "a")
    with pytest.raises(LockNotOwnedError):
        lock.release()
    # Even though we errored, the token is still cleared.
    assert lock.local.token is None
    assert r.get("foo") == b"a"


def test_extend_lock(r, get_lock):
    lock = get_lock(timeout=10)
    assert lock.acquire(blocking=False)
    assert 8000 < pttl(r) <= 10000
    assert lock.extend(10)
    assert 16000 < pttl(r) <= 20000
    lock.release()


def test_extend_lock_replace_ttl(r, get_lock):
    lock = get_lock(timeout=10)
    assert lock.acquire(blocking=False)
    assert lock.extend(10, replace_ttl=True)
    assert 8000 < pttl(r) <= 10000
    lock.release()


def test_extend_lock_float(r, get_lock):
    lock = get_lock(timeout=10.5)
    assert lock.acquire(blocking=False)
    old = pttl(r)
    assert lock.extend(10.5)
    assert old + 9000 < pttl(r) <= old + 10500
    lock.release()


@pytest.mark.parametrize("ttl", [0, -1])
def test_an_extension_that_the_server_refuses_is_no_loss(get_lock, ttl):
    lock = get_lock("foo", timeout=10)
    assert lock.acquire()
    with pytest.raises(redis.ResponseError):
        lock.extend(ttl, replace_ttl=True)
    assert lock.owned()
    lock.release()


@pytest.mark.parametrize("doing", ["extend", "reacquire"])
def test_extending_and_reacquiring_what_is_not_held(r, get_lock, doing):
    arguments = {"extend": [10], "reacquire": []}[doing]
    with pytest.raises(LockError):
        getattr(get_lock(timeout=10), doing)(*arguments)
    lock = get_lock()
    assert lock.acquire(blocking=False)
    with pytest.raises(LockError, match="no timeout"):
        getattr(lock, doing)(*arguments)
    lock.release()
    lock = get_lock(timeout=10)
    assert lock.acquire(blocking=False)
    r.set("foo", "a")
    with pytest.raises(LockNotOwnedError):
        getattr(lock, doing)(*arguments)


def test_reacquire_lock(r, get_lock):
    lock = get_lock(timeout=10)
    assert lock.acquire(blocking=False)
    assert lock.extend(5, replace_ttl=True)
    assert pttl(r) <= 5000
    assert lock.reacquire()
    assert 8000 < pttl(r) <= 10000
    lock.release()


def test_a_lock_of_redis_py_on_the_same_key_excludes_it(r, get_lock):
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


def test_what_the_methods_of_redis_py_are_made_of(r, get_lock):
    lock, elsewhere = get_lock(timeout=10), get_lock(timeout=10)
    assert lock.do_acquire("mine")
    assert not elsewhere.do_acquire("other")
    lock.local.token = "mine"
    assert lock.do_extend(10, False)
    assert 16000 < pttl(r) <= 20000
    assert lock.do_reacquire()
    assert pttl(r) <= 10000
    elsewhere.do_release("mine")
    assert r.exists("foo") == 0
    with pytest.raises(LockNotOwnedError):
        elsewhere.do_release("mine")


def test_do_release_ends_the_hold_that_it_releases(r, get_lock):
    told = []
    lock = get_lock(timeout=10, auto_renew=True, on_lost=told.append)
    lock.acquire()
    hold = lock.local.hold
    # As redis-py's `release` does it.
    token, lock.local.token = lock.local.token, None
    lock.do_release(token)
    assert r.exists("foo") == 0
    assert hold.over
    assert told == []


def test_a_token_set_by_hand_is_a_hold(r, get_lock):
    lock, elsewhere = get_lock(timeout=10), get_lock(timeout=10)
    assert lock.acquire(blocking=False)
    elsewhere.local.token = lock.local.token
    assert elsewhere.owned()
    assert elsewhere.extend(10)
    elsewhere.release()
    assert not lock.owned()
