"""The options of a lock beyond those of redis-py's, on a real server, for threads and for asyncio."""

from __future__ import annotations

import math
import os
import re
import socket
import threading

import pytest
import redis
from conftest import LIMIT, Blocking, calls, patient_client, queue_order, until

import dlock
from dlock import _tasks, _threads
from dlock._clock import now
from dlock._reading import in_seconds


def seen(r, name="foo"):
    """Returns the reply to INSPECT as a map, with the first holder."""
    reply = r.execute_command("DLOCK.INSPECT", name)
    reply = dict(zip(reply[::2], reply[1::2])) if isinstance(reply, list) else reply
    reply = {key.decode(): value for key, value in reply.items()}
    for each in reply["holders"]:
        each = dict(zip(each[::2], each[1::2])) if isinstance(each, list) else each
        return {**reply, **{key.decode(): value for key, value in each.items()}}
    return reply


def test_the_default_label_names_host_process_and_thread_or_task(r, get_lock):
    with get_lock():
        label = seen(r)["label"].decode()
    assert label.startswith(f"{socket.gethostname()}:{os.getpid()} ")
    assert len(label.split(" ", 1)[1]) > 2


@pytest.mark.parametrize("label", ["nightly report", ""])
def test_a_label_is_sent_as_it_is(r, get_lock, label):
    with get_lock(label=label):
        assert seen(r)["label"].decode() == label


def test_a_label_of_a_quorum_is_sent_to_all_members(members):
    with members.lock(label="nightly"):
        members.until_held()
        assert [seen(client)["label"] for client in members.direct] == [b"nightly"] * 3


def test_a_delay_follows_a_hold_that_expired(r, get_lock):
    lock = get_lock(timeout=60, delay=30)
    lock.acquire()
    r.execute_command("DLOCK.EXTEND", "foo", lock.token, 1)
    until("the lease ends", lambda: seen(r)["mode"] == b"free")
    assert 0 < seen(r)["delay"] <= 30_000
    assert get_lock().acquire(blocking=False) is False


def test_a_hold_is_lost_after_its_longest_time(r, get_lock):
    reasons = []
    lock = get_lock(max_hold=0.2, on_lost=reasons.append)
    lock.acquire()
    until("the hold is lost", lambda: lock.lost.is_set())
    until("the callback is called", lambda: reasons)
    assert "max_hold" in reasons[0]
    with pytest.raises(dlock.LockNotOwnedError, match="max_hold"):
        lock.release()


def test_an_ephemeral_hold_ends_with_its_connection(r, get_lock):
    lock = get_lock(ephemeral=True)
    lock.acquire()
    assert seen(r)["ephemeral"] == 1
    r.execute_command("CLIENT", "KILL", "ID", seen(r)["client"])
    until("the hold has ended", lambda: not r.exists("foo"))
    with pytest.raises(dlock.LockNotOwnedError, match="its connection ended"):
        lock.release()


def test_a_release_of_an_ephemeral_hold_closes_its_connection(r, get_lock):
    r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    lock, acquired = get_lock(ephemeral=True, timeout=60), threading.Event()

    def work():
        lock.acquire()
        acquired.set()

    options = dict(thread_local=False)
    lock = get_lock(ephemeral=True, timeout=60, **options)
    helper = threading.Thread(target=work)
    helper.start()
    until("it waits", lambda: r.execute_command("DLOCK.WAITERS", "foo"))
    r.execute_command("DLOCK.RELEASE", "foo", "holder")
    assert acquired.wait(LIMIT)
    helper.join()
    client = seen(r)["client"]
    assert seen(r)["ephemeral"] == 1
    lock.release()
    until("the connection is closed", lambda: not r.client_list(client_id=[str(client)]))


def test_a_grant_without_replicas_is_not_durable(r, get_lock):
    lock = get_lock(durable=(1, 0.05))
    with pytest.raises(dlock.NotDurableError, match="0 of 1"):
        lock.acquire()
    assert not r.exists("foo")
    assert lock.token is None


def test_a_grant_that_is_not_durable_leaves_the_lock_open(r, get_lock):
    with pytest.raises(dlock.NotDurableError):
        get_lock(durable=(1, 0.05), at_least=60).acquire()
    assert not r.exists("foo")


def test_a_grant_in_the_append_only_file_is_durable(r, get_lock):
    r.config_set("appendonly", "yes")
    try:
        lock = get_lock(durable=(0, LIMIT))
        try:
            lock.acquire()
        except dlock.NotDurableError as why:
            assert "WAITAOF" in str(why)  # Redis 7.0
        else:
            lock.release()
    finally:
        r.config_set("appendonly", "no")


