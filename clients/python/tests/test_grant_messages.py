"""The message of a grant is the grant: a waiter holds the lock from the message on, and claims the hold in
the background."""

from __future__ import annotations

import contextlib
import json
import pathlib
import threading

import pytest
from conftest import LIMIT, calls, is_held, patient_client, until
from redis.exceptions import LockError, LockNotOwnedError, ResponseError

import dlock
from dlock import _hold, _protocol, _tasks, _threads
from dlock._clock import now, validity
from dlock._protocol import CountedName, Options
from dlock._reading import read_pairs
from dlock._waits import QueuePosition, Wait, WaitRegistry

VECTOR = pathlib.Path(__file__).parents[3] / "conformance/vectors/messages.json"
FENCE = 1795179170661717


def vector():
    cases = json.loads(VECTOR.read_text())
    secrets = dict(message.encode("latin-1").split(b" ") for message in cases["messages"])
    return [(case, secrets) for case in cases["cases"]]


@pytest.mark.parametrize("case, secrets", vector())
def test_a_message_is_read_by_the_grammar(case, secrets):
    call, outcome, fence, secret = _protocol.read_message(case["payload"].encode("latin-1"))
    if call not in secrets:
        assert case["outcome"] == "not mine"
        return
    if outcome == "granted" and secret != secrets[call]:
        outcome, fence = "wake", 0
    assert (outcome, call) == (case["outcome"], case["id"].encode("latin-1"))
    assert fence == case.get("fence", 0)


class Position:
    """A position in a queue, without a server."""

    def __init__(self, lease=60_000):
        self.registry = WaitRegistry(threading.Event)
        self.wait = self.registry.open()
        self.position = QueuePosition(self.wait, lease)

    def call(self, name=None):
        """Returns the message of the next call. Sends the call, unless its name is given."""
        if name is None:
            name = CountedName("DLOCK.ACQUIRE")
            name.encode()
        return self.position.added_to(Options(), name).notify[1]

    def receive(self, message, text=f"granted {FENCE}"):
        """Receives what the server publishes for the message of a call."""
        call, _, secret = message.partition(b" ")
        words = [call, text.encode(), *([secret] if text.startswith("granted ") else [])]
        self.registry.on_message({"type": "message", "data": b" ".join(words)})

    def fence(self):
        grant = self.wait.valid_grant()
        return grant and grant.fence


def test_each_call_has_its_own_message_with_a_fresh_id_and_secret():
    """A published message shows them to every client that may listen."""
    position = Position()
    messages = [position.call() for _ in range(3)]
    ids, secrets = zip(*(message.split(b" ") for message in messages))
    assert [call.partition(b".")[2] for call in ids] == [b"1", b"2", b"3"]
    words = {*secrets, *(call.partition(b".")[0] for call in ids)}
    assert [len(word) for word in words] == [11] * 6


def test_a_stranger_who_has_read_a_message_cannot_forge_that_of_the_next_call():
    position = Position()
    first = position.call()
    position.receive(first, "refused")
    position.call()
    position.receive(first.replace(b".1 ", b".2 "))
    position.receive(first)
    assert position.wait.grant is None


@pytest.mark.parametrize("secret", ["", " ", " AAAAAAAAAAA"])
def test_a_grant_without_the_secret_makes_the_wait_ask_again(secret):
    """The message of a wait that ended otherwise is lost. A stranger has read it, and makes a grant of it."""
    position = Position()
    call = position.call().partition(b" ")[0]
    position.registry.on_message({"type": "message", "data": call + b" granted 5" + secret.encode()})
    assert position.wait.grant is None
    assert position.wait.event.is_set()


def test_only_the_first_message_of_a_call_counts():
    position = Position()
    message = position.call()
    position.receive(message)
    position.receive(message, "granted 77")
    assert position.fence() == FENCE


def test_a_wait_retains_only_the_messages_that_can_still_count():
    position = Position(lease=10)
    for _ in range(5):
        position.call()
    last = position.call()
    until(
        "the earlier calls cannot grant any more",
        lambda: position.call() and len(position.registry.waits) < 4,
    )
    position.receive(last)
    assert position.fence() is None
    position.wait.close()
    assert not position.registry.waits


