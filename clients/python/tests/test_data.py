"""A request for a key that holds data raises an error that names the type of the data. A lock of another
library at the key counts as a held lock."""

from __future__ import annotations

import pytest
from conftest import FOREIGN_TOKEN
from redis.exceptions import ResponseError

import dlock
from dlock._protocol import send_raising_for_data

pytestmark = pytest.mark.usefixtures("slow_answers")

FILL_COMMANDS = {
    "list": ["RPUSH", "foo", "a"],
    "hash": ["HSET", "foo", "a", "b"],
    "string": ["SET", "foo", "data"],
}


@pytest.mark.parametrize("kind", FILL_COMMANDS)
@pytest.mark.parametrize("options", [{}, {"blocking_timeout": 60}, {"blocking": False}], ids=str)
def test_acquire_raises_at_once_for_a_key_that_holds_data(r, get_lock, kind, options):
    r.execute_command(*FILL_COMMANDS[kind])
    with pytest.raises(dlock.NotALockError, match=f"holds a {kind}"):
        get_lock(timeout=10).acquire(**options)
    assert r.type("foo").decode() == kind


def test_acquire_raises_for_data_under_a_key_that_was_contended(r, get_lock):
    r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    lock = get_lock(timeout=10, thread_local=False)
    assert lock.acquire(blocking_timeout=0.1) is False
    # This client has found the lock taken, so its next `acquire` joins the queue with the first request.
    r.execute_command("DLOCK.RELEASE", "foo", "holder")
    r.rpush("foo", "a")
    with pytest.raises(dlock.NotALockError, match="holds a list"):
        lock.acquire()


def test_locked_raises_for_a_key_that_holds_data(r, get_lock):
    r.rpush("foo", "a")
    with pytest.raises(dlock.NotALockError, match="holds a list"):
        get_lock(timeout=10).locked()


def test_a_lock_of_another_library_counts_as_held(r, get_lock):
    r.set("foo", FOREIGN_TOKEN)
    assert get_lock(timeout=10).locked() is True
    assert get_lock(timeout=10).acquire(blocking=False) is False
    assert get_lock(timeout=10, sleep=0.02).acquire(blocking_timeout=0.1) is False


def test_any_string_counts_as_a_held_lock_when_the_server_honours_strings(r, get_lock):
    r.set("foo", "data")
    r.config_set("dlock.honour-strings", "yes")
    try:
        assert get_lock(timeout=10, thread_local=False).acquire(blocking_timeout=0.1) is False
        assert get_lock(timeout=10).locked() is True
        r.delete("foo")
        r.rpush("foo", "a")
        with pytest.raises(dlock.NotALockError, match="holds a list"):
            get_lock(timeout=10).locked()
    finally:
        r.config_set("dlock.honour-strings", "no")


def test_any_string_counts_as_a_held_lock_when_a_quorum_honours_strings(members):
    for client in members.direct:
        client.config_set("dlock.honour-strings", "yes")
        client.set("foo", "data")
    try:
        assert members.lock(timeout=10).locked() is True
        assert members.lock(timeout=10).acquire(blocking=False) is False
    finally:
        for client in members.direct:
            client.config_set("dlock.honour-strings", "no")


def test_a_string_that_the_client_cannot_decode_is_data(r, locks, server):
    r.set("foo", b"\x80\xff")
    lock = locks.lock(locks.client(server.url, decode_responses=True), "foo", timeout=10)
    for call in lock.acquire, lock.locked:
        with pytest.raises(dlock.NotALockError, match="holds a string"):
            call()


def test_a_string_that_the_clients_of_a_quorum_cannot_decode_is_data(members):
    for client in members.direct:
        client.set("foo", b"\x80\xff")
    urls = [f"{proxy.url}?decode_responses=True" for proxy in members.proxies]
    lock = members.lock(quorum=members.make_quorum(urls), timeout=10)
    for call in lock.acquire, lock.locked:
        with pytest.raises(dlock.NotALockError, match="holds a string"):
            call()


@pytest.mark.parametrize("command", ["type", "get"])
def test_acquire_names_the_missing_right_to_read_a_string(r, locks, server, command):
    r.set("foo", FOREIGN_TOKEN)
    r.execute_command("ACL", "SETUSER", "plain", "reset", "on", ">secret", "~*", "&*", "+@all", f"-{command}")
    client = locks.client(server.url.replace("//", "//plain:secret@"))
    with pytest.raises(dlock.LockError, match=rf"may not read .*'{command}'.*\+type \+get"):
        locks.lock(client, "foo", timeout=10).acquire()


def test_a_quorum_raises_at_once_for_a_key_that_holds_data(members):
    for client in members.direct[:2]:
        client.rpush("foo", "a")
    with pytest.raises(dlock.NotALockError, match="holds a list"):
        members.lock(timeout=10).acquire()
    with pytest.raises(dlock.NotALockError, match="holds a list"):
        members.lock(timeout=10).locked()


def test_a_quorum_grants_when_one_member_holds_data(members):
    members.direct[0].rpush("foo", "a")
    with members.lock(timeout=10) as lock:
        assert lock.owned()


def reading_a_string():
    """Returns the generator of a request that has found a string at its key, and now reads the string: it may
    be a lock of another library. The generator yields commands, and the test sends it the replies."""
    request = send_raising_for_data(("DLOCK.PTTL", "foo"), "foo")
    next(request)
    assert request.throw(ResponseError("WRONGTYPE")) == ("TYPE", "foo")
    assert request.send("string") == ("GET", "foo")
    return request


def test_a_request_is_repeated_when_a_string_at_its_key_has_been_replaced():
    assert reading_a_string().throw(ResponseError("WRONGTYPE")) == ("DLOCK.PTTL", "foo")


def test_a_request_raises_the_error_when_it_cannot_read_the_string():
    with pytest.raises(ResponseError, match="LOADING"):
        reading_a_string().throw(ResponseError("LOADING"))


def test_a_lock_of_another_library_counts_as_held_in_a_quorum(members):
    for client in members.direct:
        client.set("foo", FOREIGN_TOKEN)
    lock = members.lock(timeout=10)
    assert lock.locked() is True
    assert lock.acquire(blocking=False) is False
    for client in members.direct:
        client.delete("foo")
    assert lock.acquire(blocking_timeout=20)
    lock.release()
    members.until_free()
