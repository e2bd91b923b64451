"""Locks over a quorum of three masters."""

from __future__ import annotations

import threading
import time

import pytest
import redis
from conftest import patient_client, set_patience, until, until_renewed_twice
from redis.exceptions import LockNotOwnedError

import dlock
from dlock._clock import now

pytestmark = pytest.mark.usefixtures("patience")


def test_a_majority_holds_the_lock(members):
    lock, other = members.lock(timeout=10), members.lock(timeout=10)
    with lock:
        members.until_held()
        assert lock.owned()
        assert other.locked()
        assert not other.acquire(blocking=False)
        assert not other.owned()
        assert lock.fence is None
    members.until_free()
    assert other.acquire(blocking=False)
    other.release()
    with pytest.raises(dlock.LockError):
        other.release()


def test_a_lock_is_granted_with_one_master_down(members):
    members.proxies[0].refuse = True
    members.proxies[0].drop()
    fences = []
    for _ in range(3):
        with members.lock(timeout=10, fenced=True) as lock:
            assert members.held() == [False, True, True]
            fences.append(lock.fence)
            assert lock.extend(10)
    assert fences == sorted(set(fences))


def test_release_raises_nothing_when_its_answers_are_lost(members):
    lock = members.lock(timeout=60)
    lock.acquire()
    members.until_held()
    members.until_idle()
    for proxy in members.proxies[:2]:
        proxy.match, proxy.cut_replies = b"RELEASE", 1
    # The client sends the RELEASE again. The second RELEASE finds no hold.
    lock.release()
    until("both replies are lost", lambda: [proxy.lost for proxy in members.proxies] == [1, 1, 0])
    members.until_free()


def test_release_raises_for_a_lost_hold_even_without_answers(members):
    lock = members.lock(timeout=60)
    lock.acquire()
    members.until_held()
    for client in members.direct:
        client.execute_command("DLOCK.EXTEND", "foo", lock.local.hold.token, 1)
    lock.local.hold.valid_until = now()
    until("the hold expires", lambda: lock.lost.is_set() and not any(members.held()))
    for proxy in members.proxies:
        proxy.match, proxy.cut_replies = b"RELEASE", 1
    with pytest.raises(LockNotOwnedError):
        lock.release()
    # A majority decides the release, so the request to the third member may be late.
    until("each member's first reply is lost", lambda: all(proxy.lost == 1 for proxy in members.proxies))


def test_acquire_raises_at_once_for_a_lease_that_no_master_can_grant(members):
    # Longer than `dlock.max-ttl`.
    with pytest.raises(redis.ResponseError, match="ttl"):
        members.lock(timeout=1_000_000).acquire()


def test_extend_raises_the_error_of_a_lease_that_no_master_can_set(members):
    with members.lock(timeout=10) as lock:
        members.until_held()
        for seconds in 0, 1_000_000:
            with pytest.raises(redis.ResponseError, match="ttl"):
                lock.extend(seconds, replace_ttl=True)
        assert lock.owned()


def test_an_error_names_the_members_where_the_lock_is_held(members):
    members.direct[0].execute_command("DLOCK.ACQUIRE", "foo", "another", 60_000)
    members.proxies[2].refuse = True
    with pytest.raises(dlock.NoQuorumError, match=r": held; .*: not held; "):
        members.lock(timeout=60).locked()


@pytest.mark.parametrize("token", ["", "x" * 256], ids=["empty", "long"])
def test_acquire_refuses_a_token_of_the_wrong_length(members, monkeypatch, token):
    # The masters refuse the RELEASEs of this token, too, so the acquire waits until the patience is over.
    set_patience(monkeypatch, 0.5)
    with pytest.raises(redis.ResponseError, match="a token has 1 to 255 bytes"):
        members.lock(timeout=10).acquire(blocking=False, token=token)


def test_a_name_can_be_bytes_a_bytearray_or_a_memoryview(members):
    for name in b"foo", bytearray(b"foo"), memoryview(b"foo"):
        with members.lock(name, timeout=10):
            members.until_held()
        members.until_free()