def test_a_grant_to_an_earlier_call_only_wakes_the_wait_once_a_later_call_was_answered_with_null():
    """The server may have read a copy of the earlier call after the later one."""
    position = Position()
    first, second = position.call(), position.call()
    position.wait.note_null(second)
    position.receive(first)
    assert position.fence() is None
    assert position.wait.event.is_set()
    position.wait.event.clear()
    position.receive(first)
    assert not position.wait.event.is_set()
    # The null that answers the call of the message itself changes nothing.
    position.receive(second)
    assert position.fence() == FENCE
    # Nor does a later call without an answer.
    third = position.call()
    assert position.fence() == FENCE
    position.wait.note_null(third)
    assert position.fence() is None


def test_a_grant_to_an_earlier_call_does_not_replace_a_later_one():
    position = Position()
    first, second = position.call(), position.call()
    position.receive(second)
    position.receive(first, "granted 5")
    assert position.fence() == FENCE


@pytest.mark.parametrize("outcome", ["timeout", "cancelled", "refused"])
def test_the_end_of_an_earlier_call_counts_after_a_later_call_was_answered_with_null(outcome):
    position = Position()
    first, second = position.call(), position.call()
    position.wait.note_null(second)
    position.receive(first, outcome)
    assert position.wait.event.is_set()
    assert (position.wait.cancelled, position.wait.refused) == (outcome == "cancelled", outcome == "refused")


def test_a_call_that_was_never_sent_is_forgotten_after_its_validity():
    """No connection was free for it, or none could be opened."""
    position = Position(lease=10)
    unsent = position.call(CountedName("DLOCK.ACQUIRE"))

    def is_known():
        position.wait.note_null(position.call())
        return unsent.partition(b" ")[0] in position.registry.waits

    until("the call is forgotten", lambda: not is_known())


def test_a_message_may_arrive_before_the_null_that_answers_its_call():
    position = Position()
    message = position.call()
    position.receive(message)
    position.wait.note_null(message)
    assert position.fence() == FENCE


@pytest.mark.parametrize("lease, relied_on", [(60_000, 10), (4000, 4)], ids=["the position", "the lease"])
def test_the_validity_of_a_grant_counts_from_its_call(lease, relied_on):
    position = Position(lease)
    before = now()
    message = position.call()
    after = now()
    position.receive(message)
    end = position.wait.valid_grant().valid_until
    assert before + validity(relied_on) <= end <= after + validity(relied_on)


def test_a_message_that_arrives_after_its_validity_is_no_grant():
    position = Position(lease=1)
    position.receive(position.call())
    assert position.fence() is None
    # The wait asks again.
    assert position.wait.event.is_set()


def test_a_message_with_another_secret_or_number_is_ignored():
    position = Position()
    message = position.call()
    call, _, secret = message.partition(b" ")
    for forged in b"", b"1", call + b"1", call[:-1] + b"2", b"." + call[1:]:
        position.receive(forged + b" " + secret)
    assert position.wait.grant is None
    assert not position.wait.event.is_set()


def test_a_message_of_an_older_server_wakes_the_wait():
    position = Position()
    position.receive(position.call(), "granted")
    assert position.fence() is None
    assert position.wait.event.is_set()


class Waiting:
    """A client that waits for "foo" through the proxy, behind a holder."""

    def __init__(self, r, locks, proxy, token=None, **options):
        r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
        self.token = token
        client = locks.client(proxy.url, socket_timeout=LIMIT)
        self.lock = locks.lock(client, "foo", thread_local=False, **{"timeout": 60, **options})
        self.outcome = None
        self.thread = threading.Thread(target=self.wait, daemon=True)
        self.thread.start()
        until("the client waits", lambda: r.execute_command("DLOCK.WAITERS", "foo"))

    def wait(self):
        self.outcome = self.lock.acquire(token=self.token)

    def until_granted(self):
        self.thread.join(LIMIT)
        assert self.outcome is True


@pytest.fixture
def rare_calls(monkeypatch):
    """A wait makes its first call only once it receives messages, and repeats it only after 1000 s."""
    monkeypatch.setattr("dlock._single_attempt.SUBSCRIBING", 1000)
    monkeypatch.setattr("dlock._waits.ASK", 1000)
    monkeypatch.setattr("dlock._waits.SHORTEST_ASK", 1000)


