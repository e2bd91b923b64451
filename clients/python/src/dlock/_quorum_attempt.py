"""One acquisition from a quorum: a sequence of rounds. After a failed round, the acquisition waits in the
queue of one member, or for a random time. A wrong decision in this module costs time, but cannot make a
second holder: each round has a token of its own, and `Round` alone decides whether it acquires the lock. The
rules are those of `crates/quorum`. This module yields steps and does no I/O."""

from __future__ import annotations

import random
from typing import Any, Callable

from . import _protocol
from ._clock import now
from ._hold import Hold, OwedRelease, UnansweredLeases
from ._members import Confirmations, Quorum
from ._protocol import NO_ANSWER, Key, LateError, Options, Steps, error
from ._round import Request, Round
from ._single_attempt import MAX_LATE, time_until_expired
from ._steps import Sleep

# A split vote is a round in which no client gets a majority. After one, an acquisition that does not wait
# begins another round, at most this many times.
MAX_SPLIT_VOTES = 20
# First and longest pause between two rounds, in seconds.
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0

# How a round begins: see `at_once`, `in_order` and `queued` of `Round`.
AT_ONCE, IN_ORDER, QUEUED = "at once", "in order", "queued"


class QuorumAttempt:
    """One acquisition. If the caller gave the token, there is only one round, as each round needs a token of
    its own."""

    def __init__(
        self,
        quorum: Quorum[Any],
        *,
        key: bytes,
        name: Key,
        token: bytes | None,
        lease: int,
        options: Options,
        fenced: bool,
    ) -> None:
        """``token``: the caller's token, or None for a fresh token in each round. ``lease``: in ms."""
        # Raises an error if a member does not accept the DELAY of the release, and returns the members that
        # have not answered, with their errors. None if the release has no DELAY.
        self.check_delay: Callable[[], Steps] | None = None
        # True once a request may have been sent, so that `take_back` is needed after a failure.
        self.request_sent = False
        self.lease = lease
        # Whether the caller gave the token, and so may use it again.
        self.token_given = token is not None
        self._quorum = quorum
        self._key = key
        self._name = name
        self._options = options
        self._fenced = fenced
        self._token = token
        self._pause = FIRST_PAUSE
        self._round = self._new_round([])

    # The state of the last round. The caller makes the hold from this state once the lock is acquired.

    @property
    def token(self) -> bytes:
        return self._round.token

    @property
    def fence(self) -> int | None:
        return self._round.fence

    @property
    def valid_until(self) -> float:
        return self._round.valid_until

    # A majority has granted the lock, and so the hold needs no claim.
    is_claimed = True
    claim = None

    def note_hold(self, hold: Hold) -> None:
        pass

    @property
    def confirmations(self) -> Confirmations:
        return self._round.confirmations

    @property
    def unanswered(self) -> UnansweredLeases:
        return self._round.unanswered

    @property
    def members_asked(self) -> set[int]:
        return self._round.members_asked

    @property
    def members_to_release_again(self) -> set[int]:
        """The members that may execute an ACQUIRE after a RELEASE, so that the RELEASE is repeated there.
        Empty if the caller gave the token: a later acquisition may use the same token, and a repeated RELEASE
        would end its hold."""
        return set() if self.token_given else self._round.unanswered_acquires

    def take_back(self) -> Steps:
        """Releases the token of the last round at all members that were asked for the lock."""
        key, token = self._key, self._round.token
        expires_after = time_until_expired(self.lease / 1000)
        # The RELEASE is sent until it has two answers: a member may execute an ACQUIRE of a broken connection
        # after the first RELEASE. If the caller gave the token, a second RELEASE could end a later hold.
        answers_needed = 1 if self.token_given else 2
        # The set of the round itself, not a copy. If an ACQUIRE that is still under way gets no answer, the
        # round adds the member. `repeats` reads the set before each repetition.
        repeat_at = self.members_to_release_again

        def release(member: int) -> OwedRelease:
            return OwedRelease(
                key, token, expires_after, answers_needed=answers_needed, repeats=lambda: member in repeat_at
            )

        owed = {member: release(member) for member in self._round.members_asked}
        # The members that answered the round. The step at the end waits for the releases at these members, so
        # that the next round finds them free.
        answers = self._round.answers.items()
        answered = [
            member for member, answer in answers if not isinstance(answer, NO_ANSWER) and member in owed
        ]
        yield self._quorum.owe(owed, lambda: all(owed[m].removed is not None for m in answered))

    def close(self) -> None:
        """Does nothing: each round closes its wait itself."""

    def run(self, sleep: float, blocking: bool, end: float | None) -> Steps:
        """Returns whether the lock is acquired. Raises `NoQuorumError` if too few members could vote, and
        `LateError` if `MAX_LATE` rounds were late (see `Round.is_late`). If the caller gave the token, one
        late round suffices."""
        quorum, key = self._quorum, self._key
        if self.check_delay is not None:
            yield from self.check_delay()
        yield from quorum.identify_members()
        # The members in the order in which the client tries their queues. A round with an order does not
        # overtake the clients in these queues. A round with an empty order may. An acquisition that does not
        # wait begins with an empty order, as it ends too soon to delay these clients for long.
        order = quorum.order(key) if blocking else []
        contended = key in quorum.contention
        start = QUEUED if blocking and (self.token_given or contended) else AT_ONCE
        split_votes = late_grants = 0
        while True:
            began = now()
            round_ = self._round = self._new_round(order)
            self.request_sent = True
            won = yield from self._run_round(round_, start, sleep, end)
            if won and self.check_delay is not None:
                # A member that did not answer before may have granted the lock.
                won = round_.still_wins((yield from self.check_delay()))
            if won:
                yield from round_.move_to_next_queue()
                return True
            duration = now() - began
            yield from self.take_back()
            quorum.refuse_duplicate_members()
            final_error = round_.final_error()
            if final_error is not None:
                raise final_error
            can_majority_vote = round_.can_majority_vote()
            if round_.is_late and can_majority_vote:
                late_grants += 1
                if late_grants == MAX_LATE or self.token_given:
                    raise error(LateError, "The timeout is too short for these servers", self._name)
                continue
            if not blocking and can_majority_vote and (yield from self._is_split_vote(round_, split_votes)):
                split_votes += 1
                start, order = IN_ORDER, quorum.order(key)
                yield Sleep(random.uniform(0, duration))
                continue
            if start == IN_ORDER and can_majority_vote and not round_.has_majority_answered():
                # The first member that answered has refused, so the others were not asked. Asks all members
                # now: the lock must only be reported as taken if a majority can vote.
                start, order = AT_ONCE, []
                continue
            is_over = not blocking or self.token_given or (end is not None and now() >= end)
            if is_over and not can_majority_vote:
                raise round_.no_quorum()
            if is_over:
                return False
            start, order = yield from self._after_failed_round(
                round_, start == QUEUED, can_majority_vote, duration, end
            )

    def _run_round(self, round_: Round, start: str, sleep: float, end: float | None) -> Steps:
        """Runs a round. Returns whether the lock is acquired."""
        if start == IN_ORDER:
            return (yield from round_.in_order())
        if start == AT_ONCE:
            return (yield from round_.at_once())
        won = yield from round_.queued(sleep, end, may_move_on=not self.token_given)
        has_ended = end is not None and now() >= end
        if not won and has_ended and not round_.has_majority_answered():
            # Only one member was asked. Asks all members once more: the lock must only be reported as taken
            # if a majority can vote.
            won = yield from round_.at_once()
        return won

    def _after_failed_round(
        self, round_: Round, was_queued: bool, can_majority_vote: bool, duration: float, end: float | None
    ) -> Steps:
        """Called after a failed round of an acquisition that waits. Returns how the next round begins, and
        the order of its queues. Pauses first if the next round asks all members at once. ``duration``: that
        of the failed round, in seconds."""
        quorum, key = self._quorum, self._key
        queue, next_queue = round_.queue(), round_.next_queue()
        waits_again = False
        if was_queued:
            start_queue = quorum.contention.start_queue(key, age=duration)
            if start_queue not in (None, queue):
                # Another wait of this client has moved to another queue meanwhile. This wait follows it
                # there.
                waits_again = True
            elif next_queue is not None:
                quorum.move_to_queue(key, next_queue)
                waits_again = True
            elif queue is not None and round_.is_refused_by(queue):
                # This queue is the last of the order, and the wait in it has ended without a grant. The
                # client starts over with the first queue.
                quorum.contention.forget_start_queue(key)
                waits_again = quorum.order(key)[0] != queue
        order = quorum.order(key)
        if can_majority_vote and not was_queued:
            quorum.contention.note_taken(key)
            return QUEUED, [member for member in order if round_.is_reachable(member)] or order
        if can_majority_vote and waits_again:
            return QUEUED, order
        yield self._backoff(end)
        return AT_ONCE, order

    def _new_round(self, order: list[int]) -> Round:
        token = _protocol.fresh_token() if self._token is None else self._token
        request = Request(self._key, self._name, self.lease, self._options, self._fenced)
        return Round(self._quorum, request, token, order)

    def _is_split_vote(self, round_: Round, split_votes: int) -> Steps:
        """Returns whether the round failed although no client has the lock, and no DELAY keeps it closed:
        clients that tried at the same time each got a part of the votes. In the next round they ask the
        members in order, so that one of them wins. ``split_votes``: the number of split votes before this
        round."""
        quorum = self._quorum
        if self.token_given or quorum.majority == 1 or split_votes == MAX_SPLIT_VOTES:
            return False
        holders = yield from quorum.holders(self._key)
        # If a member does not show its holders, the result is a guess: a grant to this round counts as a sign
        # of a split vote. A client with a majority usually holds the lock at all members, and none of them
        # grants it to this round.
        are_known = all(holders.at(member) is not None or quorum.is_silent(member) for member in quorum.all())
        return not holders.is_taken() and (are_known or round_.grants() > 0)

    def _backoff(self, end: float | None) -> Any:
        """Returns a random pause: clients that took votes from each other would do so again if they all asked
        at once."""
        pause = random.uniform(0.5, 1) * self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return Sleep(pause if end is None else max(min(pause, end - now()), 0))
