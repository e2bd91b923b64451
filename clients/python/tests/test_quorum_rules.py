"""The decisions of a quorum, tested without servers: the members whose answers a request awaits, and the
choice of the queue. A member answers ACQUIRE with the fence of its grant, or with None if it refuses."""

from __future__ import annotations

import threading

import pytest
import redis
from conftest import quorum_of

from dlock._hold import OwedRelease
from dlock._holders import Holders
from dlock._protocol import Options
from dlock._quorum_queue import QueueWatch
from dlock._round import Request, Round
from dlock._steps import Begin, Listen, Peer, WhichPeer
from dlock._waits import WaitRegistry

REQUEST = Request(key=b"foo", name="foo", lease=10_000, options=Options(), fenced=False)


def asking(quorum):
    """Returns the steps that ask all members, and the first of them, which is an `Ask`."""
    steps = quorum.ask_all(("PING",))
    return steps, next(steps)


def test_silent_members_are_not_awaited_while_a_majority_answers():
    quorum = quorum_of(5, silent=[0, 3])
    steps, step = asking(quorum)
    assert sorted(step.questions) == [0, 1, 2, 3, 4]
    assert not step.enough({1: 1, 2: 1})
    assert step.enough({1: 1, 2: 1, 4: 1})
    with pytest.raises(StopIteration):
        steps.send({1: 1, 2: 1, 4: 1})
    # A silent member with an unanswered question is not asked again.
    _, step = asking(quorum)
    assert sorted(step.questions) == [1, 2, 4]
    step.on_answer(3, "an answer, at last", Peer("server 3"))
    _, step = asking(quorum)
    assert sorted(step.questions) == [1, 2, 3, 4]
    assert not step.enough({1: 1, 2: 1, 4: 1})


def test_silent_members_are_awaited_if_the_others_are_no_majority():
    _, step = asking(quorum_of(5, silent=[0, 1, 3]))
    assert not step.enough({2: 1, 4: 1})
    assert step.enough(dict.fromkeys(range(5), 1))


def test_a_member_that_was_never_asked_is_awaited_once():
    quorum = quorum_of(5)
    # A member that was never asked has no run id.
    for member in 3, 4:
        del quorum.run_ids[member]
    steps = quorum.identify_members()
    step = next(steps)
    assert sorted(step.questions) == [3, 4]
    step.on_answer(3, redis.TimeoutError(), Peer(None))
    # Member 4 has not answered in time either.
    with pytest.raises(StopIteration):
        steps.send({3: redis.TimeoutError()})
    assert list(quorum.identify_members()) == []
    _, step = asking(quorum)
    assert step.enough({0: 1, 1: 1, 2: 1})


def test_a_round_in_order_asks_the_others_after_the_first_grant():
    quorum = quorum_of(3)
    round_ = Round(quorum, REQUEST, b"token", quorum.order(b"foo"))
    steps = round_.in_order()
    step = next(steps)
    # The others are not asked before the first one has granted.
    assert list(step.questions) == [0] and not step.enough({})
    step = steps.send({0: 7})
    assert sorted(step.questions) == [1, 2] and not step.enough({})
    assert step.enough({1: 8})
    with pytest.raises(StopIteration) as end:
        steps.send({1: 8})
    assert end.value.value is True


def test_a_round_records_the_members_that_did_not_answer_its_acquire():
    round_ = Round(quorum_of(3), REQUEST, b"token", order=[])
    steps = round_.at_once()
    step = next(steps)
    for member in 1, 2:
        next(step.questions[member])
    with pytest.raises(StopIteration):
        steps.send({0: 7, 1: 7})
    # After the decision, the request to member 1 ends with an answer, and the one to member 2 with a timeout.
    with pytest.raises(StopIteration):
        step.questions[1].send(7)
    with pytest.raises(StopIteration):
        step.questions[2].throw(redis.TimeoutError())
    assert round_.unanswered_acquires == {2}