def test_a_handoff_takes_one_trip(r, server, locks, proxy, rare_calls):
    """The waiter's requests stall at the proxy from before the RELEASE on. So `acquire` returns after the
    message alone: the trip of the RELEASE to the server, and that of the message to the waiter."""
    waiting = Waiting(r, locks, proxy)
    acquires = calls(r, "dlock.acquire")
    proxy.stall_requests = True
    r.execute_command("DLOCK.RELEASE", "foo", "holder")
    waiting.until_granted()
    assert calls(r, "dlock.acquire") == acquires
    assert waiting.lock.fence == _protocol_fence(r)
    proxy.stall_requests = False
    waiting.lock.release()


def test_a_copy_of_an_earlier_call_does_not_hide_the_grant(r, server, locks, proxy, rare_calls, monkeypatch):
    """The client's library or the network sends call 1 a second time, and the server reads this copy after
    call 2: it announces the grant with the message of call 1."""
    calls_of_wait, next_message = [], Wait.next_message

    def noting(wait, *args):
        message = next_message(wait, *args)
        calls_of_wait.append((wait, message))
        return message

    monkeypatch.setattr(Wait, "next_message", noting)
    waiting = Waiting(r, locks, proxy)
    wait, message = calls_of_wait[0]
    until("call 1 is answered", lambda: wait._last_null == 1)
    locks.call_soon(wait.wake)
    until("call 2 is answered", lambda: wait._last_null == 2)
    token = read_pairs(r.execute_command("DLOCK.WAITERS", "foo")[0])["token"]
    options = "QUEUE", 10_000, "NOTIFY", wait.registry.channel, message
    assert r.execute_command("DLOCK.ACQUIRE", "foo", token, 60_000, *options) is None
    r.execute_command("DLOCK.RELEASE", "foo", "holder")
    waiting.until_granted()
    waiting.lock.release()


def test_a_wait_with_a_delay_returns_once_its_claim_is_answered(r, server, locks, proxy, rare_calls):
    """No DELAY follows a grant that is not claimed: the server may take its waiter for dead."""
    waiting = Waiting(r, locks, proxy, delay=30)
    (waiter,) = r.execute_command("DLOCK.WAITERS", "foo")
    proxy.stall_requests = True
    r.execute_command("DLOCK.RELEASE", "foo", "holder")
    token = read_pairs(waiter)["token"]
    until("the waiter is granted the lock", lambda: r.execute_command("DLOCK.PTTL", "foo", token) > 0)
    until("the claim is sent", lambda: proxy.stalled)
    assert waiting.outcome is None
    proxy.stall_requests = False
    waiting.until_granted()
    assert waiting.lock.local.hold.is_claimed
    assert r.execute_command("DLOCK.PTTL", "foo", token) > 30_000
    waiting.lock.release()


def _protocol_fence(r):
    shown = read_pairs(r.execute_command("DLOCK.INSPECT", "foo"))
    return read_pairs(shown["holders"][0])["fence"]


def listeners(r):
    """Returns whether a client of dlock listens."""
    return any(name.startswith(b"dlock:") for name in r.pubsub_channels())


def test_a_handoff_in_a_quorum_asks_each_member_once(members, monkeypatch):
    """From the RELEASE on: one trip with the message, and one with the round to all members."""
    monkeypatch.setattr("dlock._quorum_queue.LONGEST_PAUSE", 1000)
    monkeypatch.setattr("dlock._waits.SHORTEST_ASK", 1000)
    monkeypatch.setattr("dlock._quorum_queue.FIRST_CHECK_PAUSE", 1000)
    holder, waiter = members.lock(timeout=60), members.lock(timeout=60, thread_local=False)
    holder.acquire()
    members.until_held()
    # The client subscribes during an earlier wait: after that, it would ask once more.
    members.quorum.contention.note_taken(b"foo")
    assert waiter.acquire(blocking_timeout=0.1) is False
    until("the client listens", lambda: any(listeners(client) for client in members.direct))
    members.quorum.contention.note_taken(b"foo")
    thread = threading.Thread(target=waiter.acquire, daemon=True)
    thread.start()
    until(
        "the client waits",
        lambda: any(client.execute_command("DLOCK.WAITERS", "foo") for client in members.direct),
    )
    before = [calls(client, "dlock.acquire") for client in members.direct]
    holder.release()
    thread.join(LIMIT)
    assert waiter.owned()
    members.until_idle()
    asked = [calls(client, "dlock.acquire") - count for client, count in zip(members.direct, before)]
    # Both locks use the same connections, so each member reads the RELEASE before the ACQUIRE.
    assert asked == [1, 1, 1]
    waiter.release()