def test_a_quorum_refuses_what_needs_one_server(members):
    for options in {"ephemeral": True}, {"durable": (1, 1)}:
        with pytest.raises(ValueError, match="single server"):
            members.lock(**options)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"timeout": -1}, ValueError, "from 0.001 on, and not -1"),
        ({"timeout": 0.0001}, ValueError, "from 0.001 on, and not 0.0001"),
        ({"delay": -1}, ValueError, "from 0 on, and not -1"),
        ({"at_least": -1}, ValueError, "from 0 on, and not -1"),
        ({"max_hold": -1}, ValueError, "from 0 on, and not -1"),
        ({"max_hold": 0}, ValueError, "above 0, and not 0"),
        ({"durable": 1}, ValueError, "durable is a pair"),
        ({"durable": (1, 0)}, ValueError, "above 0, and not 0"),
        ({"durable": (-1, 1)}, ValueError, "durable is a pair"),
        ({"permits": 0}, ValueError, "from 1 to 2147483647, and not 0"),
        ({"permits": -1}, ValueError, "from 1 to 2147483647, and not -1"),
        ({"permits": 2**31}, ValueError, "from 1 to 2147483647, and not 2147483648"),
        ({"permits": 1.5}, TypeError, "from 1 to 2147483647, and not 1.5"),
        ({"label": "x" * 256}, ValueError, "label has at most 255 bytes, and not 256"),
        ({"label": 3}, TypeError, "label is a text, and not 3"),
        ({"owner": "x" * 256}, ValueError, "owner has at most 255 bytes, and not 256"),
        ({"owner": 3}, TypeError, "owner is a text, and not 3"),
        ({"shared": "x"}, TypeError, "shared is True or False, and not 'x'"),
        ({"auto_renew": "no"}, TypeError, "auto_renew is True or False, and not 'no'"),
        ({"reentrant": 1}, TypeError, "reentrant is True or False, and not 1"),
        ({"ephemeral": "x"}, TypeError, "ephemeral is True or False, and not 'x'"),
    ],
)
def test_an_invalid_option_is_an_error(r, options, kind, text):
    with pytest.raises(kind, match=re.escape(text)):
        dlock.Lock(r, "foo", **options)


def test_no_timeout_is_none_or_0_as_with_redis_py(r):
    for timeout in None, 0:
        assert dlock.Lock(r, "foo", timeout=timeout).auto_renew


def test_a_guard_writes_while_the_lock_is_held(r, get_lock):
    lock = get_lock()
    lock.acquire()
    assert lock.guard("SET", "data", 1) in (b"OK", "OK")
    assert lock.guard("INCR", "data") == 2
    r.execute_command("DLOCK.BREAK", "foo")
    with pytest.raises(dlock.LockNotOwnedError, match=r"DLOCK\.BREAK"):
        lock.guard("SET", "data", 3)
    assert lock.lost.is_set()
    assert r.get("data") == b"2"
    with pytest.raises(dlock.LockNotOwnedError):
        lock.release()


def test_an_upgrade_waits_for_the_other_sharers(r, get_lock):
    one, other = get_lock(shared=True, timeout=60), get_lock(shared=True, timeout=60)
    one.acquire()
    fence = one.fence
    other.acquire()
    assert one.upgrade(blocking_timeout=0.1) is False
    assert r.execute_command("DLOCK.WAITERS", "foo") == []
    assert seen(r)["mode"] == b"shared"
    other.release()
    assert one.upgrade()
    assert seen(r)["mode"] == b"exclusive" and one.fence == fence
    one.downgrade()
    assert seen(r)["mode"] == b"shared" and one.fence == fence
    one.release()
    assert not r.exists("foo")


def test_an_upgrade_of_a_lost_hold_acquires_nothing(r, get_lock):
    lock = get_lock(shared=True, timeout=60)
    lock.acquire()
    r.execute_command("DLOCK.BREAK", "foo")
    with pytest.raises(dlock.LockNotOwnedError):
        lock.upgrade()
    assert not r.exists("foo")


def test_a_hold_is_adopted_by_its_token(r, get_lock):
    first, second = get_lock(), get_lock(timeout=60)
    first.acquire()
    fence = first.fence
    token = first.forget()
    assert first.token is None and r.exists("foo")
    second.adopt(token)
    assert second.fence == fence and second.token == token
    assert 50_000 < r.execute_command("DLOCK.PTTL", "foo") <= 60_000
    second.release()
    assert not r.exists("foo")
    with pytest.raises(dlock.LockNotOwnedError):
        first.adopt(token)