def test_a_wait_records_that_an_acquire_got_no_answer_even_if_a_later_one_is_granted():
    round_ = Round(quorum_of(3), REQUEST, b"token", order=[0])
    steps = round_.queued(sleep=0.1, end=None, may_move_on=False)
    next(steps)
    asked = steps.send(WaitRegistry(threading.Event).open())
    assert list(asked.questions) == [0]
    # The connection breaks, and the wait asks again over another one. Member 0 grants.
    asked = steps.send({0: redis.ConnectionError()})
    assert list(asked.questions) == [0]
    asked = steps.send({0: 7})
    assert sorted(asked.questions) == [0, 1, 2]
    assert round_.unanswered_acquires == {0}


def test_a_cancelled_wait_records_that_its_acquire_got_no_answer():
    round_ = Round(quorum_of(3), REQUEST, b"token", order=[0])
    steps = round_.queued(sleep=0.1, end=None, may_move_on=False)
    next(steps)
    question = steps.send(WaitRegistry(threading.Event).open()).questions[0]
    next(question)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())
    with pytest.raises(StopIteration):
        question.throw(redis.ConnectionError())
    assert round_.unanswered_acquires == {0}


@pytest.mark.parametrize(
    "order, answers, next_queue",
    [
        ([0, 1, 2], {0: 5, 1: 6, 2: 7}, None),
        # A refusal by a later member shows that other clients may queue there.
        ([0, 1, 2], {0: 5, 1: 6, 2: None}, 2),
        ([0, 1, 2], {0: 5, 1: None, 2: None}, 1),
        # Member 0 still refuses after the wait. Its queue does not move, so the next wait starts elsewhere.
        ([0, 1, 2], {0: None}, 1),
        # There is no later queue.
        ([2], {2: None}, None),
        # The round has waited in a later queue, so the next wait starts there again.
        ([1, 2], {0: None, 1: 6, 2: 7}, 1),
    ],
)
def test_next_queue_follows_the_answers(order, answers, next_queue):
    """``next_queue`` is the member where the client's next wait for the lock starts. None: no change."""
    round_ = Round(quorum_of(3), REQUEST, b"token", order=order)
    # The round waits in the first queue of the order.
    next(round_.queued(sleep=0.1, end=None, may_move_on=True))
    round_.answers = answers
    assert round_.next_queue() == next_queue


def test_silent_members_are_last_in_the_order_of_the_queues():
    quorum = quorum_of(3, silent=[0])
    assert quorum.order(b"foo") == [1, 2, 0]
    # The client has found other clients in the queue of member 2.
    quorum.move_to_queue(b"foo", 2)
    assert quorum.order(b"foo") == [2, 0]
    assert quorum.order(b"bar") == [1, 2, 0]


def test_all_waits_move_to_a_later_queue_together_and_never_back():
    quorum = quorum_of(3)
    watches = [QueueWatch(quorum, member, b"foo") for member in quorum.all()]
    quorum.queue_watches.update({(member, b"foo"): watch for member, watch in enumerate(watches)})
    quorum.move_to_queue(b"foo", 1)
    # The waits at the members 0 and 2 were made to leave their queues once.
    assert [watch.departures for watch in watches] == [1, 0, 1]
    quorum.move_to_queue(b"foo", 0)
    assert quorum.order(b"foo") == [1, 2]
    assert [watch.departures for watch in watches] == [1, 0, 1]


