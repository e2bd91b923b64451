"""One round of an acquisition, tested without servers: which answers count as votes, and when the validity
begins. A member answers ACQUIRE with the fence of its grant, or with None if it refuses. A fenced round then
has confirm phases: CONFIRM gives the greatest fence to the members that granted."""

from __future__ import annotations

import pytest
from conftest import quorum_of
from redis.exceptions import ConnectionError, ResponseError

from dlock import NoQuorumError
from dlock._clock import validity
from dlock._protocol import Options
from dlock._quorum_attempt import QuorumAttempt
from dlock._round import Request, Round
from dlock._steps import Ask, Owe, Peer, Sleep

LEASE = 10_000
REQUEST = Request(key=b"foo", name="foo", lease=LEASE, options=Options(), fenced=False)
# The answer to CONFIRM if the fence, which is a time, is too far ahead of the clock of the answering member.
AHEAD = ResponseError("FENCEAHEAD check the clock of the server that issued the fence")


class ConfirmPhases:
    """A fenced round with these grants, by member. `answer` passes the answers of one confirm phase to the
    round."""

    def __init__(self, grants):
        quorum = quorum_of(len(grants))
        self.round = Round(quorum, REQUEST._replace(fenced=True), b"token", order=[])
        self.steps = self.round.at_once()
        next(self.steps)
        self.step = self.steps.send(grants)

    def members(self):
        return sorted(self.step.questions)

    def answer(self, answers):
        """Returns the result of the round, or None while it continues."""
        try:
            self.step = self.steps.send(answers)
            return None
        except StopIteration as end:
            return end.value


def test_an_address_that_leads_to_another_members_server_does_not_vote():
    quorum = quorum_of(3)
    round_ = Round(quorum, REQUEST, b"token", order=[])
    steps = round_.at_once()
    step = next(steps)
    step.on_answer(0, 5, Peer("server 0"))
    step.on_answer(1, 6, Peer("server 0"))
    assert not step.enough({0: 5, 1: 6})
    with pytest.raises(StopIteration) as end:
        steps.send({0: 5, 1: 6, 2: None})
    assert end.value.value is False


def test_two_members_whose_servers_change_places_do_not_both_vote_by_the_same_server():
    quorum = quorum_of(3)
    round_ = Round(quorum, REQUEST, b"token", order=[0])
    steps = round_.in_order()
    next(steps).on_answer(0, 5, Peer("server 0"))
    step = steps.send({0: 5})
    # Another operation finds server 2 at the address of member 0.
    quorum.record_answer(0, 1, Peer("server 2"))
    step.on_answer(2, 6, Peer("server 0"))
    assert not step.enough({2: 6})
    step.on_answer(1, 7, Peer("server 1"))
    assert step.enough({1: 7, 2: 6})


@pytest.mark.parametrize(
    "last, is_taken", [(None, True), (ConnectionError("down"), False)], ids=["taken", "outage"]
)
def test_a_round_with_no_majority_waits_for_the_answer_that_decides_between_taken_and_outage(last, is_taken):
    round_ = Round(quorum_of(3), REQUEST, b"token", order=[])
    steps = round_.at_once()
    answers = {}

    def answer(member, reply):
        answers[member] = reply
        step.on_answer(member, reply, Peer(f"server {member}"))
        return step.enough(answers)

    step = next(steps)
    assert not answer(0, None)
    assert not answer(1, ConnectionError("down")), "the answer of the last member is still needed"
    assert answer(2, last)
    with pytest.raises(StopIteration):
        steps.send(answers)
    assert round_.can_majority_vote() == is_taken


