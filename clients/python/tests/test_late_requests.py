"""A server may execute a request after its client stopped waiting for the answer. Even then no client relies
on its hold for too long, and no hold is left behind."""

from __future__ import annotations

import contextlib
import math

import pytest
import redis
from conftest import calls, quorum_of, set_patience, stopped, until
from redis.exceptions import ResponseError, TimeoutError

import dlock
from dlock._clock import now
from dlock._hold import Hold, OwedRelease, UnansweredLeases
from dlock._owners import this_thread
from dlock._protocol import Options
from dlock._round import Request, Round

pytestmark = pytest.mark.usefixtures("patience")


@pytest.fixture
def lock(members):
    """A lock whose client is connected to all members."""
    lock = members.lock(timeout=600)
    with lock:
        members.until_held()
    members.until_free()
    members.until_idle()
    return lock


def extend_late(members, lock, seconds):
    """Acquires the lock, and sends an EXTEND that stalls at member 0. Member 0 answers later requests over a
    new connection. Member 2 no longer answers."""
    lock.acquire()
    members.until_held()
    members.until_idle()
    members.proxies[0].stall()
    assert lock.extend(seconds, replace_ttl=True)
    until("the member is silent", lambda: members.quorum.is_silent(0))
    until("the member answers again", lambda: lock.owned() and not members.quorum.is_silent(0))
    members.proxies[2].refuse = True
    members.proxies[2].drop()


def test_a_member_with_an_unanswered_shorter_extend_does_not_count_for_a_longer_lease(members, lock):
    extend_late(members, lock, 15)
    with pytest.raises(dlock.NoQuorumError, match="held, but an earlier, shorter extension has no answer"):
        lock.extend(60, replace_ttl=True)
    assert lock.local.hold.valid_until <= now() + 15
    members.proxies[0].resume()
    until(
        "the late request arrives", lambda: members.direct[0].execute_command("DLOCK.PTTL", "foo") <= 15_000
    )


def test_an_unanswered_shorter_extend_also_limits_another_object_with_the_token(members, lock):
    other_object = members.lock(timeout=600)

    class TwoObjects:
        """Acquires with one object, and extends with another object that has its token."""

        owned, extend = other_object.owned, other_object.extend

        @staticmethod
        def acquire():
            lock.acquire()
            other_object.local.token = lock.local.token

    extend_late(members, TwoObjects, 15)
    with pytest.raises(dlock.NoQuorumError):
        other_object.extend(60, replace_ttl=True)
    assert other_object.extend(15, replace_ttl=True)


def test_a_late_extend_does_not_prevent_a_lease_of_its_length(members, lock):
    extend_late(members, lock, 60)
    assert lock.extend(60, replace_ttl=True)


def test_a_late_shorter_extend_at_a_single_server_limits_the_validity(get_proxied_lock, proxy):
    lock = get_proxied_lock(timeout=60, socket_timeout=1)
    lock.acquire()
    proxy.silent = True
    with pytest.raises(TimeoutError):
        lock.extend(15, replace_ttl=True)
    proxy.silent = False
    with pytest.raises(TimeoutError, match="Only 15 s are certain"):
        lock.extend(60, replace_ttl=True)
    assert lock.local.hold.valid_until <= now() + 15
    assert lock.extend(15, replace_ttl=True)


def test_a_late_copy_of_a_shorter_extend_limits_the_validity(r, locks, proxy):
    client = locks.client(proxy.url, **locks.retries(3))
    lock = locks.lock(client, "foo", timeout=60)
    lock.acquire()
    proxy.stall(breaks=True)
    # The connection ends after the EXTEND, so the client sends the EXTEND again over a new one.
    assert lock.extend(15, replace_ttl=True)
    with pytest.raises(TimeoutError, match="Only 15 s are certain"):
        lock.extend(60, replace_ttl=True)
    assert lock.local.hold.valid_until <= now() + 15
    # The server has set the 60 s, but may still execute the first copy.
    assert r.execute_command("DLOCK.PTTL", "foo") > 30_000
    proxy.resume()
    until("the first copy arrives", lambda: r.execute_command("DLOCK.PTTL", "foo") <= 15_000)


