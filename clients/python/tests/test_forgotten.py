"""A hold of a quorum survives masters that lose it one after the other, but not an operator that ends it."""

from __future__ import annotations

import contextlib
import threading

import pytest
from conftest import until

import dlock

# Lease length in seconds. A hold is renewed after a third of its lease.
LEASE = 2


@pytest.fixture
def acquired(members):
    def acquire(timeout=LEASE, **options):
        lock = members.lock(timeout=timeout, auto_renew=True, fenced=True, **options)
        lock.acquire()
        until("all members have the hold", lambda: held_on(members, lock) == [True] * 3)
        return lock

    return acquire


def held_on(members, lock):
    """Returns for each master whether the token of the lock holds it."""
    token = lock.local.token
    return [client.execute_command("DLOCK.HOLDS", "foo", token) > 0 for client in members.direct]


def until_held_on(members, lock, member):
    def is_held():
        assert not lock.lost.is_set(), lock.local.hold.loss
        return held_on(members, lock)[member]

    until(f"master {member} has the hold again", is_held)


def until_valid(lock, leases):
    """Waits until the validity has moved by this number of leases."""
    end = lock.local.hold.valid_until + leases * LEASE
    until("the hold is renewed", lambda: lock.local.hold.valid_until > end)


@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "shared"])
def test_a_hold_survives_a_rolling_restart_of_all_masters_without_persistence(
    members, masters, acquired, shared
):
    # The test extends the hold itself: a busy machine could miss the renewals of a short lease.
    lock = acquired(timeout=60, shared=shared)
    fences = [lock.fence]

    def wait():
        with members.lock(timeout=60, fenced=True) as other:
            fences.append(other.fence)

    # Waits in the queue of one master. When that master restarts, it grants the waiter the lock. Without a
    # majority, the waiter releases it there.
    waits = threading.Thread(target=wait, daemon=True)
    waits.start()

    def extend():
        # A member may fail to answer in time.
        with contextlib.suppress(dlock.NoQuorumError):
            return lock.extend(60, replace_ttl=True)

    # The first master restarts twice. At the last restart, the others have restored holds only.
    for member in [0, 1, 2, 0]:
        masters[member].kill()
        masters[member].start()
        until(
            f"an extension restores the hold on master {member}",
            lambda member=member: extend() and held_on(members, lock)[member],
        )
    until("the restored holds are extended", extend)
    assert len(fences) == 1
    lock.release()
    waits.join(60)
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
    until("the first lock waits, too", lambda: len(ask("DLOCK.WAITERS", "foo")) == 2)
    for token in ["one", "two"]:
        assert ask("DLOCK.RELEASE", "foo", token) == 1
    until_held_on(members, lock, 0)
    stats = members.direct[0].info("commandstats")
    released = next(name for name in stats if name.lower() == "cmdstat_dlock.release")
    lock.release()

    def released_twice():
        now = members.direct[0].info("commandstats")
        return now[released]["calls"] == stats[released]["calls"] + 2

    until("the first master gets both releases", released_twice)
    members.until_free()


def test_a_hold_survives_masters_that_are_away_for_a_lease_one_by_one(members, acquired):
    lock = acquired()
    for member, proxy in enumerate(members.proxies):
        proxy.refuse = True
        proxy.drop()
        until(f"the lease has ended on master {member}", lambda member=member: not members.held()[member])
        proxy.refuse = False
        until_held_on(members, lock, member)
    lock.release()
    members.until_free()


def test_a_hold_that_is_broken_on_one_master_after_the_other_is_lost(members, acquired):
    lock = acquired()
    members.direct[0].execute_command("DLOCK.BREAK", "foo")
    # Several renewals, which must not restore the broken hold.
    until_valid(lock, 2)
    assert held_on(members, lock) == [False, True, True]
    assert not lock.lost.is_set()
    members.direct[1].execute_command("DLOCK.BREAK", "foo")
    until("the hold is lost", lambda: lock.lost.is_set())
