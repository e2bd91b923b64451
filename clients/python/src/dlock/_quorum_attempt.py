"""An acquisition from a quorum: what follows a failed round. Safety does not depend on it, as each round has
a token of its own. The rules are those of `crates/quorum`. This module yields steps and does no I/O."""

from __future__ import annotations

import random
from typing import Any, Callable

from . import _protocol
from ._clock import now
from ._hold import OwedRelease, UnansweredLeases
from ._members import Holders, NoQuorumError, Quorum
from ._owners import Owner
from ._protocol import NO_ANSWER, Args, Key, Steps, error
from ._queue import PARTIAL_HOLD_MAX_AGE
from ._round import Request, Round
from ._steps import Begin, Sleep
from ._waits import KEEP

# Number of tries of an acquisition that does not wait, while no client has a majority.
MAX_SPLIT_VOTES = 20
# First and longest pause between two rounds, in seconds.
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0

# How a round gets its turn: it asks all members at once, one after the other, or waits in a queue.
AT_ONCE, IN_ORDER, QUEUED = "at once", "in order", "queued"


class QuorumAttempt:
    """One acquisition. Each round has a token of its own. With a token from the caller there is one round."""

    def __init__(
        self,
        quorum: Quorum[Any],
        key: bytes,
        name: Key,
        token: bytes | None,
        lease: int,
        terms: Callable[[], Args],
        owner: Owner,
        fenced: bool,
    ) -> None:
        """``terms``: returns the terms of the next round."""
        self.asked = False
        self.lease = lease
        self.given = token is not None
        self._quorum = quorum
        self._key = key
        self._name = name
        self._terms = terms
        self._owner = owner
        self._fenced = fenced
        self._token = token
        self._pause = FIRST_PAUSE
        self._begin([])

    # The hold's part of the round that succeeded.

    @property
    def token(self) -> bytes:
        return self._round.token

    @property
    def fence(self) -> int | None:
        return self._round.fence

    @property
    def valid_until(self) -> float:
        return self._round.valid_until

    @property
    def holders(self) -> Holders:
        return self._round.holders

    @property
    def unanswered(self) -> UnansweredLeases:
        return self._round.unanswered

    @property
    def members_asked(self) -> set[int]:
        return self._round.members_asked

    @property
    def orphaned(self) -> set[int]:
        return self._round.orphaned

    def take_back(self) -> Steps:
        """Releases what the members may hold or grant for the token of the round."""
        lasts = max(self.lease / 1000, KEEP) + KEEP
        # A token from the caller may be used again, and must not be released late.
        times = 1 if self.given else 2
        key, token = self._key, self._round.token
        owed = {m: OwedRelease(key, token, lasts, times=times) for m in self._round.members_asked}
        # The next round begins after the members that answered have released.
        answers = self._round.answers.items()
        reached = [
            member for member, answer in answers if not isinstance(answer, NO_ANSWER) and member in owed
        ]
        # A wait of the owner for a hold that the background releases would be no deadlock. Where nothing
        # fails, the RELEASE precedes such a wait on the connection.
        rename = self._owner.rename
        if any(isinstance(answer, NO_ANSWER) for _, answer in answers):
            rename()
        yield self._quorum.owe(owed, lambda: all(owed[m].ended is not None for m in reached), rename)

    def close(self) -> None:
        pass

    def run(self, sleep: float, blocking: bool, end: float | None) -> Steps:
        """Returns whether a majority granted the lock. Raises `NoQuorumError` if no majority could."""
        quorum, key = self._quorum, self._key
        yield from quorum.meet()
        # An acquisition that does not wait respects no queue: it cannot overtake the waiters for long.
        order = quorum.order(key) if blocking else []
        contended = key in quorum.contention
        turn = QUEUED if blocking and (self.given or contended) else AT_ONCE
        has_majority_answered = contended
        splits = 0
        while True:
            began = now()
            this = self._begin(order)
            self.asked = True
            if turn == QUEUED:
                won = yield from this.queued(sleep, end, may_move_on=not self.given)
                has_majority_answered |= this.has_majority_answered()
                if not won and not has_majority_answered and end is not None and now() >= end:
                    # Only the member of the queue was asked. The others show whether a majority can vote.
                    won = yield from this.at_once()
            else:
                won = yield from (this.in_order() if turn == IN_ORDER else this.at_once())
            if won:
                yield from self._meet_others(this)
                return True
            length = now() - began
            yield from self.take_back()
            quorum.refuse_duplicate_members()
            misuse = this.misuse()
            if misuse is not None:
                raise misuse
            has_majority_answered |= this.has_majority_answered()
            is_taken = this.may_be_taken()
            if not blocking and is_taken and (yield from self._is_split(this, splits)):
                splits += 1
                turn, order = IN_ORDER, quorum.order(key)
                yield Sleep(random.uniform(0, length))
                continue
            is_over = not blocking or self.given or (end is not None and now() >= end)
            if is_over and not is_taken:
                raise error(NoQuorumError, "No majority can grant: " + this.report(), self._name)
            if is_over:
                return False
            was_queued, turn = turn == QUEUED, AT_ONCE
            # Meanwhile, other waits of this client have met other clients at another queue.
            elsewhere = quorum.contention.queue(key, age=length)
            moves = was_queued and elsewhere not in (None, this.queue())
            next_queue = this.next_queue()
            if was_queued and not moves and next_queue is not None:
                quorum.note_queue(key, next_queue)
            # The last queue does not move either: back to the first.
            queue = this.queue()
            returns = was_queued and not moves and next_queue is None
            returns = returns and queue is not None and this.has_refused(queue)
            if returns:
                quorum.contention.forget_queue(key)
            order = quorum.order(key)
            if is_taken and not was_queued:
                quorum.contention.note(key)
                turn = QUEUED
                order = [member for member in order if this.is_reachable(member)] or order
            elif is_taken and (moves or next_queue is not None or (returns and order[0] != queue)):
                turn = QUEUED
            else:
                yield self._backoff(end)

    def _begin(self, order: list[int]) -> Round:
        token = self._token or _protocol.fresh_token()
        request = Request(self._key, self._name, self.lease, self._terms(), self._fenced)
        self._round = Round(self._quorum, request, token, order)
        return self._round

    def _is_split(self, this: Round, splits: int) -> Steps:
        """Returns whether no client has a majority, because clients that tried at the same time each got a
        part of the votes. From then on they ask the members in order, so that one of them wins."""
        quorum = self._quorum
        if self.given or quorum.majority == 1 or splits == MAX_SPLIT_VOTES:
            return False
        holders = yield from quorum.holders(self._key)
        # A member that does not show its holders may have a holder with a majority.
        is_known = all(holders[member] is not None or quorum.is_silent(member) for member in quorum.all())
        return not quorum.has_holder(holders) and (is_known or this.grants() > 0)

    def _meet_others(self, won: Round) -> Steps:
        """Records where others queue. If that member has refused the new holder, reads its holders first: the
        RELEASE of the predecessor may have been in flight."""
        queue = won.next_queue()
        if queue is None:
            return
        if not won.has_refused(queue):
            self._quorum.note_queue(self._key, queue)
        elif self._quorum.contention.may_look(self._key):
            yield Begin(self._look_for_others(queue, won.token))

    def _look_for_others(self, queue: int, own: bytes) -> Steps:
        quorum, key = self._quorum, self._key
        began = now()
        before = yield from quorum.partial_holds(key, queue)
        yield Sleep(now() - began)
        after = yield from quorum.partial_holds(key, queue)
        staying = [held for token, held in after.items() if token in before and token != own]
        if not staying:
            quorum.contention.found_no_others(key)
        # An old partial hold without waiters was left behind.
        elif min(staying) < PARTIAL_HOLD_MAX_AGE or (yield from quorum.has_waiters(key, queue)):
            quorum.note_queue(key, queue)

    def _backoff(self, end: float | None) -> Any:
        """Returns a random pause, as clients that lost to each other would collide again at once."""
        pause = random.uniform(0.5, 1) * self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return Sleep(pause if end is None else max(min(pause, end - now()), 0))