def test_a_renewal_is_not_due_at_once_while_a_shorter_extend_is_unanswered(get_proxied_lock, proxy):
    lock = get_proxied_lock(timeout=60, socket_timeout=1, auto_renew=True)
    lock.acquire()
    hold = lock.local.hold
    proxy.silent = True
    with pytest.raises(TimeoutError):
        lock.extend(15, replace_ttl=True)
    proxy.silent = False
    until("the hold is renewed", lambda: hold.valid_until > now() + 14)
    assert hold.wake_at() > now()
    lock.release()


def test_renewals_ask_for_no_longer_lease_than_an_unanswered_extend():
    """A member that may still set the shorter lease would not count for a longer one."""
    leases, asked = UnansweredLeases(), []
    unanswered = leases.send(1, "DLOCK.EXTEND", extend_command, 5000)
    next(unanswered)

    def ask(hold, lease):
        asked.append(lease)
        yield from ()
        return 1

    hold = Hold(
        b"foo",
        b"token",
        lease=9000,
        fence=None,
        valid_until=now() + 9,
        caller=this_thread(),
        owner=None,
        renewed=True,
        on_lost=None,
        ask_extend=ask,
        unanswered=leases,
    )
    # Carries out a renewal.
    assert list(hold.wake()) == []
    hold.steps_ended()
    assert asked == [5000]
    assert hold.wake_at() > now()


def extend_command(name):
    return (name, b"foo", b"token", 5000)


def send_copy(command):
    """Encodes the name of the command, as redis-py does for each copy that it sends. The name is a str that
    counts the calls of its `encode`, and so the copies."""
    command[0].encode()


@pytest.mark.parametrize(
    "failure, is_sent, shortest",
    [
        (TimeoutError(), True, 5000),
        (KeyboardInterrupt(), True, 5000),
        # The connection could not be opened.
        (redis.ConnectionError(), False, math.inf),
        # After an error reply, the server has set no lease.
        (ResponseError("NOREPLICAS"), True, math.inf),
    ],
)
def test_a_lease_counts_as_unanswered_if_its_request_may_have_arrived(failure, is_sent, shortest):
    leases = UnansweredLeases()
    steps = leases.send(1, "DLOCK.EXTEND", extend_command, 5000)
    command = next(steps)
    assert leases.shortest(1) == 5000
    if is_sent:
        send_copy(command)
    with pytest.raises(type(failure)):
        steps.throw(failure)
    assert leases.shortest(1) == shortest
    assert leases.shortest(2) == math.inf


@pytest.mark.parametrize("copies, shortest", [(1, math.inf), (2, 5000)])
@pytest.mark.parametrize("error", [None, ResponseError("NOREPLICAS")])
def test_a_lease_stays_unanswered_while_an_earlier_copy_of_its_request_is_unanswered(error, copies, shortest):
    leases = UnansweredLeases()
    steps = leases.send(1, "DLOCK.EXTEND", extend_command, 5000)
    command = next(steps)
    for _ in range(copies):
        send_copy(command)
    with pytest.raises(StopIteration if error is None else ResponseError):
        steps.send(1) if error is None else steps.throw(error)
    assert leases.shortest(1) == shortest


def test_an_answer_to_one_extend_leaves_the_lease_of_the_other_unanswered():
    leases = UnansweredLeases()
    steps = [leases.send(1, "DLOCK.EXTEND", extend_command, lease) for lease in (5000, 9000)]
    for each in steps:
        next(each)
    with pytest.raises(StopIteration):
        steps[0].send(1)
    assert leases.shortest(1) == 9000


def confirm_phase():
    """Returns a fenced round in its confirm phase, the steps that ask member 1, and their CONFIRM command."""
    round_ = Round(
        quorum_of(3),
        Request(key=b"foo", name="foo", lease=5000, options=Options(), fenced=True),
        b"token",
        [],
    )
    steps = round_.at_once()
    next(steps)
    grants = {0: 7, 1: 7}
    question = steps.send(grants).questions[1]
    command = next(question)
    assert command[0] == "DLOCK.CONFIRM"
    return round_, question, command