@pytest.mark.parametrize("options", [{}, {"auto_renew": True}], ids=["timeout", "renewed"])
def test_a_grant_by_message_is_claimed_in_the_background(r, server, locks, proxy, rare_calls, options):
    waiting = Waiting(r, locks, proxy, timeout=60, **options)
    r.execute_command("DLOCK.RELEASE", "foo", "holder")
    waiting.until_granted()
    hold = waiting.lock.local.hold
    until("the hold has its full lease", lambda: hold.valid_until > now() + 30)
    assert r.execute_command("DLOCK.PTTL", "foo") > 30_000
    waiting.lock.release()


def test_a_hold_by_message_counts_from_its_call_until_it_is_claimed(r, server, locks, proxy, rare_calls):
    waiting = Waiting(r, locks, proxy)
    proxy.stall_requests = True
    r.execute_command("DLOCK.RELEASE", "foo", "holder")
    waiting.until_granted()
    hold = waiting.lock.local.hold
    assert not hold.is_claimed
    assert hold.valid_until <= now() + 10
    assert not waiting.lock.lost.is_set()
    proxy.stall_requests = False
    waiting.lock.release()


@pytest.mark.parametrize("timeout", [600, 4])
def test_a_hold_that_is_not_claimed_is_lost_a_tenth_of_its_lease_early(
    r, server, locks, proxy, rare_calls, monkeypatch, timeout
):
    """Its owner needs the time to stop. Until the claim, the lease is at most that of the position."""
    monkeypatch.setattr(_hold, "CLAIM_AFTER", 1000)
    waiting = Waiting(r, locks, proxy, timeout=timeout, auto_renew=True)
    r.execute_command("DLOCK.RELEASE", "foo", "holder")
    waiting.until_granted()
    hold = waiting.lock.local.hold
    assert not hold.is_claimed
    assert hold.valid_until - hold.wake_at() == pytest.approx(min(timeout, 10) / 10)
    waiting.lock.release()


def claim_now(hold):
    """Makes the claim due that `CLAIM_AFTER` delays."""
    hold.received_at -= 1000
    hold.changed()


def test_a_hold_is_lost_if_its_claim_finds_none(r, server, locks, proxy, rare_calls, monkeypatch):
    monkeypatch.setattr(_hold, "CLAIM_AFTER", 1000)
    waiting = Waiting(r, locks, proxy)
    r.execute_command("DLOCK.RELEASE", "foo", "holder")
    waiting.until_granted()
    r.execute_command("DLOCK.BREAK", "foo")
    claim_now(waiting.lock.local.hold)
    until("the hold is lost", waiting.lock.lost.is_set)
    with pytest.raises(LockNotOwnedError):
        waiting.lock.release()


def test_a_claim_with_another_fence_shows_a_loss(r, server, locks, proxy, rare_calls, monkeypatch):
    """The hold of the message was broken, and the token has another one."""
    monkeypatch.setattr(_hold, "CLAIM_AFTER", 1000)
    waiting = Waiting(r, locks, proxy)
    r.execute_command("DLOCK.RELEASE", "foo", "holder")
    waiting.until_granted()
    token = waiting.lock.local.hold.token
    r.execute_command("DLOCK.BREAK", "foo")
    assert r.execute_command("DLOCK.ACQUIRE", "foo", token, 60_000) > waiting.lock.fence
    claim_now(waiting.lock.local.hold)
    until("the hold is lost", waiting.lock.lost.is_set)
    until("the other hold is released", lambda: not is_held(r))


