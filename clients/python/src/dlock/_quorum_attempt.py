"""One acquisition from a quorum: a sequence of rounds. After a failed round, the acquisition waits in a
queue, or for a random time. Safety does not depend on this module, as each round has a token of its own. The
rules are those of `crates/quorum`. This module yields steps and does no I/O."""

from __future__ import annotations

import functools
import random
from typing import Any, Callable

from . import _protocol
from ._clock import now
from ._hold import OwedRelease, UnansweredLeases
from ._members import Confirmations, Quorum
from ._owners import Owner
from ._protocol import NO_ANSWER, Args, Key, LateError, Steps, error
from ._round import Request, Round
from ._single_attempt import LATE, late_for
from ._steps import Sleep

# Number of further tries of an acquisition that does not wait, after split votes: no client has a majority.
MAX_SPLIT_VOTES = 20
# First and longest pause between two rounds, in seconds.
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0

# How a round asks the members: all at once, one after the other, or first the member in whose queue it waits.
AT_ONCE, IN_ORDER, QUEUED = "at once", "in order", "queued"


class QuorumAttempt:
    """One acquisition. Each round has a token of its own. If the caller gave the token, there is only one
    round."""

    def __init__(
        self,
        quorum: Quorum[Any],
        *,
        key: bytes,
        name: Key,
        token: bytes | None,
        lease: int,
        next_terms: Callable[[], Args],
        owner: Owner,
        fenced: bool,
    ) -> None:
        """``token``: the caller's token, or None for a fresh token in each round. ``lease``: in ms.
        ``next_terms``: returns ACQUIRE's terms for the next round."""
        # True once a request may have been sent, so that `take_back` is needed after a failure.
        self.request_sent = False
        self.lease = lease
        # True if the caller gave the token, and may use it again.
        self.token_given = token is not None
        self._quorum = quorum
        self._key = key
        self._name = name
        self._next_terms = next_terms
        self._owner = owner
        self._fenced = fenced
        self._token = token
        self._pause = FIRST_PAUSE
        self._begin([])

    # The state of the last round. `Core` makes the hold from it if the round succeeded.

    @property
    def token(self) -> bytes:
        return self._round.token

    @property
    def terms(self) -> Args:
        return self._round.terms

    @property
    def fence(self) -> int | None:
        return self._round.fence

    @property
    def valid_until(self) -> float:
        return self._round.valid_until

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
    def orphaned(self) -> set[int]:
        # A token from the caller may be used again, and must not be released late.
        return set() if self.token_given else self._round.orphaned

    def take_back(self) -> Steps:
        """Releases the token of the last round at all members that were asked for the lock."""
        lasts = late_for(self.lease / 1000)
        # A token from the caller may be used again, and must not be released late.
        times = 1 if self.token_given else 2
        key, token, orphaned = self._key, self._round.token, self.orphaned

        def release(member: int) -> OwedRelease:
            # `orphaned` is read at each repetition, as a member may fail to answer its ACQUIRE later.
            return OwedRelease(key, token, lasts, times=times, repeats=lambda: member in orphaned)

        owed = {member: release(member) for member in self._round.members_asked}
        # The next round should find the members free, so this waits for the members that answered the round.
        answers = self._round.answers.items()
        reached = [
            member for member, answer in answers if not isinstance(answer, NO_ANSWER) and member in owed
        ]
        # The owner is renamed if the background may still release a hold: a wait of the owner for that hold
        # would be no deadlock. If all requests succeed, the RELEASE precedes such a wait on the connection.
        rename = functools.partial(self._owner.rename, self.terms)
        if any(isinstance(answer, NO_ANSWER) for _, answer in answers):
            rename()
        yield self._quorum.owe(owed, lambda: all(owed[m].ended is not None for m in reached), rename)

    def close(self) -> None:
        pass

    def run(self, sleep: float, blocking: bool, end: float | None) -> Steps:
        """Returns whether a majority granted the lock. Raises `NoQuorumError` if too few members could vote,
        and `LateError` if a majority granted too late several times."""
        quorum, key = self._quorum, self._key
        yield from quorum.identify_members()
        # An acquisition that does not wait respects no queue: it cannot overtake the waiters for long.
        order = quorum.order(key) if blocking else []
        contended = key in quorum.contention
        method = QUEUED if blocking and (self.token_given or contended) else AT_ONCE
        splits = late = 0
        while True:
            began = now()
            round_ = self._begin(order)
            self.request_sent = True
            won = yield from self._take(round_, method, sleep, end)
            if won:
                yield from round_.meet_others()
                return True
            length = now() - began
            yield from self.take_back()
            quorum.refuse_duplicate_members()
            final = round_.final_error()
            if final is not None:
                raise final
            is_taken = round_.may_be_taken()
            if round_.is_late and is_taken:
                late += 1
                if late == LATE or self.token_given:
                    raise error(LateError, "The timeout is too short for these servers", self._name)
                continue
            if not blocking and is_taken and (yield from self._is_split(round_, splits)):
                splits += 1
                method, order = IN_ORDER, quorum.order(key)
                yield Sleep(random.uniform(0, length))
                continue
            if method == IN_ORDER and is_taken and not round_.has_majority_answered():
                # The first member has refused. Asks all members once more, as above.
                method, order = AT_ONCE, []
                continue
            is_over = not blocking or self.token_given or (end is not None and now() >= end)
            if is_over and not is_taken:
                raise round_.no_quorum()
            if is_over:
                return False
            method, order = yield from self._next(round_, method == QUEUED, is_taken, length, end)

    def _take(self, round_: Round, method: str, sleep: float, end: float | None) -> Steps:
        """Runs a round. Returns whether a majority granted the lock."""
        if method == IN_ORDER:
            return (yield from round_.in_order())
        if method == AT_ONCE:
            return (yield from round_.at_once())
        won = yield from round_.queued(sleep, end, may_move_on=not self.token_given)
        has_ended = end is not None and now() >= end
        if not won and has_ended and not round_.has_majority_answered():
            # The wait has ended in the queue of one member without answers from a majority. Asks all members
            # once more, as "taken" must only be reported if a majority can vote.
            won = yield from round_.at_once()
        return won

    def _next(
        self, round_: Round, was_queued: bool, is_taken: bool, length: float, end: float | None
    ) -> Steps:
        """Returns how the next round of a wait asks the members, and in which order. Pauses first if the next
        round would otherwise collide with those of other clients. ``length``: that of the failed round, in
        seconds."""
        quorum, key = self._quorum, self._key
        # During this round, other waits of this client may have found clients in another queue.
        other_queue = quorum.contention.queue(key, age=length)
        moves = was_queued and other_queue not in (None, round_.queue())
        next_queue = round_.next_queue()
        if was_queued and not moves and next_queue is not None:
            quorum.meet(key, next_queue)
        # No later queue is left, and the member of this queue refuses the lock: begin again with the first
        # queue.
        queue = round_.queue()
        starts_over = was_queued and not moves and next_queue is None
        starts_over = starts_over and queue is not None and round_.has_refused(queue)
        if starts_over:
            quorum.contention.forget_queue(key)
        order = quorum.order(key)
        if is_taken and not was_queued:
            quorum.contention.note_taken(key)
            return QUEUED, [member for member in order if round_.is_reachable(member)] or order
        if is_taken and (moves or next_queue is not None or (starts_over and order[0] != queue)):
            return QUEUED, order
        yield self._backoff(end)
        return AT_ONCE, order

    def _begin(self, order: list[int]) -> Round:
        token = _protocol.fresh_token() if self._token is None else self._token
        request = Request(self._key, self._name, self.lease, self._next_terms(), self._fenced)
        self._round = Round(self._quorum, request, token, order)
        return self._round

    def _is_split(self, round_: Round, splits: int) -> Steps:
        """Returns whether the votes are split: no client has a majority, because clients that tried at the
        same time each got a part of the votes. Then they ask the members in order, so that one of them
        wins."""
        quorum = self._quorum
        if self.token_given or quorum.majority == 1 or splits == MAX_SPLIT_VOTES:
            return False
        holders = yield from quorum.holders(self._key)
        # If a member does not show its holders, another client may have a majority, unless a member granted.
        is_known = all(holders.at(member) is not None or quorum.is_silent(member) for member in quorum.all())
        return not holders.has_majority() and (is_known or round_.grants() > 0)

    def _backoff(self, end: float | None) -> Any:
        """Returns a random pause, as clients that lost to each other would collide again at once."""
        pause = random.uniform(0.5, 1) * self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return Sleep(pause if end is None else max(min(pause, end - now()), 0))