def test_a_confirm_without_an_answer_leaves_its_lease_unanswered():
    round_, question, command = confirm_phase()
    send_copy(command)
    with pytest.raises(StopIteration):
        question.throw(TimeoutError())
    assert round_.unanswered.shortest(1) == 5000


def test_a_lease_stays_unanswered_while_an_earlier_copy_of_its_confirm_is_unanswered():
    round_, question, command = confirm_phase()
    for _ in range(2):
        send_copy(command)
    with pytest.raises(StopIteration):
        question.send(7)
    assert round_.unanswered.shortest(1) == 5000


def test_a_release_follows_a_stalled_acquire_on_its_connection(members, lock):
    """The client sends the RELEASE over a new connection and over that of the ACQUIRE."""
    stalled, direct = members.proxies[0], members.direct[0]
    acquires_before, releases_before = calls(direct, "dlock.acquire"), calls(direct, "dlock.release")
    stalled.stall()
    with lock:
        pass
    until("another connection carries the RELEASE", lambda: calls(direct, "dlock.release") > releases_before)
    assert calls(direct, "dlock.acquire") == acquires_before
    stalled.resume()
    until("the ACQUIRE arrives", lambda: calls(direct, "dlock.acquire") > acquires_before)
    members.until_free()


def test_a_failed_round_leaves_no_hold_at_members_where_its_acquire_stalled(members, lock):
    for proxy in members.proxies[:2]:
        proxy.stall()
    before = [calls(direct, "dlock.acquire") for direct in members.direct]
    with pytest.raises(dlock.NoQuorumError):
        lock.acquire(blocking=False)
    for proxy in members.proxies[:2]:
        proxy.resume()
    for direct, count in zip(members.direct[:2], before):
        until(
            "the late ACQUIRE arrives",
            lambda direct=direct, count=count: calls(direct, "dlock.acquire") > count,
        )
    members.until_free()


def test_the_hold_of_a_late_acquire_at_a_single_server_is_released(r, server, get_proxied_lock, proxy):
    lock = get_proxied_lock(timeout=60, socket_timeout=1)
    # Connects the client.
    assert lock.locked() is False
    proxy.stall()
    with pytest.raises(TimeoutError):
        lock.acquire(blocking=False)
    # The client repeats the RELEASE in the background. A RELEASE before the ACQUIRE removes nothing.
    until("two RELEASEs arrive", lambda: calls(r, "dlock.release") >= 2)
    assert calls(r, "dlock.acquire") == 0
    proxy.resume()
    until("the ACQUIRE arrives", lambda: calls(r, "dlock.acquire") == 1)
    until("the hold is released", lambda: not r.exists("foo"))


def test_the_hold_of_a_late_copy_of_an_acquire_at_a_single_server_is_released(r, locks, proxy):
    client = locks.client(proxy.url, **locks.retries(3))
    lock = locks.lock(client, "foo", timeout=60)
    # Connects the client.
    assert lock.locked() is False
    proxy.stall(breaks=True)
    # The connection ends after the ACQUIRE, so the client sends the ACQUIRE again over a new one.
    lock.acquire()
    lock.release()
    # The client sends more RELEASEs in the background, as the first copy of the ACQUIRE may still arrive.
    until("three RELEASEs arrive", lambda: calls(r, "dlock.release") >= 3)
    assert calls(r, "dlock.acquire") == 1
    proxy.resume()
    until("the first copy arrives", lambda: calls(r, "dlock.acquire") == 2)
    until("the hold is released", lambda: not r.exists("foo"))


def test_the_hold_of_a_late_copy_of_a_refused_acquire_is_released(r, locks, proxy):
    client = locks.client(proxy.url, **locks.retries(3))
    lock = locks.lock(client, "foo", timeout=60)
    assert r.execute_command("DLOCK.ACQUIRE", "foo", "another", 60_000) is not None
    # Connects the client.
    assert lock.locked() is True
    proxy.stall(breaks=True)
    # The connection ends after the ACQUIRE, so the client sends the ACQUIRE again over a new one.
    assert lock.acquire(blocking=False) is False
    assert r.execute_command("DLOCK.RELEASE", "foo", "another") == 1
    proxy.resume()
    # The server has executed the ACQUIRE of the other client, and both copies.
    until("the first copy arrives", lambda: calls(r, "dlock.acquire") == 3)
    until("the hold is released", lambda: not r.exists("foo"))