def test_a_hold_that_is_released_at_once_is_not_claimed(r, server, locks, proxy, rare_calls, monkeypatch):
    monkeypatch.setattr(_hold, "CLAIM_AFTER", 1000)
    waiting = Waiting(r, locks, proxy)
    r.execute_command("DLOCK.RELEASE", "foo", "holder")
    waiting.until_granted()
    waiting.lock.release()
    assert not is_held(r)
    assert calls(r, "dlock.extend") == 0


# At least.


def test_a_claim_that_arrives_after_the_release_leaves_no_hold(
    r, server, locks, proxy, rare_calls, monkeypatch
):
    monkeypatch.setattr(_hold, "CLAIM_AFTER", 1000)
    waiting = Waiting(r, locks, proxy)
    r.execute_command("DLOCK.RELEASE", "foo", "holder")
    waiting.until_granted()
    hold = waiting.lock.local.hold
    claim = hold._claim()
    command = next(claim)
    assert hold.members_to_release_again
    waiting.lock.release()
    with contextlib.suppress(StopIteration):
        while True:
            command = claim.send(r.execute_command(*command))
    assert not hold.members_to_release_again
    assert not is_held(r)


@pytest.mark.parametrize("options", [{}, {"timeout": None}], ids=["timeout", "renewed"])
def test_a_release_while_the_claim_is_under_way_is_no_loss(
    r, server, locks, proxy, rare_calls, monkeypatch, options
):
    monkeypatch.setattr(_hold, "CLAIM_AFTER", 0)
    reasons = []
    for _ in range(10):
        waiting = Waiting(r, locks, proxy, on_lost=reasons.append, **options)
        proxy.delay = 0.01
        r.execute_command("DLOCK.RELEASE", "foo", "holder")
        waiting.until_granted()
        hold = waiting.lock.local.hold
        until("the claim is sent", lambda: hold.is_claimed or hold.members_to_release_again)  # noqa: B023
        waiting.lock.release()
        proxy.delay = 0
        # The server may have read the claim after the RELEASE.
        until("the claim is answered", lambda: not hold.members_to_release_again)  # noqa: B023
        until("the lock is free", lambda: not is_held(r))
    assert not reasons


def test_a_hold_with_a_given_token_has_no_claim_that_could_end_a_later_one(
    r, server, locks, proxy, rare_calls, monkeypatch
):
    """The server may read the claim after the RELEASE. It would make a hold or a position, which the
    background would have to release: and so end the later hold of the same token."""
    monkeypatch.setattr(_hold, "CLAIM_AFTER", 1000)
    waiting = Waiting(r, locks, proxy, token="job")
    r.execute_command("DLOCK.RELEASE", "foo", "holder")
    waiting.until_granted()
    hold = waiting.lock.local.hold
    assert hold.is_claimed and hold.valid_until > now() + 30
    assert r.execute_command("DLOCK.PTTL", "foo", "job") > 30_000
    waiting.lock.release()


def delay_left(r, name="foo"):
    shown = r.execute_command("DLOCK.INSPECT", name)
    return 0 if shown is None else read_pairs(shown).get("delay", 0)


@pytest.mark.parametrize("redlock", [False, True], ids=["lock", "redlock"])
def test_a_lock_stays_closed_for_at_least_that_long(r, server, locks, redlock):
    client = locks.client(server.url)
    lock = locks.lock(
        dlock.Quorum([client]) if redlock else client, "foo", timeout=10, redlock=redlock, at_least=60
    )
    with lock:
        pass
    assert r.execute_command("DLOCK.ACQUIRE", "foo", "other", 1000) is None
    assert lock.acquire(blocking=False) is False
    # The hold itself took a part of the 60 s.
    assert 0 < delay_left(r) <= 60_000


@pytest.mark.parametrize("redlock", [False, True], ids=["lock", "redlock"])
def test_a_release_after_that_time_sends_no_delay(r, server, locks, redlock):
    client = locks.client(server.url)
    lock = locks.lock(
        dlock.Quorum([client]) if redlock else client, "foo", timeout=10, redlock=redlock, at_least=60
    )
    lock.acquire()
    lock.local.hold.received_at -= 60
    lock.release()
    assert r.execute_command("DLOCK.ACQUIRE", "foo", "other", 1000) is not None


