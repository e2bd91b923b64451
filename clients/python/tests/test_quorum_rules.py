"""The decisions of a quorum, without servers: the answers that a question awaits, and the choice of a
queue."""

from __future__ import annotations

import pytest
import redis
from conftest import quorum_of

from dlock._hold import OwedRelease
from dlock._holders import Holders
from dlock._queue import QueueWatch
from dlock._round import Request, Round
from dlock._steps import Begin, Listen, Peer

REQUEST = Request(b"foo", "foo", 10_000, (), False)


def asking(quorum):
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
    # One question at a time.
    _, step = asking(quorum)
    assert sorted(step.questions) == [1, 2, 4]
    step.on_answer(3, "an answer, at last", Peer("server 3"))
    _, step = asking(quorum)
    assert sorted(step.questions) == [1, 2, 3, 4]
    assert not step.enough({1: 1, 2: 1, 4: 1})


def test_silent_members_are_awaited_without_a_majority_of_the_others():
    _, step = asking(quorum_of(5, silent=[0, 1, 3]))
    assert not step.enough({2: 1, 4: 1})
    assert step.enough(dict.fromkeys(range(5), 1))


def test_a_member_that_was_never_asked_is_awaited_once():
    quorum = quorum_of(5)
    for member in 3, 4:
        del quorum.run_ids[member]
    steps = quorum.identify_members()
    step = next(steps)
    assert sorted(step.questions) == [3, 4]
    step.on_answer(3, redis.TimeoutError(), Peer(None))
    # The other member has not answered in time either.
    with pytest.raises(StopIteration):
        steps.send({3: redis.TimeoutError()})
    assert list(quorum.identify_members()) == []
    _, step = asking(quorum)
    assert step.enough({0: 1, 1: 1, 2: 1})


def test_a_round_in_order_asks_the_others_after_the_first_grant():
    quorum = quorum_of(3)
    this = Round(quorum, REQUEST, b"token", quorum.order(b"foo"))
    steps = this.in_order()
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
    this = Round(quorum_of(3), REQUEST, b"token", [])
    steps = this.at_once()
    step = next(steps)
    for member in 1, 2:
        next(step.questions[member])
    with pytest.raises(StopIteration):
        steps.send({0: 7, 1: 7})
    # After the decision.
    with pytest.raises(StopIteration):
        step.questions[1].send(7)
    with pytest.raises(StopIteration):
        step.questions[2].throw(redis.TimeoutError())
    assert this.orphaned == {2}


@pytest.mark.parametrize(
    "order, answers, queue",
    [
        ([0, 1, 2], {0: 5, 1: 6, 2: 7}, None),
        # A later member refuses: others queue there.
        ([0, 1, 2], {0: 5, 1: 6, 2: None}, 2),
        ([0, 1, 2], {0: 5, 1: None, 2: None}, 1),
        # Its queue does not move.
        ([0, 1, 2], {0: None}, 1),
        ([2], {2: None}, None),
        # A wait in a later queue stays there.
        ([1, 2], {0: None, 1: 6, 2: 7}, 1),
    ],
)
def test_next_queue_follows_the_answers(order, answers, queue):
    this = Round(quorum_of(3), REQUEST, b"token", order)
    next(this.queued(0.1, None, True))
    this.answers = answers
    assert this.next_queue() == queue


def test_silent_members_are_last_in_the_order_of_the_queues():
    quorum = quorum_of(3, silent=[0])
    assert quorum.order(b"foo") == [1, 2, 0]
    # Others were met there.
    quorum.meet(b"foo", 2)
    assert quorum.order(b"foo") == [2, 0]
    assert quorum.order(b"bar") == [1, 2, 0]


def test_all_waits_go_to_a_later_queue_together_and_none_goes_back():
    quorum = quorum_of(3)
    watches = [QueueWatch(quorum, member, b"foo") for member in quorum.all()]
    quorum.queue_watches.update({(member, b"foo"): watch for member, watch in enumerate(watches)})
    quorum.meet(b"foo", 1)
    assert [watch.departures for watch in watches] == [1, 0, 1]
    quorum.meet(b"foo", 0)
    assert quorum.order(b"foo") == [1, 2]
    assert [watch.departures for watch in watches] == [1, 0, 1]


@pytest.mark.parametrize(
    "before, after, order",
    [
        ({b"stays": 5}, {b"stays": 1999}, [2]),
        # It was left behind, so its queue does not move.
        ({b"left": 5}, {b"left": 2000}, [0, 1, 2]),
        ({b"one": 5}, {b"another": 5}, [0, 1, 2]),
        ({b"own": 5}, {b"own": 5}, [0, 1, 2]),
    ],
)
def test_partial_holds_that_stay_and_are_young_mark_the_queue_of_others(before, after, order):
    quorum = quorum_of(3)
    won = Round(quorum, REQUEST, b"own", quorum.order(b"foo"))
    won.answers = {0: 5, 1: 6, 2: None}
    (begun,) = won.meet_others()
    assert begun.member is None
    # One look at a time. The next one may follow at once if the last one found no other clients.
    assert list(won.meet_others()) == []
    steps = begun.steps
    next(steps)
    steps.send(inspected({2: before}))
    next(steps)
    with pytest.raises(StopIteration):
        steps.send(inspected({2: after}))
    assert quorum.order(b"foo") == order
    assert quorum.contention.begin_look(b"foo") == (not (set(before) & set(after) - {b"own"}))