@pytest.mark.parametrize("has_majority", [True, False])
def test_the_hold_of_a_late_acquire_of_a_broken_connection_is_released(members, lock, has_majority):
    broken = range(1 if has_majority else 2)
    for member in broken:
        members.proxies[member].stall(breaks=True)

    def counts(command):
        return [calls(members.direct[member], command) for member in broken]

    acquires_before, releases_before = counts("dlock.acquire"), counts("dlock.release")
    if has_majority:
        with lock:
            pass
    else:
        with pytest.raises(dlock.NoQuorumError):
            lock.acquire(blocking=False)
    # In the background, the client normally sends RELEASE until it has two answers. Here it sends more,
    # because the ACQUIRE may still arrive.
    until(
        "three RELEASEs arrive",
        lambda: all(after >= before + 3 for before, after in zip(releases_before, counts("dlock.release"))),
    )
    assert counts("dlock.acquire") == acquires_before
    for member in broken:
        members.proxies[member].resume()
    until(
        "the late ACQUIRE arrives",
        lambda: all(after > before for before, after in zip(acquires_before, counts("dlock.acquire"))),
    )
    members.until_free()


def test_a_stopped_member_executes_acquire_and_release_in_their_order(members, masters, lock):
    direct = members.direct[0]
    acquires_before = calls(direct, "dlock.acquire")
    with stopped(masters[0]), lock:
        pass
    until("the ACQUIRE arrives", lambda: calls(direct, "dlock.acquire") > acquires_before)
    members.until_free()


@pytest.mark.parametrize("is_answered", [True, False])
@pytest.mark.parametrize("kind", ["lock", "redlock"])
def test_a_release_is_owed_for_the_longest_lease(locks, proxy, monkeypatch, kind, is_answered):
    owed = []

    class Recorded(OwedRelease):
        def __init__(self, key, token, expires_after, **options):
            owed.append(expires_after)
            super().__init__(key, token, expires_after, **options)

    monkeypatch.setattr("dlock._lock_core.OwedRelease", Recorded)
    monkeypatch.setattr("dlock._quorum_core.OwedRelease", Recorded)
    set_patience(monkeypatch, 0.1)
    client = locks.client(proxy.url, socket_timeout=1, **locks.retries(0))
    redlock = kind == "redlock"
    lock = locks.lock(dlock.Quorum([client]) if redlock else client, "foo", timeout=20, redlock=redlock)
    lock.acquire()
    if is_answered:
        lock.extend(600, replace_ttl=True)
        lock.reacquire()
    else:
        proxy.silent = True
        with pytest.raises(redis.RedisError):
            lock.extend(600, replace_ttl=True)
        proxy.silent = False
    proxy.refuse = True
    proxy.drop()
    with pytest.raises(redis.RedisError):
        lock.release()
    assert min(owed) >= 600
    proxy.refuse = False
    until("the lock is released", lambda: not lock.locked())


def pauses_of(owed, answer, times=20):
    """Returns the pauses in seconds after this many requests, with this answer to each."""
    pauses = []
    for _ in range(times):
        steps = owed.wake()
        next(steps)
        with contextlib.suppress(StopIteration):
            steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)
        ended = now()
        owed.steps_ended()
        pauses.append(owed.wake_at() - ended)
    return pauses


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("answer", [ConnectionError(), 0], ids=["failure", "answer"])
def test_the_pauses_of_an_owed_release_grow_once_each_time_and_are_short(repeats, answer):
    """After an outage of a few seconds, a lock with a lease of 600 s must not stay closed for 30 s."""
    pauses = pauses_of(OwedRelease(b"foo", b"token", 600, repeats=lambda: repeats), answer)
    assert pauses[0] == pytest.approx(0.05, abs=0.02)
    assert all(later < 2 * earlier + 0.04 for earlier, later in zip(pauses, pauses[1:]))
    assert max(pauses) < (2.1 if isinstance(answer, Exception) else 10.1)