@pytest.mark.parametrize("option", [{"ephemeral": True}, {"durable": (0, 1)}], ids=["ephemeral", "durable"])
def test_a_lock_with_an_option_of_the_acquisition_adopts_nothing(r, get_lock, option):
    first = get_lock(timeout=60)
    first.acquire()
    [name] = option
    with pytest.raises(ValueError, match=f"^adopt: the hold is there already, so leave out {name}$"):
        get_lock(timeout=60, **option).adopt(first.token)
    first.release()


def test_a_hold_of_a_quorum_is_adopted_by_its_token(members):
    first, second = members.lock(), members.lock(timeout=60)
    first.acquire()
    second.adopt(first.forget())
    assert second.owned()
    second.release()
    members.until_free()


def test_a_wait_until_free_acquires_nothing(r, get_lock):
    lock = get_lock()
    assert lock.wait_until_free()
    r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    assert lock.wait_until_free(0.05) is False
    threading.Timer(0.1, r.execute_command, ["DLOCK.RELEASE", "foo", "holder"]).start()
    assert lock.wait_until_free(LIMIT)
    assert not r.exists("foo")


def test_a_wait_until_free_outlasts_an_outage(r, get_proxied_lock, proxy):
    lock = get_proxied_lock()
    r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    asked = calls(r, "dlock.inspect")

    def fail_and_release():
        until("the lock is inspected", lambda: calls(r, "dlock.inspect") > asked)
        proxy.match, proxy.cut_replies = b"INSPECT", 2
        until("two answers are lost", lambda: proxy.lost == 2)
        r.delete("foo")

    thread = threading.Thread(target=fail_and_release)
    thread.start()
    assert lock.wait_until_free(LIMIT)
    thread.join()


def test_a_wait_until_free_raises_what_is_no_outage(r, server, locks, get_proxied_lock, proxy):
    proxy.refuse = True
    with pytest.raises(redis.exceptions.ConnectionError):
        get_proxied_lock().wait_until_free()
    r.rpush("foo", "data")
    with pytest.raises(redis.exceptions.LockError, match="list"):
        locks.lock(locks.client(server.url), "foo").wait_until_free()


def test_a_wait_until_a_quorum_is_free_outlasts_a_missing_majority(members):
    members.direct[0].execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    members.direct[1].execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    lock = members.lock()
    assert lock.wait_until_free(0) is False
    for proxy in members.proxies[:2]:
        proxy.match, proxy.cut_replies = b"INSPECT", 2

    def release():
        until("four answers are lost", lambda: all(proxy.lost == 2 for proxy in members.proxies[:2]))
        for client in members.direct[:2]:
            client.delete("foo")

    thread = threading.Thread(target=release)
    thread.start()
    assert lock.wait_until_free(LIMIT)
    thread.join()


def test_a_wait_until_a_quorum_is_free(members):
    holder, lock = members.lock(timeout=60), members.lock()
    with holder:
        assert lock.wait_until_free(0) is False
    assert lock.wait_until_free(LIMIT)


def test_the_time_of_a_holder_is_for_people():
    times = [0.0, 0.103, 12.345, 3600.1]
    texts = [in_seconds(time) for time in times]
    assert texts == ["less than 0.001 s", "0.103 s", "12.3 s", "3600 s"]


def test_the_error_of_a_timeout_says_who_has_the_lock(r, get_lock):
    r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000, "LABEL", "nightly")
    with pytest.raises(dlock.NotAcquiredError) as raised, get_lock(blocking_timeout=0.05):
        pass
    assert str(raised.value).startswith(
        'Unable to acquire lock within the time specified: held by "nightly" at 127'
    )
    assert raised.value.holder.token == b"holder"


def test_the_error_of_a_timeout_of_a_quorum_says_who_has_the_lock(members):
    with members.lock(label="nightly"):
        members.until_held()
        with pytest.raises(dlock.NotAcquiredError, match="nightly"), members.lock(blocking_timeout=0.05):
            pass


def close(r, seconds):
    """Releases the lock "foo" so that it stays closed for this time."""
    r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    r.execute_command("DLOCK.RELEASE", "foo", "holder", "ALL", "DELAY", seconds * 1000)


def seconds_closed(failure):
    """Returns the time in the error of a timeout for a lock that is closed."""
    assert failure.holder is None
    text = "Unable to acquire lock within the time specified: closed for another "
    assert str(failure).startswith(text)
    return float(str(failure)[len(text) :].split(" ")[0])


def test_the_error_of_a_timeout_says_that_the_lock_is_closed(r, get_lock):
    close(r, 9000)
    with pytest.raises(dlock.NotAcquiredError) as raised, get_lock(blocking_timeout=0.05):
        pass
    assert 9000 - 2 * LIMIT < seconds_closed(raised.value) <= 9000


