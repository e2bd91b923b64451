"""A lock over several independent masters: a majority of them decides. Here is what follows a failed round:
the wait queue, backoff. Safety does not depend on it, as each round has a token of its own. The rules are
those of the Rust client (`crates/client/src/acquire/course.rs`). As `_core.py`, it yields steps and does no
I/O."""

from __future__ import annotations

import random
from typing import Any

from . import _protocol
from ._attempt import NO_ANSWER, Owe
from ._hold import OwedRelease, Sleep, Steps, now
from ._members import Begin, Holders, NoQuorumError, Quorum
from ._protocol import Args, Key, error
from ._queue import HEAD_KEEPS
from ._round import Request, Round
from ._waits import KEEP

# So often one that does not wait tries again while nobody has the lock.
SPLITS = 20
# The pause between two rounds (s): the first, which grows up to the longest.
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0

# How a round gets its turn: it asks all members at once, one after the other, or waits in a queue.
AT_ONCE, IN_ORDER, QUEUED = "at once", "in order", "queued"


class QuorumAttempt:
    """One acquisition. Each round has a token of its own, unless the caller gave one: then there is one
    round."""

    def __init__(
        self,
        quorum: Quorum,
        key: bytes,
        name: Key,
        token: bytes | None,
        lease: int,
        terms: Args,
        fenced: bool,
    ) -> None:
        self.asked = False
        self.lease = lease
        self.given = token is not None
        self._quorum = quorum
        self._request = Request(key, name, lease, terms, fenced)
        self._token = token
        self._pause = FIRST_PAUSE
        self._begin([])

    # What the hold needs of the round that succeeded.

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
    def members_asked(self) -> set[int]:
        return self._round.members_asked

    def owe(self) -> Owe:
        lasts = max(self.lease / 1000, KEEP) + KEEP
        times = 1 if self.given else 2
        key, token = self._request.key, self._round.token
        owed = {m: OwedRelease(key, token, lasts, times=times) for m in self._round.members_asked}
        # A round begins after those that answered have let go.
        answers = self._round.answers.items()
        reached = [
            member for member, answer in answers if not isinstance(answer, NO_ANSWER) and member in owed
        ]
        return self._quorum.owe(owed, lambda: all(owed[member].ended is not None for member in reached))

    def close(self) -> None:
        pass

    def run(self, sleep: float, blocking: bool, end: float | None) -> Steps:
        quorum, key = self._quorum, self._request.key
        yield from quorum.meet()
        # Who does not wait overtakes nobody for long.
        order = quorum.order(key) if blocking else []
        turn = QUEUED if blocking and (self.given or key in quorum.contended) else AT_ONCE
        splits = 0
        while True:
            began = now()
            this = self._begin(order)
            self.asked = True
            if turn == QUEUED:
                won = yield from this.queued(sleep, end, may_move_on=not self.given)
            else:
                won = yield from (this.in_order() if turn == IN_ORDER else this.at_once())
            if won:
                yield from self._meet_others(this)
                return True
            length = now() - began
            yield self.owe()
            quorum.refuse_doubles()
            misuse = this.misuse()
            if misuse is not None:
                raise misuse
            is_taken = this.may_be_taken()
            if not blocking and is_taken and (yield from self._is_split(this, splits)):
                splits += 1
                turn, order = IN_ORDER, quorum.order(key)
                yield Sleep(random.uniform(0, length))
                continue
            if not is_taken and (not blocking or self.given):
                text = "No majority can grant: " + this.report()
                raise error(NoQuorumError, text, self._request.name)
            if not blocking or self.given or (end is not None and now() >= end):
                return False
            was_queued, turn = turn == QUEUED, AT_ONCE
            # Others of this client have met somebody elsewhere while it waited.
            elsewhere = quorum.contended.queue(key, age=length)
            moves = was_queued and elsewhere not in (None, this.queue())
            next_queue = this.next_queue()
            if was_queued and not moves and next_queue is not None:
                quorum.note_queue(key, next_queue)
            # The last queue does not move either: back to the first.
            queue = this.queue()
            returns = was_queued and not moves and next_queue is None
            returns = returns and queue is not None and this.has_refused(queue)
            if returns:
                quorum.contended.forget_queue(key)
            order = quorum.order(key)
            if is_taken and not was_queued:
                quorum.contended.note(key)
                turn = QUEUED
                order = [member for member in order if this.is_reachable(member)] or order
            elif is_taken and (moves or next_queue is not None or (returns and order[0] != queue)):
                turn = QUEUED
            else:
                yield self._backoff(end)

    def _begin(self, order: list[int]) -> Round:
        token = self._token or _protocol.fresh_token()
        self._round = Round(self._quorum, self._request, token, order)
        return self._round

    def _is_split(self, this: Round, splits: int) -> Steps:
        """Whether nobody has the lock: those who tried at the same time each got a part of the votes. From
        now on they are asked for in order, so that one wins."""
        quorum = self._quorum
        if self.given or quorum.majority == 1 or splits == SPLITS:
            return False
        holders = yield from quorum.holders(self._request.key)
        # Where that may not be asked, somebody has it who leaves no vote.
        is_known = all(holders[member] is not None or quorum.is_silent(member) for member in quorum.all())
        return not quorum.has_holder(holders) and (is_known or this.grants() > 0)

    def _meet_others(self, won: Round) -> Steps:
        """Notes where others queue. Of a member that has refused one who has the lock it is looked first:
        what its predecessor releases may have been on the way there."""
        queue = won.next_queue()
        if queue is None:
            return
        key = self._request.key
        if not won.has_refused(queue):
            self._quorum.note_queue(key, queue)
        elif self._quorum.contended.may_look(key):
            yield Begin(self._look_for_others(queue, won.token))

    def _look_for_others(self, queue: int, own: bytes) -> Steps:
        quorum, key = self._quorum, self._request.key
        began = now()
        before = yield from quorum.parts(key, queue)
        yield Sleep(now() - began)
        after = yield from quorum.parts(key, queue)
        staying = [held for token, held in after.items() if token in before and token != own]
        if not staying:
            quorum.contended.saw_nobody(key)
        # What was left behind grows old.
        elif min(staying) < HEAD_KEEPS or (yield from quorum.somebody_waits(key, queue)):
            quorum.note_queue(key, queue)

    def _backoff(self, end: float | None) -> Any:
        """Not at once, or those who lost to each other would collide again."""
        pause = random.uniform(0.5, 1) * self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return Sleep(pause if end is None else max(min(pause, end - now()), 0))