@pytest.mark.parametrize(
    "before, after, order",
    [
        ({b"stays": 5}, {b"stays": 1999}, [2]),
        # At this age, the client of a partial hold counts as dead. So the queue does not move, and no wait
        # moves to it.
        ({b"left": 5}, {b"left": 2000}, [0, 1, 2]),
        ({b"one": 5}, {b"another": 5}, [0, 1, 2]),
        ({b"own": 5}, {b"own": 5}, [0, 1, 2]),
    ],
)
def test_young_partial_holds_that_are_seen_twice_show_that_other_clients_wait(before, after, order):
    """A partial hold is a hold without a majority. ``before`` and ``after`` are the holds that member 2 shows
    when it is asked for the first and for the second time: tokens with the ms since the grant."""
    quorum = quorum_of(3)
    winning_round = Round(quorum, REQUEST, b"own", quorum.order(b"foo"))
    winning_round.answers = {0: 5, 1: 6, 2: None}
    (begun,) = winning_round.move_to_next_queue()
    # The member is None, because the work in the background asks all members.
    assert begun.member is None
    # While the client looks for other clients, it does not begin to look a second time.
    assert list(winning_round.move_to_next_queue()) == []
    steps = begun.steps
    next(steps)
    steps.send(inspected({2: before}))
    next(steps)
    with pytest.raises(StopIteration):
        steps.send(inspected({2: after}))
    assert quorum.order(b"foo") == order
    # The client may look again at once only if no hold of another client was there both times.
    others = (set(before) & set(after)) - {b"own"}
    assert quorum.contention.begin_looking_for_others(b"foo") == (not others)


def background_work_after(step, member, answer):
    """Returns the work that an answer begins in the background: the client looks for other clients in a later
    queue."""
    steps = step.on_answer(member, answer, Peer(f"server {member}")) or ()
    return [each for each in steps if isinstance(each, Begin)]


def test_a_late_refusal_by_the_member_of_a_later_queue_makes_the_client_look_for_others():
    quorum = quorum_of(3)
    round_ = Round(quorum, REQUEST, b"token", quorum.order(b"foo"))
    steps = round_.at_once()
    step = next(steps)
    # A refusal before the decision is not late.
    assert background_work_after(step, 2, None) == []
    with pytest.raises(StopIteration):
        steps.send({0: 7, 1: 7})
    assert list(round_.move_to_next_queue()) == []
    assert background_work_after(step, 2, 7) == []
    # The queue of member 0 is not a later one.
    assert background_work_after(step, 0, None) == []
    assert len(background_work_after(step, 2, None)) == 1
    # The client is still looking.
    assert background_work_after(step, 2, None) == []


def test_a_late_refusal_does_not_make_a_client_look_for_others_after_a_failed_round():
    quorum = quorum_of(5)
    round_ = Round(quorum, REQUEST, b"token", quorum.order(b"foo"))
    steps = round_.at_once()
    step = next(steps)
    # The first member refuses, and has a waiter: the round fails, although it has a majority.
    steps.send({0: None, 1: 7, 2: 7, 3: 7})
    with pytest.raises(StopIteration):
        steps.send({0: [b"waiter"]})
    assert background_work_after(step, 4, None) == []


def test_a_refusal_during_the_confirm_phase_makes_the_client_look_for_others():
    quorum = quorum_of(3)
    round_ = Round(quorum, REQUEST._replace(fenced=True), b"token", quorum.order(b"foo"))
    steps = round_.at_once()
    step = next(steps)
    steps.send({0: 7, 1: 7})
    assert len(background_work_after(step, 2, None)) == 1


def test_a_client_that_waited_looks_for_other_clients_after_a_late_refusal_by_the_member_of_a_later_queue():
    # The client has moved away from the queue of member 0, and waits in that of member 1.
    round_ = Round(quorum_of(3), REQUEST, b"token", order=[1, 2])
    steps = round_.queued(sleep=0.1, end=None, may_move_on=True)
    assert isinstance(next(steps), Listen)
    round_.answers = {0: 7, 1: 7}
    assert round_.next_queue() == 1
    assert list(round_.move_to_next_queue()) == []
    # The late refusal: member 2 answers None after the round has its majority.
    assert len(list(round_._look_if_refused(2, None))) == 1


def inspected(tokens):
    """Returns the answers of all members to INSPECT. ``tokens``: by member, the holders with the ms since
    each grant."""

    def holder(token, held):
        return {b"token": token, b"held": held}

    return {
        member: {b"holders": [holder(*pair) for pair in tokens.get(member, {}).items()]}
        for member in range(3)
    }


def shown_holders(*tokens):
    """Returns the `Holders` of three members that show these tokens: ``[]`` for a member without holders,
    None for one whose holders are unknown."""
    return Holders([None if shown is None else dict.fromkeys(shown, 5) for shown in tokens], 2)