def test_the_error_of_a_timeout_names_a_sharer_and_the_time_for_which_the_lock_is_closed(r, get_lock):
    r.execute_command("DLOCK.ACQUIRE", "foo", "other", 600_000, "SHARED", "LABEL", "nightly")
    r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000, "SHARED")
    r.execute_command("DLOCK.RELEASE", "foo", "holder", "ALL", "DELAY", 900_000)
    with (
        pytest.raises(dlock.NotAcquiredError, match=r'held by "nightly".*; closed for another'),
        get_lock(blocking_timeout=0.05, shared=True),
    ):
        pass


def test_the_error_of_a_timeout_of_a_quorum_says_that_the_lock_is_closed(members):
    """The lock is closed until a majority is open."""
    for member, seconds in zip(members.direct, (100, 500, 900)):
        close(member, seconds)
    with pytest.raises(dlock.NotAcquiredError) as raised, members.lock(blocking_timeout=0.05):
        pass
    assert 500 - 2 * LIMIT < seconds_closed(raised.value) <= 500


def test_a_try_does_not_wait_while_a_majority_is_closed(members, masters):
    """The member that is asked first grants: without the delay of the others, these would be split votes."""
    first, *others = queue_order(members, masters)
    for member in others:
        close(members.direct[member], 300)
    before = calls(members.direct[first], "dlock.inspect")
    assert members.lock().acquire(blocking=False) is False
    assert calls(members.direct[first], "dlock.inspect") == before + 1
    with pytest.raises(dlock.NotAcquiredError) as raised, members.lock(blocking=False):
        pass
    assert 300 - 2 * LIMIT < seconds_closed(raised.value) <= 300
    members.until_free()


def test_the_error_of_a_loss_has_its_reason_from_the_log(r, get_lock):
    lock = get_lock(timeout=60)
    lock.acquire()
    r.execute_command("DLOCK.BREAK", "foo")
    with pytest.raises(dlock.LockNotOwnedError, match=r"operator broke it \(DLOCK.BREAK\)"):
        lock.release()


def test_a_renewal_that_finds_no_hold_reports_the_reason_from_the_log(r, get_lock):
    reasons = []
    lock = get_lock(timeout=60, auto_renew=True, on_lost=reasons.append)
    lock.acquire()
    hold = lock.local.hold
    r.execute_command("DLOCK.BREAK", "foo")
    hold.valid_until = min(hold.valid_until, now() + 30)
    until("the loss is reported", lambda: reasons)
    assert "DLOCK.BREAK" in reasons[0]


def test_a_user_who_may_not_read_the_log_gets_an_error_without_it(r, server):
    r.execute_command(
        "ACL", "SETUSER", "plain", "on", ">x", "~*", "&*", "+@all", "-dlock.log", "-dlock.inspect"
    )
    with (
        patient_client(server) as _,
        redis.Redis.from_url(server.url, username="plain", password="x") as client,
    ):
        lock = dlock.Lock(client, "foo", timeout=60)
        lock.acquire()
        other = dlock.Lock(client, "foo", blocking_timeout=0)
        with pytest.raises(dlock.NotAcquiredError, match=r"specified$"), other:
            pass
        r.execute_command("DLOCK.BREAK", "foo")
        with pytest.raises(dlock.LockNotOwnedError, match="expired, or was taken away"):
            lock.release()


def read_lost(lock):
    """Reads the property `lost` in the thread of the lock."""
    if not isinstance(lock, Blocking):
        return lock.lost

    async def read():
        return lock.lock.lost

    return lock.loop.run(read())


@pytest.mark.parametrize("by", ["on_lost", "lost"])
@pytest.mark.parametrize("end", [["DLOCK.BREAK", "foo"], ["DEL", "foo"], ["FLUSHALL"]])
def test_a_loss_is_noticed_without_a_renewal(r, get_lock, by, end):
    reasons = []
    lock = get_lock(timeout=600, **({"on_lost": reasons.append} if by == "on_lost" else {}))
    lock.acquire()
    lost = read_lost(lock) if by == "lost" else None
    hold = lock.local.hold
    until("the server tracks the key", lambda: calls(r, "dlock.holds"))
    lock.extend(600, replace_ttl=True)  # a change by the holder itself is no loss
    until("the key is tracked again", lambda: calls(r, "dlock.holds") >= 2)
    assert hold.loss is None
    r.execute_command(*end)
    until("the loss is noticed", lambda: hold.loss is not None)
    if lost is not None:
        assert lost.is_set()
    else:
        until("the callback is called", lambda: reasons)