def test_a_wait_succeeds_when_the_masters_refuse_to_keep_a_position_for_10_s(members):
    # A client asks a master to keep the queue position for 10 s, longer than this limit of 5 s.
    for client in members.direct:
        client.config_set("dlock.max-ttl", 5000)
    try:
        first, second = members.lock(timeout=5), members.lock(timeout=5)
        first.acquire()
        waits = threading.Thread(target=second.acquire)
        waits.start()
        until(
            "a client waits",
            lambda: any(client.execute_command("DLOCK.WAITERS", "foo") for client in members.direct),
        )
        first.release()
        waits.join(30)
        assert any(members.held())
    finally:
        for client in members.direct:
            client.config_set("dlock.max-ttl", 86_400_000)


def test_fences_rise_when_each_master_in_turn_is_down(members):
    fences = []
    for down in [0, 1, 2, 0, 1, 2]:
        members.proxies[down].refuse = True
        members.proxies[down].drop()
        lock = members.lock(timeout=10, fenced=True)
        with lock:
            fences.append(lock.fence)
        members.proxies[down].refuse = False
    assert fences == sorted(set(fences))


def test_a_hold_is_renewed_on_a_majority(members):
    lock = members.lock(timeout=60, auto_renew=True)
    lock.acquire()
    members.until_held()
    members.proxies[1].silent = True
    until_renewed_twice(members.direct[0], lock)
    assert not lock.lost.is_set()
    members.proxies[1].silent = False
    lock.release()


def test_a_hold_without_a_majority_is_lost_before_its_lease_ends(members):
    seen = []
    lock = members.lock(timeout=60, auto_renew=True, on_lost=lambda why: seen.append((why, members.held())))
    lock.acquire()
    members.until_held()
    for proxy in members.proxies[:2]:
        proxy.refuse = True
        proxy.drop()
    # With auto_renew, the client declares a hold lost once only a tenth of its lease is left.
    lock.local.hold.valid_until = now() + 6
    until("on_lost is called", lambda: seen)
    assert seen[0][0].startswith("not renewed in time")
    assert seen[0][1][:2] == [True, True]
    assert not lock.owned()


def test_a_hold_that_a_majority_has_ended_is_lost(members):
    lock = members.lock(timeout=10)
    lock.acquire()
    members.until_held()
    for client in members.direct[1:]:
        client.execute_command("DLOCK.BREAK", "foo")
    assert not lock.owned()
    with pytest.raises(LockNotOwnedError):
        lock.extend(10)
    with pytest.raises(LockNotOwnedError):
        lock.release()


def test_an_acquire_whose_answers_are_lost_leaves_no_hold(members):
    for proxy in members.proxies:
        proxy.match, proxy.cut_replies = b"ACQUIRE", 1
    with pytest.raises(dlock.NoQuorumError):
        members.lock(timeout=60).acquire(blocking=False)
    assert sum(proxy.lost for proxy in members.proxies) >= 2
    members.until_free()


def test_a_release_is_repeated_until_a_member_that_was_down_confirms_it(members):
    lock = members.lock(timeout=60)
    lock.acquire()
    members.until_held()
    members.proxies[2].refuse = True
    members.proxies[2].drop()
    lock.release()
    assert members.held()[2]
    members.proxies[2].refuse = False
    until("the last member releases the hold, too", lambda: not any(members.held()))


@pytest.mark.usefixtures("slow_answers")
def test_two_addresses_of_one_server_are_refused(members):
    first = members.proxies[0].url
    quorum = members.make_quorum([first, first.replace("127.0.0.1", "localhost"), members.proxies[1].url])
    with pytest.raises(ValueError, match="the same server"):
        members.lock(quorum=quorum, timeout=10).acquire(blocking=False)


def test_a_member_whose_user_may_not_run_info_does_not_vote(members):
    """Without INFO, the client cannot tell whether two addresses lead to the same server, which would vote
    twice."""
    rights = "on", ">secret", "~*", "&*", "+@all", "-info"
    for client in members.direct[:2]:
        client.execute_command("ACL", "SETUSER", "blind", *rights)
    urls = [proxy.url.replace("//", "//blind:secret@") for proxy in members.proxies[:2]]
    lock = members.lock(quorum=members.make_quorum([*urls, members.proxies[2].url]), timeout=10)
    try:
        with pytest.raises(dlock.NoQuorumError, match="let its user run INFO"):
            lock.acquire(blocking_timeout=1)
        members.until_free()
        # For the next acquisition, the client runs INFO again, over the same connections.
        for client in members.direct[:2]:
            client.execute_command("ACL", "SETUSER", "blind", "+info")
        with lock:
            members.until_held()
    finally:
        for client in members.direct[:2]:
            client.acl_deluser("blind")