@pytest.mark.parametrize("redlock", [False, True], ids=["lock", "redlock"])
def test_at_least_raises_on_an_older_server_before_it_acquires(r, server, locks, monkeypatch, redlock):
    make = _protocol.release

    def release(key, token, *args, delay=None, **options):
        """An older server knows DELAY as little as the word that stands here for it."""
        command = make(key, token, *args, delay=delay, **options)
        return tuple("LATER" if word == "DELAY" else word for word in command)

    monkeypatch.setattr(_protocol, "release", release)
    client = locks.client(server.url)
    lock = locks.lock(
        dlock.Quorum([client]) if redlock else client, "foo", timeout=10, redlock=redlock, at_least=60
    )
    with pytest.raises(LockError, match=r"0\.1\.0"):
        lock.acquire()
    assert not is_held(r)


@pytest.mark.parametrize("redlock", [False, True], ids=["lock", "redlock"])
def test_at_least_beyond_the_longest_ttl_of_the_server_raises_before_it_acquires(r, server, locks, redlock):
    client = locks.client(server.url)
    client = dlock.Quorum([client]) if redlock else client
    # The server accepts this one, which says nothing about a longer one.
    with locks.lock(client, "foo", timeout=10, redlock=redlock, at_least=0.001):
        pass
    until("the lock is open", lambda: not delay_left(r))
    lock = locks.lock(client, "foo", timeout=10, redlock=redlock, at_least=48 * 3600)
    with pytest.raises(LockError, match=r"at_least=172800 is longer than the server's dlock\.max-ttl"):
        lock.acquire()
    assert not is_held(r)


@pytest.mark.parametrize("redlock", [False, True], ids=["lock", "redlock"])
def test_a_lock_is_released_although_the_server_refuses_the_delay(r, server, locks, patience, redlock):
    client = locks.client(server.url)
    lock = locks.lock(
        dlock.Quorum([client]) if redlock else client, "foo", timeout=600, redlock=redlock, at_least=60
    )
    lock.acquire()
    longest = r.config_get("dlock.max-ttl")["dlock.max-ttl"]
    r.config_set("dlock.max-ttl", 20_000)
    try:
        with pytest.raises(ResponseError, match="DELAY"):
            lock.release()
    finally:
        r.config_set("dlock.max-ttl", longest)
    assert r.execute_command("DLOCK.ACQUIRE", "foo", "other", 1000) is not None


@pytest.mark.parametrize("redlock", [False, True], ids=["lock", "redlock"])
@pytest.mark.parametrize("options", [{"max_hold": 0.001}, {}], ids=["max_hold", "lease"])
def test_a_hold_that_was_lost_keeps_nothing_closed(r, server, locks, redlock, options):
    client = locks.client(server.url)
    lock = locks.lock(
        dlock.Quorum([client]) if redlock else client,
        "foo",
        timeout=600,
        redlock=redlock,
        at_least=60,
        **options,
    )
    lock.acquire()
    if not options:
        lock.local.hold.valid_until = now()
    until("the hold is lost", lock.local.hold.is_lost)
    assert is_held(r)
    with pytest.raises(LockNotOwnedError):
        lock.release()
    assert r.execute_command("DLOCK.ACQUIRE", "foo", "other", 1000) is not None


@pytest.mark.parametrize("value, error", [(-1, ValueError), ("5", TypeError), (float("nan"), ValueError)])
def test_at_least_is_a_number_of_seconds(get_lock, value, error):
    with pytest.raises(error, match="at_least is a number of seconds"):
        get_lock(timeout=10, at_least=value)


def test_the_delay_counts_from_the_grant(r, server):
    with patient_client(server) as client:
        lock = dlock.Lock(client, "foo", timeout=60, at_least=60)
        lock.acquire()
        lock.local.hold.received_at -= 50
        lock.release()
    assert 0 < delay_left(r) <= 10_000


@pytest.mark.parametrize("redlock", [False, True], ids=["lock", "redlock"])
def test_each_server_is_asked_once_whether_it_knows_the_delay(r, server, locks, redlock):
    client = locks.client(server.url)
    client = dlock.Quorum([client]) if redlock else client
    for _ in range(3):
        lock = locks.lock(client, "foo", timeout=60, redlock=redlock, at_least=0.001)
        with lock:
            lock.local.hold.received_at -= 1
    assert calls(r, "dlock.release") == 4