def looks(step, member, answer):
    """Returns the looks that an answer begins."""
    steps = step.on_answer(member, answer, Peer(f"server {member}")) or ()
    return [each for each in steps if isinstance(each, Begin)]


def test_a_late_refusal_of_a_later_queue_is_a_reason_to_look_there():
    quorum = quorum_of(3)
    this = Round(quorum, REQUEST, b"token", quorum.order(b"foo"))
    steps = this.at_once()
    step = next(steps)
    # An answer that is not late.
    assert looks(step, 2, None) == []
    with pytest.raises(StopIteration):
        steps.send({0: 7, 1: 7})
    assert list(this.meet_others()) == []
    assert looks(step, 2, 7) == []
    # Not a later queue.
    assert looks(step, 0, None) == []
    assert len(looks(step, 2, None)) == 1
    # One look at a time.
    assert looks(step, 2, None) == []


def test_a_late_refusal_is_no_reason_to_look_after_a_round_that_gave_its_majority_back():
    quorum = quorum_of(5)
    this = Round(quorum, REQUEST, b"token", quorum.order(b"foo"))
    steps = this.at_once()
    step = next(steps)
    # The first member refuses, and has a waiter.
    steps.send({0: None, 1: 7, 2: 7, 3: 7})
    with pytest.raises(StopIteration):
        steps.send({0: [b"waiter"]})
    assert looks(step, 4, None) == []


def test_a_refusal_during_the_confirm_phase_is_a_reason_to_look_too():
    quorum = quorum_of(3)
    this = Round(quorum, REQUEST._replace(fenced=True), b"token", quorum.order(b"foo"))
    steps = this.at_once()
    step = next(steps)
    steps.send({0: 7, 1: 7})
    assert len(looks(step, 2, None)) == 1


def test_a_late_refusal_is_a_reason_to_look_after_a_wait_in_a_later_queue_too():
    this = Round(quorum_of(3), REQUEST, b"token", [1, 2])
    steps = this.queued(0.1, None, True)
    assert isinstance(next(steps), Listen)
    this.answers = {0: 7, 1: 7}
    assert this.next_queue() == 1
    assert list(this.meet_others()) == []
    assert len(list(this._answered_late(2, None))) == 1


def inspected(tokens):
    """Returns answers to INSPECT."""

    def holder(token, held):
        return {b"token": token, b"held": held}

    return {
        member: {b"holders": [holder(*pair) for pair in tokens.get(member, {}).items()]}
        for member in range(3)
    }


def seen(*tokens):
    """Returns the holders of which the members show these tokens; None for a member that shows none."""
    return Holders([None if there is None else dict.fromkeys(there, 5) for there in tokens], 2)


def test_partial_holders_leave_out_the_own_token_and_a_holder_with_a_majority():
    assert seen([b"a"], None, [b"a", b"own", b"b"]).partial_holders(2, b"own") == {b"b": 5}


def test_a_holder_has_a_majority_only_at_members_that_show_it():
    assert seen([b"a"], [], [b"a", b"b"]).has_majority()
    assert not seen([b"a"], None, [b"b"]).has_majority()


@pytest.mark.parametrize(
    "holders, can_move",
    [
        (seen([b"a"], [b"a"], [b"b"]), True),
        (seen([b"a"], [b"b"], [b"b"]), False),
        (seen([b"a"], [], []), False),
        (seen([], [b"b"], [b"b"]), True),
        # A member with unknown holders may have any of them.
        (seen([b"a"], [b"b"], None), True),
        (seen(None, [b"b"], [b"b"]), True),
    ],
)
def test_a_queue_can_move_if_a_holder_there_may_have_a_majority(holders, can_move):
    assert holders.queue_can_move(0) == can_move


@pytest.mark.parametrize("is_last, held, left", [(False, 5, 1), (True, 1999, 0), (True, 2000, 1)])
def test_waits_leave_a_queue_that_does_not_move_and_the_last_one_later(monkeypatch, is_last, held, left):
    def holders(key):
        yield from ()
        return Holders([{}, {}, {b"left": held}], 2)

    quorum = quorum_of(3)
    monkeypatch.setattr(quorum, "holders", holders)
    watch = QueueWatch(quorum, 2, b"foo")
    for _ in range(2):
        watch._at = 0
        assert list(watch.check(is_last)) == []
    assert watch.departures == left


def test_a_member_that_does_not_answer_a_release_is_silent():
    quorum = quorum_of(3)
    owed = OwedRelease(b"foo", b"token", 10)
    quorum.owe({1: owed}, lambda: True)
    _, step = asking(quorum)
    steps = owed.wake()
    next(steps)
    with pytest.raises(StopIteration):
        steps.throw(redis.TimeoutError())
    # A question that was asked before, and is not sent yet, is answered.
    with pytest.raises(StopIteration) as end:
        next(step.questions[1])
    assert isinstance(end.value.value, redis.TimeoutError)
    assert step.enough({0: 1, 2: 1})