def test_an_address_that_leads_to_another_member_does_not_vote_twice(members):
    lock = members.lock(timeout=60)
    lock.acquire()
    members.until_held()
    members.until_idle()
    # The last address now leads to the first server.
    members.proxies[2].target = members.proxies[0].target
    members.proxies[2].drop()
    for _ in range(3):
        assert lock.extend(60, replace_ttl=True)
    members.proxies[1].refuse = True
    members.proxies[1].drop()
    with pytest.raises(dlock.NoQuorumError, match="the same server as another member"):
        lock.extend(60, replace_ttl=True)
    # Ends the hold on the other two servers, where another client can then acquire the lock. The first server
    # must not count as a majority by its two addresses.
    for client in members.direct[1:]:
        client.execute_command("DLOCK.EXTEND", "foo", lock.local.hold.token, 1)
    with pytest.raises(dlock.NoQuorumError):
        lock.owned()


def test_an_address_that_leads_to_its_member_again_votes_again(members):
    lock = members.lock(timeout=60)
    lock.acquire()
    members.until_held()
    members.until_idle()
    own = members.proxies[2].target
    members.proxies[2].target = members.proxies[0].target
    members.proxies[2].drop()
    until("the duplicate member is found", lambda: lock.owned() and 2 in members.quorum._duplicate_members)
    members.proxies[2].target = own
    members.proxies[2].drop()
    until("the third member counts again", lambda: lock.owned() and not members.quorum._duplicate_members)
    members.proxies[1].refuse = True
    members.proxies[1].drop()
    assert lock.extend(60, replace_ttl=True)
    lock.release()


def test_the_order_of_the_queues_is_the_same_for_all_spellings_of_the_addresses(members, masters):
    urls = [master.url for master in masters]
    assert all("127.0.0.1" in url for url in urls)
    orders = []
    for spelled in [urls, [urls[0].replace("127.0.0.1", "localhost"), *urls[1:]]]:
        quorum = members.make_quorum(spelled)
        with members.lock(quorum=quorum, timeout=10):
            pass
        orders.append([quorum.run_ids[member] for member in quorum.order(b"foo")])
    assert len(orders[0]) == 3
    assert orders[0] == orders[1]


def test_a_member_that_was_restarted_has_a_new_place_in_the_order(members, masters):
    quorum = members.quorum
    with members.lock(timeout=10):
        before = quorum.run_ids[0]
    masters[0].kill()
    masters[0].start()
    new_run_id = patient_client(masters[0], decode_responses=True).info("server")["run_id"]
    assert new_run_id != before

    def is_known():
        with members.lock(timeout=10):
            return quorum.run_ids[0] == new_run_id

    until("the new run id is known", is_known)
    assert [quorum.run_ids[member] for member in quorum.order(b"foo")] == sorted(quorum.run_ids.values())


def test_a_quorum_refuses_permits(members):
    with pytest.raises(ValueError, match="single server"):
        members.lock(permits=2, timeout=10).acquire(blocking=False)


@pytest.mark.parametrize("is_silent", [False, True])
def test_one_of_several_simultaneous_tries_wins(members, is_silent):
    members.proxies[1].silent = is_silent
    for _ in range(5):
        outcomes, barrier = [], threading.Barrier(4)

        def ask(outcomes=outcomes, barrier=barrier):
            lock = members.lock(timeout=30, thread_local=False)
            barrier.wait()
            outcomes.append((lock.acquire(blocking=False), lock))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        # A try returns False only if another client has the lock.
        assert [won for won, _ in outcomes].count(True) == 1
        next(lock for won, lock in outcomes if won).release()


def test_the_holds_of_waiting_clients_never_overlap(members):
    # The fences of the present holds, and of the ended ones.
    present, ended = [], []

    def work():
        lock = members.lock(timeout=30, fenced=True, thread_local=False)
        for _ in range(5):
            assert lock.acquire()
            present.append(lock.fence)
            assert len(present) == 1
            time.sleep(0.001)
            ended.append(present.pop())
            lock.release()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(ended) == 30
    assert ended == sorted(set(ended))