def test_a_server_behind_the_same_address_is_asked_again(r, server, locks):
    client = locks.client(server.url)
    for _ in range(2):
        with locks.lock(client, "foo", timeout=60, at_least=0.001) as lock:
            lock.local.hold.received_at -= 1
        if locks.loop is None:
            _threads._reconnect(client)
        else:
            locks.loop.run(_tasks._reconnect(client))
    assert calls(r, "dlock.release") == 4


@contextlib.contextmanager
def accepting_less(clients):
    """Lets servers refuse the DELAY of a hold with ``at_least=60``, but not its lease of 10 s."""
    longest = [client.config_get("dlock.max-ttl")["dlock.max-ttl"] for client in clients]
    for client in clients:
        client.config_set("dlock.max-ttl", 20_000)
    try:
        yield
    finally:
        for client, ms in zip(clients, longest):
            client.config_set("dlock.max-ttl", ms)


def until_open(members):
    members.until_free()
    assert [delay_left(client) for client in members.direct] == [0, 0, 0]


def test_at_least_asks_the_members_that_were_down_before_the_caller_gets_the_lock(members):
    lock = members.lock(timeout=10, at_least=60, thread_local=False)
    for proxy in members.proxies[1:]:
        proxy.refuse = True
    with accepting_less(members.direct[1:]):
        waiting = threading.Thread(target=raised_by, args=(failures := [], lock.acquire))
        waiting.start()
        until("two members are silent", lambda: all(map(members.quorum.is_silent, (1, 2))))
        for proxy in members.proxies[1:]:
            proxy.refuse = False
        waiting.join(LIMIT)
        assert "at_least=60 is longer" in str(failures[0])
        until_open(members)


def raised_by(failures, function):
    try:
        function()
    except Exception as why:
        failures.append(why)


def test_at_least_acquires_nothing_unless_a_majority_has_accepted_the_delay(members):
    for proxy in members.proxies[1:]:
        proxy.match = b"DELAY"
        proxy.cut_replies = 1000
    with pytest.raises(dlock.NoQuorumError):
        members.lock(timeout=10, at_least=60).acquire(blocking=False)
    until_open(members)
    for proxy in members.proxies[1:2]:
        proxy.cut_replies = 0
    # Member 1 is asked once more.
    with members.lock(timeout=10, at_least=60, blocking_timeout=LIMIT):
        pass
    assert min(delay_left(client) for client in members.direct[:2]) > 0


def test_a_member_that_refuses_the_delay_last_counts_for_the_error_of_the_release(members, patience):
    lock = members.lock(timeout=10, at_least=60)
    lock.acquire()
    members.until_held()
    members.proxies[2].delay = 0.2
    with accepting_less(members.direct[1:]), pytest.raises(ResponseError, match="DELAY"):
        lock.release()


@pytest.mark.parametrize("redlock", [False, True], ids=["lock", "redlock"])
def test_at_least_raises_before_a_hold_is_adopted(r, server, locks, redlock):
    client = locks.client(server.url)
    client = dlock.Quorum([client]) if redlock else client
    first = locks.lock(client, "foo", timeout=10, redlock=redlock)
    first.acquire()
    second = locks.lock(client, "foo", timeout=20, redlock=redlock, at_least=60)
    with accepting_less([r]), pytest.raises(LockError, match="at_least=60 is longer"):
        second.adopt(first.forget())
    assert 0 < r.execute_command("DLOCK.PTTL", "foo") <= 10_000


def test_a_hold_is_not_adopted_unless_a_majority_has_accepted_the_delay(members):
    first = members.lock(timeout=600)
    first.acquire()
    members.until_held()
    for proxy in members.proxies[1:]:
        proxy.match = b"DELAY"
        proxy.cut_replies = 1000
    with pytest.raises(dlock.NoQuorumError, match="Too few masters answered"):
        members.lock(timeout=10, at_least=60).adopt(first.token)
    assert members.direct[0].execute_command("DLOCK.PTTL", "foo") > 10_000