def test_partial_holders_leave_out_the_own_token_and_a_holder_with_a_majority():
    assert shown_holders([b"a"], None, [b"a", b"own", b"b"]).partial_holders(2, b"own") == {b"b": 5}


def test_a_member_with_unknown_holders_does_not_count_for_a_majority():
    assert shown_holders([b"a"], [], [b"a", b"b"]).is_taken()
    assert not shown_holders([b"a"], None, [b"b"]).is_taken()


def test_closed_members_count_as_held_by_one_other_client():
    assert Holders([{}, {}, {}], 2, closed=2).is_taken()
    assert not Holders([{}, {}, {b"a": 5}], 2, closed=1).is_taken()


@pytest.mark.parametrize(
    "holders, can_move",
    [
        (shown_holders([b"a"], [b"a"], [b"b"]), True),
        (shown_holders([b"a"], [b"b"], [b"b"]), False),
        (shown_holders([b"a"], [], []), False),
        (shown_holders([], [b"b"], [b"b"]), True),
        # A member with unknown holders may have any holder.
        (shown_holders([b"a"], [b"b"], None), True),
        (shown_holders(None, [b"b"], [b"b"]), True),
    ],
)
def test_the_queue_of_member_0_can_move_if_a_holder_at_member_0_may_have_a_majority(holders, can_move):
    assert holders.queue_can_move(0) == can_move


@pytest.mark.parametrize("is_last, held_ms, departures", [(False, 5, 1), (True, 1999, 0), (True, 2000, 1)])
def test_waits_leave_a_queue_that_does_not_move_unless_it_is_the_last_and_its_hold_is_young(
    monkeypatch, is_last, held_ms, departures
):
    def holders(key):
        yield from ()
        return Holders([{}, {}, {b"left": held_ms}], 2)

    quorum = quorum_of(3)
    monkeypatch.setattr(quorum, "holders", holders)
    watch = QueueWatch(quorum, 2, b"foo")
    for _ in range(2):
        # The check is due.
        watch._check_at = 0
        assert list(watch.check(is_last)) == []
    assert watch.departures == departures


def test_a_member_that_does_not_answer_a_release_is_silent():
    quorum = quorum_of(3)
    owed = OwedRelease(b"foo", b"token", expires_after=10)
    quorum.owe({1: owed}, lambda: True)
    _, step = asking(quorum)
    steps = owed.wake()
    next(steps)
    with pytest.raises(StopIteration):
        steps.throw(redis.TimeoutError())
    # Commands to one member are sent one after the other, and the PING follows the release. The release has
    # failed, so the PING is not sent, and ends with the same error.
    with pytest.raises(StopIteration) as end:
        next(step.questions[1])
    assert isinstance(end.value.value, redis.TimeoutError)
    assert step.enough({0: 1, 2: 1})


def test_the_answer_of_another_members_server_does_not_confirm_a_release():
    quorum = quorum_of(3)
    owed = OwedRelease(b"foo", b"token", expires_after=10, answers_needed=1)
    quorum.owe({2: owed}, lambda: True)

    def answer_from(server):
        steps = owed.wake()
        next(steps)
        assert isinstance(steps.send(1), WhichPeer)
        with pytest.raises(StopIteration):
            steps.send(Peer(server))
        owed.steps_ended()

    answer_from("server 0")
    assert owed.removed is None and not owed.finished()
    answer_from("server 2")
    assert owed.removed == 1 and owed.finished()


def test_releases_are_confirmed_after_two_members_have_changed_places():
    quorum = quorum_of(3)
    owed = {member: OwedRelease(b"foo", b"token", 10, answers_needed=1) for member in (0, 1)}
    quorum.owe(owed, lambda: True)
    for member in 0, 1, 0:
        steps = owed[member].wake()
        next(steps)
        steps.send(1)
        with pytest.raises(StopIteration):
            steps.send(Peer(f"server {1 - member}"))
        owed[member].steps_ended()
    assert owed[0].finished() and owed[1].finished()
