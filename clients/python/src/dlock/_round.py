"""One round of an acquisition from a quorum, with one token: the votes, the wait in a queue, and the confirm
phase. The rules are those of `crates/quorum`, whose states a model checker has searched. This module yields
steps and does no I/O."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from redis.exceptions import LockError, NoPermissionError, ResponseError

from . import _protocol
from ._clock import now, trusted
from ._hold import Owed, UnansweredLeases
from ._members import Confirmations, NoQuorumError, Quorum, report
from ._protocol import FOREIGN, NO_ANSWER, Args, DataError, Key, Steps, error, is_misuse, word
from ._queue import PARTIAL_HOLD_MAX_AGE, Waiter
from ._single_attempt import LATE
from ._steps import Answers, Begin, Sleep
from ._waits import KEEP

# Number of times that a granted waiter asks the other members: the RELEASEs of its predecessor may still be
# in flight.
TRIES = 12
# Number of these tries before the round ends and the client goes to another queue, if there is one.
BRIEF_TRIES = 5
# Longest pause between two of these tries, in seconds.
LONGEST_PAUSE = 0.032

# Answers of a member where another client holds the lock.
REFUSED = None, FOREIGN

# Error words that are a refusal, and no failure of the member.
REFUSALS = "DEADLOCK", "QUEUEFULL"


class Request(NamedTuple):
    key: bytes
    name: Key
    # In ms.
    lease: int
    terms: Args
    fenced: bool


class Round:
    """The round of one token. `order`: the members in whose queues the round waits, or whose waiters it does
    not overtake."""

    def __init__(self, quorum: Quorum[Any], request: Request, token: bytes, order: list[int]) -> None:
        self.token = token
        self.terms = request.terms
        self.fence: int | None = None
        self.valid_until = 0.0
        # True if a majority granted, but the lease ended before the round did, or no majority confirmed it.
        self.is_late = False
        self.answers: Answers = {}
        self.confirmations = Confirmations(quorum)
        self.unanswered = UnansweredLeases()
        # The members that may hold the lock for the token.
        self.members_asked: set[int] = set()
        # The members with an unanswered ACQUIRE, which they may execute after a RELEASE.
        self.orphaned: set[int] = set()
        self._quorum = quorum
        self._request = request
        self._order = order
        # Index in the order of the member whose queue decides the turn.
        self._queue = 0
        self._has_waited = False
        # Whether the round had a majority, and gives it back to clients that wait in a queue.
        self._is_behind = False

    def at_once(self) -> Steps:
        """Asks all members at once. A majority counts only after the answer of the first member of the order,
        where others queue. If that member refuses, its queue must be empty: a newcomer could otherwise
        overtake the whole queue by a majority of the other members."""
        since = now()
        first = self._order[0] if self._order else None
        yield from self._ask(list(self._quorum.all()), first)
        if self.grants() < self._quorum.majority:
            return False
        if first is not None and self.has_refused(first):
            has_waiters = yield from self._quorum.has_waiters(self._request.key, first)
            self._is_behind = has_waiters is not False
            if self._is_behind:
                return False
        return (yield from self._won(since))

    def in_order(self) -> Steps:
        """Asks the first reachable member of the order, and the other members once it has granted. The first
        member grants to one of several clients, and only that client asks the other members."""
        for queue in self._order:
            since = now()
            yield from self._ask([queue], queue)
            if self._has_granted(queue):
                return (yield from self._ask_others(since, None))
            if self.has_refused(queue):
                return False
            self._queue += 1
        return False

    def queued(self, sleep: float, end: float | None, may_move_on: bool) -> Steps:
        """Waits in the queue of the first reachable member of the order, and asks all members once that
        member has granted.

        That grant does not count as a vote, as the time of a grant after a wait is unknown, and its lease can
        be short. So the member is asked again together with the others: this request renews the lease, and
        the validity counts from its sending."""
        key, name, lease, terms, _ = self._request
        self._has_waited = True
        for queue in self._order:
            is_last = self._queue + 1 == len(self._order)
            waiter = Waiter(self._quorum, queue, key, name, self.token, lease, terms)
            self.members_asked.add(queue)
            answer = yield from waiter.wait(sleep, end, may_move_on and self._quorum.majority > 1, is_last)
            if answer is True:
                return (yield from self._ask_others(now(), end))
            self.answers[queue] = answer
            if answer is None:
                return False
            self.orphaned.add(queue)
            # A token waits in one queue at a time. CANCEL instead of RELEASE: a late RELEASE would end a hold
            # that this member grants to a later request of this round.
            yield self._quorum.owe({queue: Owed(_protocol.cancel(key, self.token), KEEP)}, lambda: True)
            self._queue += 1
        return False

    def queue(self) -> int | None:
        """Returns the member whose queue decides the turn."""
        return self._order[self._queue] if self._queue < len(self._order) else None

    def next_queue(self) -> int | None:
        """Returns the member to queue at next. None means the first reachable one.

        1. If the member of the present queue refuses the token, that queue does not move: the next member.
        2. If a later member refuses the token, other clients queue there and cannot come here: that member.
        3. If the order leaves out earlier members, and this round has waited or one of them has refused,
           other clients still queue here: the present member again."""
        if self._queue >= len(self._order):
            return None
        queue, later = self._order[self._queue], self._order[self._queue + 1 :]
        if self.has_refused(queue):
            return later[0] if later else None
        refusing = next((member for member in later if self.has_refused(member)), None)
        if refusing is not None:
            return refusing
        earlier = [member for member in self._quorum.all() if member not in self._order]
        stays = any(self._has_waited or self.has_refused(member) for member in earlier)
        return queue if stays else None

    def meet_others(self) -> Steps:
        """Called once the lock is acquired. Records the member at which other clients queue. If that member
        refused this token, first looks there in the background: the refusal may also be due to a predecessor
        whose RELEASE was in flight."""
        queue = self.next_queue()
        if queue is None:
            return
        if self.has_refused(queue):
            yield from self._look_at(queue)
        else:
            self._quorum.meet(self._request.key, queue)

    def may_be_taken(self) -> bool:
        """Returns whether a majority of the members could vote, so that another client may hold the lock.
        Otherwise no client can acquire it now."""
        able = sum(not self._is_unavailable(member) for member in self._quorum.all())
        return able >= self._quorum.majority

    def has_majority_answered(self) -> bool:
        """Returns whether a majority of the members has granted or refused."""
        voted = sum(not self._is_unavailable(member) for member in self.answers)
        return voted >= self._quorum.majority

    def is_reachable(self, member: int) -> bool:
        """Returns whether waiting at the member makes sense."""
        return not self._quorum.is_silent(member) and not isinstance(self.answers.get(member), Exception)

    def final_error(self) -> Exception | None:
        """Returns an error if the members that call the request invalid, forbid it, or have data at the key,
        leave too few others for a majority; otherwise None."""
        answers = self.answers.values()
        invalid = [answer for answer in answers if is_misuse(answer) or isinstance(answer, DataError)]
        forbidden = [answer for answer in answers if isinstance(answer, NoPermissionError)]
        if len(self._quorum.members) - len(invalid) - len(forbidden) >= self._quorum.majority:
            return None
        return invalid[0] if invalid else self.no_quorum()

    def no_quorum(self) -> LockError:
        text = "No majority can grant: " + report(self._quorum, self.answers)
        return error(NoQuorumError, text, self._request.name)

    def has_refused(self, member: int) -> bool:
        return member in self.answers and self.answers[member] in REFUSED

    def grants(self) -> int:
        return sum(self._has_granted(member) for member in self.answers)

    def _ask_others(self, since: float, end: float | None) -> Steps:
        """Asks the members that have not granted yet, after the member of the queue has. Asks up to `TRIES`
        times, as their holders may be about to release."""
        for tries in range(TRIES):
            yield from self._ask([m for m in self._quorum.all() if not self._has_granted(m)])
            if (yield from self._won(since)):
                return True
            # With another queue to go to, the round gives up early: if two clients each kept a part of the
            # votes until a missing member is back, no client could get a majority.
            moves_on = self._has_waited and self.next_queue() not in (None, self._order[self._queue])
            has_ended = end is not None and now() >= end
            if self.is_late or has_ended or (moves_on and tries >= BRIEF_TRIES):
                return False
            yield Sleep(random.uniform(0.5, 1) * min(0.001 * 2**tries, LONGEST_PAUSE))
        return False

    def _ask(self, members: list[int], first: int | None = None) -> Steps:
        """Asks members for their votes until a majority has granted, or can no longer grant, and `first` has
        answered."""
        key, name, lease, terms, _ = self._request
        self.members_asked.update(members)
        before = {member: answer for member, answer in self.answers.items() if member not in members}
        confirmations = self.confirmations

        def enough(answers: Answers, awaited: list[int]) -> bool:
            self.answers = {**before, **answers}
            grants, majority = self.grants(), self._quorum.majority
            if first in awaited:
                return False
            if grants >= majority or grants + len(awaited) >= majority:
                return grants >= majority
            # This round cannot get a majority. Further votes may show whether another client can have one.
            return self.has_majority_answered() or not self.may_be_taken() or not awaited

        def on_answer(member: int, answer: Any) -> Steps | None:
            if isinstance(answer, int):
                confirmations.note(member)
            return self._answered_late(member, answer)

        command = _protocol.acquire(key, self.token, lease, terms)

        def question(member: int) -> Steps:
            try:
                return (yield from _protocol.send_unless_data(command, name))
            except NO_ANSWER:
                self.orphaned.add(member)
                raise

        answers = yield from self._quorum.ask(members, question, enough, on_answer)
        self.answers = {**before, **answers}

    def _answered_late(self, member: int, answer: Any) -> Steps | None:
        """Called with each answer. If the round has already won, a refusal by the member of a later queue
        shows that other clients may wait there. Returns the steps that look for them, also after a wait in
        another queue than the first: the clients of that queue may have moved on."""
        has_won = self.grants() >= self._quorum.majority and not self._is_behind and not self.is_late
        is_later_queue = member in self._order[self._queue + 1 :]
        return self._look_at(member) if has_won and is_later_queue and answer in REFUSED else None

    def _look_at(self, queue: int) -> Steps:
        if self._quorum.contention.begin_look(self._request.key):
            yield Begin(self._look_for_others(queue), self._quorum)

    def _look_for_others(self, queue: int) -> Steps:
        """Records that other clients queue at the member `queue` if two looks, one round trip apart, find the
        same young partial hold there. The queue behind an old partial hold does not move, so waiters
        there are no reason to join that queue."""
        quorum, key = self._quorum, self._request.key
        began = now()
        before = (yield from quorum.holders(key)).partial_holders(queue, self.token)
        yield Sleep(now() - began)
        after = (yield from quorum.holders(key)).partial_holders(queue, self.token)
        ages = [age for token, age in after.items() if token in before]
        if not ages:
            quorum.contention.end_look(key)
        elif min(ages) < PARTIAL_HOLD_MAX_AGE:
            quorum.meet(key, queue)

    def _won(self, since: float) -> Steps:
        if self.grants() < self._quorum.majority:
            return False
        if self._request.fenced:
            confirmed = yield from self._confirm()
            if confirmed is None:
                self.is_late = True
                return False
            since = confirmed
        elif self._quorum.majority == 1:
            self.fence = self.answers[0]
        self.valid_until = since + trusted(self._request.lease / 1000)
        self.is_late = now() >= self.valid_until
        return not self.is_late

    def _confirm(self) -> Steps:
        """Sets one fence, the greatest that was granted, at a majority of the members. Returns the time from
        which the validity counts; None if no majority confirms a fence."""
        key, lease, majority = self._request.key, self._request.lease, self._quorum.majority
        for _ in range(LATE + len(self._quorum.members)):
            counted = {m: self.answers[m] for m in self.answers if self._has_granted(m)}
            if len(counted) < majority:
                return None
            fence = max(counted.values())
            since = now()

            def question(member: int, fence: int = fence) -> Steps:
                def command(name: str) -> Args:
                    return _protocol.confirm(key, self.token, fence, lease, name)

                return self.unanswered.send(member, "DLOCK.CONFIRM", command, lease)

            def confirming(answers: Answers, fence: int = fence) -> int:
                return sum(answer == fence for answer in answers.values())

            def enough(answers: Answers, awaited: list[int], confirming: Any = confirming) -> bool:
                return bool(confirming(answers) >= majority or confirming(answers) + len(awaited) < majority)

            answers = yield from self._quorum.ask(counted, question, enough)
            if confirming(answers) >= majority:
                self.fence = fence
                return since
            ahead = any(word(answer) == "FENCEAHEAD" for answer in answers.values())
            for member, answer in answers.items():
                # The next phase tries a greater fence. A member that failed, or that no longer has the hold
                # (None), does not count there. A member that calls the fence too far ahead still counts.
                if word(answer) != "FENCEAHEAD":
                    self.answers[member] = answer
            if ahead:
                # The fence came from a clock that is ahead: continues without the members that granted it.
                for member in counted:
                    if self._has_granted(member) and self.answers[member] >= fence:
                        self.answers[member] = ResponseError("FENCEAHEAD its clock is ahead of the others'")
        return None

    def _has_granted(self, member: int) -> bool:
        return isinstance(self.answers.get(member), int)

    def _is_unavailable(self, member: int) -> bool:
        if member not in self.answers:
            return self._quorum.is_silent(member)
        answer = self.answers[member]
        return isinstance(answer, Exception) and word(answer) not in REFUSALS