def test_a_loss_is_noticed_after_the_background_got_no_answer(r, proxy, get_proxied_lock):
    reasons = []
    lock = get_proxied_lock(timeout=600, on_lost=reasons.append)
    proxy.match, proxy.cut_replies = b"DLOCK.HOLDS", 1
    lock.acquire()
    until("a reply is lost", lambda: proxy.lost)
    until("the server tracks the key over another connection", lambda: calls(r, "dlock.holds") >= 2)
    r.execute_command("DLOCK.BREAK", "foo")
    until("the loss is noticed", lambda: reasons)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("command", ["FLUSHALL", "FLUSHDB"])
def test_a_loss_by_a_flush_is_noticed_over_the_same_subscription(r, locks, server, protocol, command):
    """The server announces a flush in the protocol of the connection that tracks the keys."""
    reasons = []
    client = locks.client(server.url, protocol=protocol, socket_timeout=LIMIT)
    lock = locks.lock(client, "foo", timeout=600, on_lost=reasons.append)
    lock.acquire()
    registry = lock.local.hold.loss_watch._registry
    until("the server tracks the key", lambda: calls(r, "dlock.holds"))
    subscription = registry.tracking_id()
    r.execute_command(command)
    until("the loss is noticed", lambda: reasons)
    assert "flushed" in reasons[0]
    assert registry.tracking_id() == subscription is not None


def test_an_incident_before_the_grant_is_not_the_reason_of_a_loss(r, get_lock):
    """The log of a flush has no tokens, and times in whole ms."""
    get_lock().acquire()
    r.flushall()
    [flush] = dlock.Operator(r).log(1, "foo")

    def time():
        seconds, micros = r.time()
        return seconds + micros / 1_000_000

    until("the flush is some ms ago", lambda: time() > flush.time + 0.005)
    lock = get_lock(timeout=60)
    lock.acquire()
    r.execute_command("DLOCK.RELEASE", "foo", lock.token)
    with pytest.raises(dlock.LockNotOwnedError, match="expired, or was taken away"):
        lock.release()


def test_the_loss_of_an_adopted_hold_is_noticed_without_a_renewal(r, get_lock):
    reasons = []
    first, second = get_lock(timeout=600), get_lock(timeout=600, on_lost=reasons.append)
    first.acquire()
    second.adopt(first.forget())
    until("the server tracks the key", lambda: calls(r, "dlock.holds"))
    r.execute_command("DLOCK.BREAK", "foo")
    until("the callback is called", lambda: reasons)


def test_a_loss_is_noticed_at_once_while_the_subscription_of_a_wait_is_idle(r, get_lock, monkeypatch):
    """The subscriber reads no message and reaches no time limit between the wait and the loss."""
    for module in _threads, _tasks:
        monkeypatch.setattr(module, "LIMIT", 2 * LIMIT)
    r.execute_command("DLOCK.ACQUIRE", "waited", "other", 60_000)
    waited = get_lock("waited", timeout=600)
    waiting = threading.Thread(target=waited.acquire, daemon=True)
    waiting.start()
    until("it waits", lambda: r.execute_command("DLOCK.WAITERS", "waited"))
    r.execute_command("DLOCK.RELEASE", "waited", "other")
    waiting.join(LIMIT)
    reasons = []
    lock = get_lock(timeout=600, on_lost=reasons.append)
    lock.acquire()
    until("the server tracks the key", lambda: calls(r, "dlock.holds"))
    r.execute_command("DLOCK.BREAK", "foo")
    until("the loss is reported", lambda: reasons)


def test_a_user_without_the_right_to_the_channel_is_told_with_the_next_renewal(r, server, locks):
    """The waits of the client still receive their messages, over the same connection."""
    r.execute_command("ACL", "SETUSER", "limited", "on", ">x", "~*", "resetchannels", "&dlock:*", "+@all")
    client = locks.client(server.url, username="limited", password="x", socket_timeout=LIMIT)
    watched = locks.lock(client, "watched", timeout=600)
    watched.acquire()
    assert not read_lost(watched).is_set()
    registry = watched.local.hold.loss_watch._registry
    until("the channel is refused", lambda: not registry.may_watch)
    assert registry.is_subscribed
    assert registry._disconnected_at == -math.inf
    assert registry.tracking_id() is None
    r.execute_command("DLOCK.BREAK", "watched")
    with pytest.raises(dlock.LockNotOwnedError):
        watched.release()


def test_nothing_is_watched_if_nobody_asks(r, get_lock):
    with get_lock(timeout=600) as lock:
        assert lock.local.hold.loss_watch is None
    assert calls(r, "dlock.holds") == 0