def carry_out(steps, reply, member=None):
    """Carries out steps. A step that is a command goes to ``member``. ``reply(member, command)`` returns the
    member's answer or an error."""

    def outcome_of(step):
        if isinstance(step, Ask):
            answers = {}
            for asked, question in step.questions.items():
                answers[asked] = carry_out(question, reply, asked)
                step.on_answer(asked, answers[asked], Peer(f"server {asked}"))
            return answers
        return None if isinstance(step, (Owe, Sleep)) else reply(member, step)

    try:
        step = next(steps)
        while True:
            outcome = outcome_of(step)
            step = steps.throw(outcome) if isinstance(outcome, Exception) else steps.send(outcome)
    except StopIteration as end:
        return end.value


@pytest.mark.parametrize("is_down", [False, True], ids=["taken", "outage"])
def test_after_split_votes_a_non_blocking_acquire_ends_with_a_round_that_asks_all_members(is_down):
    attempt = QuorumAttempt(
        quorum_of(3),
        key=b"foo",
        name="foo",
        token=None,
        lease=LEASE,
        options=Options(),
        fenced=False,
    )
    commands = []

    # Each member refuses, and shows a different holder: a split vote. In an outage, two members fail from the
    # second round on.
    def reply(member, command):
        commands.append(command[0])
        if command[0] == "DLOCK.INSPECT":
            return [b"holders", [[b"token", b"%d" % member, b"held", 1]]]
        if is_down and "DLOCK.INSPECT" in commands and member > 0:
            return ResponseError("MISCONF cannot write")
        return None

    tried = attempt.run(sleep=0.1, blocking=False, end=None)
    # After a split vote, a round asks the members in order, and ends at the first refusal. Only a round that
    # asks all members finds the outage.
    if is_down:
        with pytest.raises(NoQuorumError, match="MISCONF"):
            carry_out(tried, reply)
    else:
        assert carry_out(tried, reply) is False


@pytest.fixture
def clock(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("dlock._round.now", lambda: clock[0])
    return clock


def test_a_majority_confirms_the_greatest_fence_and_validity_counts_from_the_start_of_the_phase(clock):
    phases = ConfirmPhases({0: 5, 1: 7, 2: 6})
    clock[0] = 104.0
    assert phases.answer({0: 7, 1: 7}) is True
    assert phases.round.fence == 7
    assert phases.round.valid_until == 100 + validity(LEASE / 1000)


def test_a_confirm_phase_is_too_late_after_the_end_of_validity(clock):
    phases = ConfirmPhases({0: 5, 1: 7, 2: 6})
    clock[0] += LEASE / 1000
    assert phases.answer({0: 7, 1: 7}) is False


def test_an_answer_with_a_greater_fence_begins_a_phase_in_which_no_earlier_answer_counts():
    phases = ConfirmPhases({0: 5, 1: 7, 2: 6})
    assert phases.answer({0: 9, 1: 7, 2: None}) is None
    assert phases.members() == [0, 1]
    # In the previous phase, member 1 confirmed 7 and not 9. So the 9 of member 0 is no majority.
    assert not phases.step.enough({0: 9})
    assert phases.answer({0: 9, 1: 9}) is True
    assert phases.round.fence == 9


def test_only_members_that_have_granted_are_asked_to_confirm():
    phases = ConfirmPhases({0: 5, 1: 7, 2: None})
    assert phases.members() == [0, 1]
    assert phases.answer({0: 7, 1: None}) is False


def test_a_confirm_phase_that_no_majority_answers_is_an_outage():
    phases = ConfirmPhases({0: 5, 1: 7, 2: 6})
    assert phases.answer({0: 7, 1: ConnectionError("down"), 2: ConnectionError("down")}) is False
    assert not phases.round.can_majority_vote()


def test_a_member_with_a_clock_ahead_of_the_others_is_dropped_and_reported():
    phases = ConfirmPhases({0: 5, 1: 900, 2: 6})
    assert phases.answer({0: AHEAD, 1: 900, 2: AHEAD}) is None
    assert phases.members() == [0, 2]
    assert phases.answer({0: 6, 2: 6}) is True
    assert phases.round.fence == 6
    assert "FENCEAHEAD" in str(phases.round.answers[1])
