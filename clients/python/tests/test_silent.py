"""Members that are missing, silent or stopped. No client waits for their answers while a majority answers.
All clients queue at one member. If it fails, they all move to the queue of the same other member."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
from conftest import (
    LIMIT,
    SERVERS,
    Members,
    Server,
    calls,
    patient_async_client,
    queue_order,
    stopped,
    until,
)

import dlock
import dlock.asyncio
from dlock import _steps, _tasks

pytestmark = pytest.mark.usefixtures("patience")


@pytest.fixture(scope="session", params=sorted(SERVERS))
def five_masters(request):
    servers = [Server(SERVERS[request.param]) for _ in range(5)]
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
def five(five_masters, locks):
    made = Members(five_masters, locks)
    yield made
    made.close()


def waiters(client):
    return len(client.execute_command("DLOCK.WAITERS", "foo"))


class Contenders:
    """Threads that acquire and release one lock in a loop. Each is a client, with its own connections."""

    def __init__(self, members, quorums):
        # How often each client has acquired the lock.
        self.counts = [0] * len(quorums)
        self.fences = []
        self.over = threading.Event()
        self.failures = []
        self.threads = [
            threading.Thread(target=self.work, args=(number, members, quorum))
            for number, quorum in enumerate(quorums)
        ]
        for thread in self.threads:
            thread.start()

    def work(self, number, members, quorum):
        try:
            while not self.over.is_set():
                lock = members.lock(quorum=quorum, timeout=10, fenced=True, thread_local=False)
                if lock.acquire(blocking_timeout=20):
                    self.fences.append(lock.fence)
                    self.counts[number] += 1
                    # Raised if one of the members that granted the lock has just fallen silent, and too few
                    # others can confirm the release. The client then continues the release in the background.
                    with contextlib.suppress(dlock.NoQuorumError):
                        lock.release()
        except Exception as why:
            self.failures.append(why)

    def until_each_acquires(self, times):
        """Waits until each client has acquired the lock this often. A busy machine may be slow, so the limit
        begins anew whenever a client that has acquired it too seldom acquires it."""
        before = list(self.counts)

        def missing():
            assert not self.failures, self.failures
            return sum(max(earlier + times - count, 0) for count, earlier in zip(self.counts, before))

        while left := missing():
            until(f"one of {left} acquisitions that are missing", lambda left=left: missing() < left)

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join(60)
        assert not self.failures, self.failures
        assert self.fences == sorted(set(self.fences))


@contextlib.contextmanager
def contending(members, quorums):
    contenders = Contenders(members, quorums)
    try:
        yield contenders
    finally:
        contenders.over.set()
    contenders.end()


@pytest.mark.parametrize("fault", ["silent", "refuse"])
def test_two_missing_members_of_five_delay_no_acquisition(five, fault, slow_answers):
    missing = five.proxies[1], five.proxies[3]
    for proxy in missing:
        setattr(proxy, fault, True)
    # The first acquisition finds out which members are silent.
    with five.lock(timeout=10):
        pass
    answering = [five.direct[member] for member in (0, 2, 4)]
    asked = [calls(client, "dlock.acquire") for client in answering]
    attempts = sum(proxy.accepted for proxy in missing)
    for _ in range(30):
        with five.lock(timeout=10, fenced=True) as lock:
            assert lock.extend(10)
    # Each acquisition asks each answering member at most once.
    for client, before in zip(answering, asked):
        assert calls(client, "dlock.acquire") - before <= 30
    if fault == "silent":
        # A connection attempt to a silent member ends after a time limit. If all 30 acquisitions waited for
        # both members, there would be 60 attempts.
        assert sum(proxy.accepted for proxy in missing) - attempts < 30
    quorums = [five.make_quorum([proxy.url for proxy in five.proxies]) for _ in range(3)]
    with contending(five, quorums) as contenders:
        contenders.until_each_acquires(10)
    for proxy in missing:
        setattr(proxy, fault, False)

    def all_hold():
        with five.lock(timeout=10):
            held = five.held()
        five.until_free()
        return all(held)

    until("the members that are back have the hold, too", all_hold)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_member_that_falls_silent_delays_no_acquisition(members, masters, place):
    silent = members.proxies[queue_order(members, masters)[place]]
    quorums = [members.make_quorum([proxy.url for proxy in members.proxies]) for _ in range(3)]
    with contending(members, quorums) as contenders:
        contenders.until_each_acquires(3)
        silent.silent = True
        contenders.until_each_acquires(2)
        # Each client has found the member silent, and no longer waits for it.
        attempts, before = silent.accepted, sum(contenders.counts)
        contenders.until_each_acquires(20)
        assert silent.accepted - attempts < sum(contenders.counts) - before
        silent.silent = False
        contenders.until_each_acquires(3)
    members.until_free()


def test_all_waiters_move_to_one_other_queue_when_the_first_master_is_stopped(members, masters):
    first, *rest = queue_order(members, masters)
    others = [members.direct[member] for member in rest]
    quorums = [members.make_quorum([proxy.url for proxy in members.proxies]) for _ in range(4)]
    with contending(members, quorums) as contenders:
        contenders.until_each_acquires(3)
        with stopped(masters[first]):
            contenders.until_each_acquires(5)
            # One client holds the lock, and another one may be between two holds. The others wait in one
            # queue. Checked repeatedly: on a busy machine another member may seem silent for a moment, and
            # clients then queue elsewhere.
            until("the clients meet in one queue", lambda: sorted(map(waiters, others)) in ([0, 2], [0, 3]))
            contenders.until_each_acquires(5)
        contenders.until_each_acquires(5)
    # No client retains a position in the earlier queue.
    until("no client waits", lambda: not any(waiters(client) for client in members.direct))
    members.until_free()


def test_a_try_returns_false_at_once_only_if_another_client_has_a_majority(members, masters):
    first, second, third = queue_order(members, masters)
    members.proxies[third].silent = True

    def requests_with(holders):
        """Lets these tokens hold the lock at the first two members. Returns how often an acquisition that
        does not wait asks the first member."""
        for member, token in zip((first, second), holders):
            assert members.direct[member].execute_command("DLOCK.ACQUIRE", "foo", token, 60_000)
        before = calls(members.direct[first], "dlock.acquire")
        assert not members.lock(timeout=10).acquire(blocking=False)
        for member, token in zip((first, second), holders):
            assert members.direct[member].execute_command("DLOCK.RELEASE", "foo", token)
        return calls(members.direct[first], "dlock.acquire") - before

    assert requests_with(["one", "one"]) == 1
    # Each of two tokens has one vote. A split vote usually ends soon, so the client asks again up to 20 times
    # before it returns False.
    assert requests_with(["one", "two"]) > 10


def test_a_waiter_gives_up_its_position_in_an_earlier_queue(members, masters, monkeypatch):
    # The position must not expire during the test.
    monkeypatch.setattr("dlock._waits.KEEP", 600)
    first, second, _ = queue_order(members, masters)
    held, waiting_lock = members.lock(timeout=60), members.lock(timeout=60, thread_local=False)
    held.acquire()
    waiting = threading.Thread(target=waiting_lock.acquire)
    waiting.start()
    until("a client waits", lambda: waiters(members.direct[first]) == 1)
    with stopped(masters[first]):
        until("the client waits at the next member", lambda: waiters(members.direct[second]) == 1)
    until("the client waits at no other member", lambda: waiters(members.direct[first]) == 0)
    assert waiters(members.direct[second]) == 1
    held.release()
    waiting.join(30)
    waiting_lock.release()
    members.until_free()


def test_a_client_that_cannot_reach_the_member_of_the_queue_is_not_starved(members, masters, slow_answers):
    first = queue_order(members, masters)[0]
    members.proxies[first].refuse = True
    # Only the third client uses the proxies, and so cannot reach the first member.
    direct = [master.url for master in masters]
    quorums = [members.make_quorum(urls) for urls in (direct, direct, [p.url for p in members.proxies])]
    with contending(members, quorums) as contenders:
        contenders.until_each_acquires(10)


def test_a_hold_on_one_master_alone_delays_no_client(members, masters, slow_answers):
    first = queue_order(members, masters)[0]
    assert members.direct[first].execute_command("DLOCK.ACQUIRE", "foo", "stale", 600_000)
    quorums = [members.make_quorum([proxy.url for proxy in members.proxies]) for _ in range(2)]
    with contending(members, quorums) as contenders:
        contenders.until_each_acquires(5)
    assert members.held()[first]


def test_a_late_refusal_by_the_last_member_shows_where_other_clients_wait(members, masters, monkeypatch):
    # The client moves to the last queue only while the hold of the other client is younger than this, in ms.
    monkeypatch.setattr("dlock._round.PARTIAL_HOLD_MAX_AGE", 600_000)
    last = queue_order(members, masters)[2]
    assert members.direct[last].execute_command("DLOCK.ACQUIRE", "foo", "other", 600_000)
    # The refusals of this member arrive after the grants of the other two.
    members.proxies[last].delay = 0.1

    def chooses_last():
        with members.lock(timeout=10):
            pass
        members.until_idle()
        return members.quorum.order(b"foo") == [last]

    until("the client chooses the queue of the other client", chooses_last)


def test_the_answers_may_all_arrive_after_the_limit(server, monkeypatch):
    """The event loop was busy, and reads them only then."""
    answered, reporting = [], _steps.reporting

    def recorded(report, answer):
        yield from report(answer)
        answered.append(answer)

    async def read_answers():
        while not answered:
            await asyncio.sleep(0.001)

    monkeypatch.setattr(_tasks, "ASK_LIMIT", 0)
    monkeypatch.setattr(_tasks, "_read_answers", read_answers)
    monkeypatch.setattr(
        _steps, "reporting", lambda question, report: reporting(question, lambda a: recorded(report, a))
    )

    async def main():
        async with patient_async_client(server) as client:
            assert await dlock.asyncio.Redlock(dlock.Quorum([client]), "foo").locked() is False

    asyncio.run(asyncio.wait_for(main(), LIMIT))
