"""A hold of a quorum survives masters that lose it one after the other, but not an operator that ends it."""

from __future__ import annotations

import contextlib
import threading

import pytest
from conftest import until
from redis.exceptions import LockNotOwnedError

import dlock
from dlock._clock import now

pytestmark = pytest.mark.usefixtures("patience")

# Lease length in seconds. The tests extend the holds themselves: a busy machine could miss the renewals of a
# short lease.
LEASE = 60


@pytest.fixture
def acquired(members):
    def acquire(**options):
        lock = members.lock(timeout=LEASE, fenced=True, **options)
        lock.acquire()
        until("all members have the hold", lambda: held_on(members, lock) == [True] * 3)
        return lock

    return acquire


def held_on(members, lock):
    """Returns for each master whether the token of the lock holds it."""
    token = lock.local.token
    return [client.execute_command("DLOCK.HOLDS", "foo", token) > 0 for client in members.direct]


@pytest.fixture
def pass_a_lease(monkeypatch):
    """Returns a function that makes each member's last confirmation of the hold older by a lease. If a member
    no longer has the hold, the client restores it there if the member restarted, or if the last confirmation
    is more than a lease old. Otherwise the client assumes that an operator broke the hold there."""
    passed = [0]
    monkeypatch.setattr("dlock._members.now", lambda: now() + passed[0])

    def add_a_lease():
        passed[0] += LEASE

    return add_a_lease


def extend(members, lock):
    """Extends the hold, and waits for the requests that restore it. Returns True if a majority answered."""
    with contextlib.suppress(dlock.NoQuorumError):
        assert lock.extend(LEASE, replace_ttl=True)
        members.until_idle()
        return True


def until_restored(members, lock, member):
    until(
        f"an extension restores the hold on master {member}",
        lambda: extend(members, lock) and held_on(members, lock)[member],
    )


@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "shared"])
def test_a_hold_survives_a_rolling_restart_of_all_masters_without_persistence(
    members, masters, acquired, shared
):
    lock = acquired(shared=shared)
    fences = [lock.fence]

    def wait():
        with members.lock(timeout=60, fenced=True) as other:
            fences.append(other.fence)

    # The waiter queues at one master. After a restart, that master has no hold, and grants the waiter the
    # lock. Without a majority, the waiter then releases this grant.
    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()

    # The first master restarts once more at the end. Until it has the hold again, only restored holds, on the
    # other masters, keep the lock.
    for member in [0, 1, 2, 0]:
        masters[member].kill()
        masters[member].start()
        until_restored(members, lock, member)
    until("the restored holds are extended", lambda: extend(members, lock))
    # The waiter has not acquired the lock.
    assert len(fences) == 1
    lock.release()
    waiter.join(60)
    assert fences == sorted(set(fences)) and len(fences) == 2
    members.until_free()


def test_a_restored_hold_waits_behind_earlier_waiters(members, masters, acquired):
    lock = acquired()
    members.proxies[0].refuse = True
    masters[0].kill()
    masters[0].start()
    ask = members.direct[0].execute_command
    assert ask("DLOCK.ACQUIRE", "foo", "one", 60_000)
    assert ask("DLOCK.ACQUIRE", "foo", "two", 60_000, "QUEUE", 60_000) is None
    members.proxies[0].refuse = False
    until(
        "an extension puts the token of the hold behind the waiter",
        lambda: extend(members, lock) and len(ask("DLOCK.WAITERS", "foo")) == 2,
    )
    for token in ["one", "two"]:
        assert ask("DLOCK.RELEASE", "foo", token) == 1
    until_restored(members, lock, 0)
    stats = members.direct[0].info("commandstats")
    released = next(name for name in stats if name.lower() == "cmdstat_dlock.release")
    lock.release()

    # The ACQUIRE that restored the hold could arrive after the first RELEASE, so the client sends two.
    def released_twice():
        later_stats = members.direct[0].info("commandstats")
        return later_stats[released]["calls"] >= stats[released]["calls"] + 2

    until("the first master gets both releases", released_twice)
    members.until_free()


def test_a_hold_survives_when_each_master_in_turn_is_away_for_a_lease(members, acquired, pass_a_lease):
    lock = acquired()
    for member, proxy in enumerate(members.proxies):
        proxy.refuse = True
        proxy.drop()
        # Shortens the lease on this master to 1 ms.
        members.direct[member].execute_command("DLOCK.EXTEND", "foo", lock.local.token, 1)
        until(f"the lease has ended on master {member}", lambda member=member: not members.held()[member])
        pass_a_lease()
        proxy.refuse = False
        until_restored(members, lock, member)
    lock.release()
    members.until_free()


def break_twice(members, lock, pass_a_lease):
    """Breaks the hold on one master, and checks that no extension restores it there. Then breaks it on a
    second master, and checks that the client reports the loss."""
    members.direct[0].execute_command("DLOCK.BREAK", "foo")
    until("an extension finds the hold broken", lambda: extend(members, lock))
    pass_a_lease()
    until("the hold is extended after a lease, too", lambda: extend(members, lock))
    assert held_on(members, lock) == [False, True, True]
    members.direct[1].execute_command("DLOCK.BREAK", "foo")
    with pytest.raises(LockNotOwnedError, match=r"DLOCK\.BREAK"):
        until("the hold is lost", lambda: not extend(members, lock))


def test_a_hold_broken_on_one_master_is_not_restored_there_and_is_lost_once_broken_on_two(
    members, acquired, pass_a_lease
):
    break_twice(members, acquired(), pass_a_lease)


def test_a_hold_that_is_broken_on_a_restarted_master_is_not_restored_there(
    members, masters, acquired, pass_a_lease
):
    lock = acquired()
    lock.release()
    members.until_free()
    # The client does not notice the restart, because it has no request under way at this member.
    masters[0].kill()
    masters[0].start()
    break_twice(members, acquired(), pass_a_lease)
