"""One round of an acquisition from a quorum, with one token: the wait in the queue of one member, the votes
of the members, and the confirm phase for the fence. The rules are those of `crates/quorum`, which has a
model checker. This module yields steps and does no I/O."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from redis.exceptions import LockError, NoPermissionError, ResponseError

from . import _protocol
from ._clock import now, validity
from ._hold import Owed, UnansweredLeases
from ._members import Confirmations, NoQuorumError, Quorum, Voters, report
from ._protocol import (
    FOREIGN,
    NO_ANSWER,
    Args,
    Key,
    NotALockError,
    Options,
    Steps,
    error,
    error_word,
    is_misuse,
)
from ._quorum_queue import PARTIAL_HOLD_MAX_AGE, Waiter
from ._steps import Answers, Begin, Sleep
from ._waits import KEEP

# After the grant of the member at which the client queues, the round asks the other members up to this many
# times. They may refuse at first, while the RELEASEs of the previous holder are still in flight.
TRIES = 12
# If other clients wait in another queue, the round gives up after it has repeated its requests this many
# times. The client then moves to that queue.
RETRIES_BEFORE_NEXT_QUEUE = 5
# Longest pause between two of the `TRIES`, in seconds.
LONGEST_PAUSE = 0.032

# Answers of a member where another client holds the lock.
REFUSED = None, FOREIGN

# Error words of a member that can vote, and refuses this request.
REFUSAL_WORDS = "DEADLOCK", "QUEUEFULL"


class Request(NamedTuple):
    """The ACQUIRE of a round, without the token."""

    key: bytes
    # The name of the lock, for errors.
    name: Key
    # In ms.
    lease: int
    options: Options
    # Whether the hold needs a fence that rises over the whole quorum.
    fenced: bool


class Round:
    """The round of one token. `order`: the members in whose queues clients wait for the lock, in the order in
    which clients try them. The round waits in one of these queues, too, or at least does not overtake
    the waiters. With an empty order, the round may overtake waiters."""

    def __init__(self, quorum: Quorum[Any], request: Request, token: bytes, order: list[int]) -> None:
        self.token = token
        self.fence: int | None = None
        self.valid_until = 0.0
        # True if a majority granted the lock in vain: the validity ended before the round did, or no majority
        # confirmed a fence.
        self.is_late = False
        # The last answer of each member to ACQUIRE: the fence, None, `FOREIGN` or an error.
        self.answers: Answers = {}
        # Notes the grants of ACQUIRE, and later the extensions. The confirm phase notes nothing.
        self.confirmations = Confirmations(quorum)
        self.unanswered = UnansweredLeases()
        # The members that were asked for the lock, and so may hold it for the token.
        self.members_asked: set[int] = set()
        # The members that may have left an ACQUIRE unanswered: they may execute that ACQUIRE after a RELEASE.
        self.unanswered_acquires: set[int] = set()
        self._quorum = quorum
        # The servers that have answered this round.
        self._voters = Voters()
        self._request = request
        self._order = order
        # Index in `_order` of the current queue: the queue in which the round waits, or whose waiters it does
        # not overtake.
        self._queue_index = 0
        self._has_waited = False
        # Whether the round had a majority, and gives it back because clients may wait in the current queue.
        self._waiters_are_ahead = False

    def at_once(self) -> Steps:
        """Asks all members at once. Returns whether the lock is acquired. A majority counts only after the
        answer of the first member of the order, where other clients may queue. If that member refuses and may
        have waiters, the round gives the majority back: a newcomer could otherwise overtake the whole queue
        by a majority of the other members."""
        since = now()
        first = self._order[0] if self._order else None
        yield from self._ask(list(self._quorum.all()), first)
        if self.grants() < self._quorum.majority:
            return False
        if first is not None and self.is_refused_by(first):
            has_waiters = yield from self._quorum.has_waiters(self._request.key, first)
            self._waiters_are_ahead = has_waiters is not False
            if self._waiters_are_ahead:
                return False
        return (yield from self._win(since))

    def in_order(self) -> Steps:
        """Asks the first reachable member of the order, and the other members once it has granted. Returns
        whether the lock is acquired. The first member grants the lock to one of several clients, and only
        that client asks the other members."""
        for queue in self._order:
            since = now()
            yield from self._ask([queue], queue)
            if self._is_granted_by(queue):
                return (yield from self._ask_others(since, None))
            if self.is_refused_by(queue):
                return False
            self._queue_index += 1
        return False

    def queued(self, sleep: float, end: float | None, may_move_on: bool) -> Steps:
        """Waits in the queue of the first reachable member of the order, and asks all members once that
        member has granted. Returns whether the lock is acquired. For the arguments, see `Waiter.wait`.

        The grant after the wait does not count as a vote: its time is unknown, so its lease may be almost
        over. So the member is asked again together with the others: this request renews the lease, and the
        validity counts from just before it is sent."""
        key, name, lease, options, _ = self._request
        self._has_waited = True
        for queue in self._order:
            is_last = self._queue_index + 1 == len(self._order)
            waiter = Waiter(
                self._quorum, queue, key, name, self.token, lease, options, self.unanswered_acquires
            )
            self.members_asked.add(queue)
            answer = yield from waiter.wait(sleep, end, may_move_on and self._quorum.majority > 1, is_last)
            if answer is True:
                return (yield from self._ask_others(now(), end))
            self.answers[queue] = answer
            if answer is None:
                return False
            # Removes the token from this queue, as it waits in one queue at a time. A RELEASE could arrive
            # late, and end a hold that this member grants to a later request of this round; a CANCEL ends no
            # hold. After `KEEP`, the position has expired by itself. The round does not wait for the answer.
            cancel = Owed(lambda: _protocol.cancel(key, self.token), KEEP)
            yield self._quorum.owe({queue: cancel}, enough=lambda: True)
            self._queue_index += 1
        return False

    def queue(self) -> int | None:
        """Returns the member of the current queue. None if no queue in the order is left."""
        return self._order[self._queue_index] if self._queue_index < len(self._order) else None

    def next_queue(self) -> int | None:
        """Returns the member where this client's next wait for the lock starts. The first rule that applies
        decides. None if no rule applies, or if rule 1 finds no next member.

        1. The member of the current queue refused the token, or the wait left that queue because it does not
           move. The next wait starts at the next member of the order.
        2. A later member refused the token. The next wait starts there: other clients may wait there, if they
           cannot reach the current member.
        3. The order omits members (of earlier queues, or unreachable ones), and either this round has waited,
           or an omitted member refused the token. The next wait starts at the current member again, where
           other clients may still wait."""
        if self._queue_index >= len(self._order):
            return None
        queue, later = self._order[self._queue_index], self._order[self._queue_index + 1 :]
        if self.is_refused_by(queue):
            return later[0] if later else None
        refusing = next((member for member in later if self.is_refused_by(member)), None)
        if refusing is not None:
            return refusing
        omitted = [member for member in self._quorum.all() if member not in self._order]
        stays = any(self._has_waited or self.is_refused_by(member) for member in omitted)
        return queue if stays else None

    def move_to_next_queue(self) -> Steps:
        """Called once the lock is acquired. Makes this client's waits move to the next queue, if there is
        one. If the member of that queue refused the token, first looks for other clients there, in the
        background: the member may have refused only because the RELEASE of the previous holder had not
        arrived."""
        queue = self.next_queue()
        if queue is None:
            return
        if self.is_refused_by(queue):
            yield from self._look_for_others(queue)
        else:
            self._quorum.move_to_queue(self._request.key, queue)

    def still_wins(self, without: Answers) -> bool:
        """Called once the lock is acquired, with the members whose grants do not count, and why. Returns
        whether the lock is still acquired."""
        self.answers.update({m: why for m, why in without.items() if self._is_granted_by(m)})
        self.is_late = now() >= self.valid_until
        return self.grants() >= self._quorum.majority and not self.is_late

    def can_majority_vote(self) -> bool:
        """Returns whether enough members for a majority can vote. If so, the failure of a round means
        that another client may hold the lock. Otherwise no client can acquire the lock now."""
        able = sum(not self._is_unavailable(member) for member in self._quorum.all())
        return able >= self._quorum.majority

    def has_majority_answered(self) -> bool:
        """Returns whether a majority of the members has granted or refused."""
        voted = sum(not self._is_unavailable(member) for member in self.answers)
        return voted >= self._quorum.majority

    def is_reachable(self, member: int) -> bool:
        """Returns whether the member answers without an error, so that a wait at it can succeed."""
        return not self._quorum.is_silent(member) and not isinstance(self.answers.get(member), Exception)

    def final_error(self) -> Exception | None:
        """Returns an error if retries cannot get a majority: too many members call the request invalid,
        forbid it, or have data at the key. Otherwise returns None."""
        answers = self.answers.values()
        invalid = [answer for answer in answers if is_misuse(answer) or isinstance(answer, NotALockError)]
        forbidden = [answer for answer in answers if isinstance(answer, NoPermissionError)]
        if len(self._quorum.members) - len(invalid) - len(forbidden) >= self._quorum.majority:
            return None
        return invalid[0] if invalid else self.no_quorum()

    def no_quorum(self) -> LockError:
        text = "No majority can grant: " + report(self._quorum, self.answers)
        return error(NoQuorumError, text, self._request.name)

    def is_refused_by(self, member: int) -> bool:
        return member in self.answers and self.answers[member] in REFUSED

    def grants(self) -> int:
        return sum(self._is_granted_by(member) for member in self.answers)

    def _ask_others(self, since: float, end: float | None) -> Steps:
        """Called once the member of the current queue has granted. Asks the members that have not granted
        yet, up to `TRIES` times. Returns whether the lock is acquired. The validity counts from `since`."""
        for tries in range(TRIES):
            yield from self._ask([m for m in self._quorum.all() if not self._is_granted_by(m)])
            if (yield from self._win(since)):
                return True
            # If other clients wait in another queue, the round gives up early: this client and the head of
            # that queue each hold a part of the members, and keep each other from a majority.
            moves_on = self._has_waited and self.next_queue() not in (None, self._order[self._queue_index])
            has_ended = end is not None and now() >= end
            if self.is_late or has_ended or (moves_on and tries >= RETRIES_BEFORE_NEXT_QUEUE):
                return False
            yield Sleep(random.uniform(0.5, 1) * min(0.001 * 2**tries, LONGEST_PAUSE))
        return False

    def _ask(self, members: list[int], first: int | None = None) -> Steps:
        """Asks members for their votes. Returns once a majority has granted, or the answers show why none
        can: another client may hold the lock, or too few members can vote. Also waits for the answer of
        `first`, unless that member is silent."""
        key, name, lease, options, _ = self._request
        self.members_asked.update(members)
        other_answers = {member: answer for member, answer in self.answers.items() if member not in members}
        confirmations = self.confirmations

        def enough(answers: Answers, awaited: list[int]) -> bool:
            self.answers = {**other_answers, **answers}
            grants, majority = self.grants(), self._quorum.majority
            if first in awaited:
                return False
            if grants >= majority:
                return True
            if grants + len(awaited) >= majority:
                return False
            # This round cannot get a majority. It awaits further answers only until they show whether another
            # client may hold the lock.
            return self.has_majority_answered() or not self.can_majority_vote() or not awaited

        def on_answer(member: int, answer: Any) -> Steps | None:
            if isinstance(answer, int):
                confirmations.note(member)
            return self._look_if_refused(member, answer)

        command = _protocol.acquire(key, self.token, lease, options)

        def question(member: int) -> Steps:
            try:
                return (yield from _protocol.send_raising_for_data(command, name))
            except NO_ANSWER:
                self.unanswered_acquires.add(member)
                raise

        answers = yield from self._quorum.ask(members, question, enough, on_answer, self._voters)
        self.answers = {**other_answers, **answers}

    def _look_if_refused(self, member: int, answer: Any) -> Steps | None:
        """Called with each answer to ACQUIRE, also after the round. If the round has a majority already, a
        refusal by the member of a later queue shows that other clients may wait there: in that case, returns
        the steps that look for them. Otherwise returns None."""
        has_won = self.grants() >= self._quorum.majority and not self._waiters_are_ahead and not self.is_late
        is_later_queue = member in self._order[self._queue_index + 1 :]
        return self._look_for_others(member) if has_won and is_later_queue and answer in REFUSED else None

    def _look_for_others(self, queue: int) -> Steps:
        """Begins to look in the background for other clients in the queue of the member `queue`. Does nothing
        if this client looked a short while ago."""
        if self._quorum.contention.begin_looking_for_others(self._request.key):
            yield Begin(self._compare_holders(queue), self._quorum)

    def _compare_holders(self, queue: int) -> Steps:
        """Asks twice for the partial holds (those without a majority) at the member `queue`, one round trip
        apart: a RELEASE that was in flight should have arrived by the second time. A young hold that is there
        both times shows that other clients use the queue, and this client's waits move there. If all holds
        are old, the queue does not move, and this client does not join it."""
        quorum, key = self._quorum, self._request.key
        began = now()
        before = (yield from quorum.holders(key)).partial_holders(queue, self.token)
        yield Sleep(now() - began)
        after = (yield from quorum.holders(key)).partial_holders(queue, self.token)
        ages = [age for token, age in after.items() if token in before]
        if not ages:
            quorum.contention.allow_looking_again(key)
        elif min(ages) < PARTIAL_HOLD_MAX_AGE:
            quorum.move_to_queue(key, queue)

    def _win(self, since: float) -> Steps:
        """Returns whether the lock is acquired. A majority must have granted the lock. If a fence was
        requested, a majority must confirm one. The validity must not have ended: it counts from the confirm
        phase if there is one, otherwise from `since`."""
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
        self.valid_until = since + validity(self._request.lease / 1000)
        self.is_late = now() >= self.valid_until
        return not self.is_late

    def _confirm(self) -> Steps:
        """Sets one fence, the greatest that was granted, at a majority of the members: the confirm phase.
        Returns the time from which the validity counts; None if no majority confirms a fence."""
        key, lease, majority = self._request.key, self._request.lease, self._quorum.majority
        # Each pass confirms the fence, or finds a greater fence for the next pass, or drops members. After
        # one pass for each member and three more, the members will hardly agree any more.
        for _ in range(len(self._quorum.members) + 3):
            counted = {m: self.answers[m] for m in self.answers if self._is_granted_by(m)}
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

            answers = yield from self._quorum.ask(counted, question, enough, voters=self._voters)
            if confirming(answers) >= majority:
                self.fence = fence
                return since
            ahead = any(error_word(answer) == "FENCEAHEAD" for answer in answers.values())
            for member, answer in answers.items():
                # The next pass tries the greatest fence in `self.answers`, and asks only members that have a
                # fence there. So it omits a member that failed, or that no longer has the hold (None). A
                # member that calls the fence too far ahead (FENCEAHEAD) keeps the fence that it granted.
                if error_word(answer) != "FENCEAHEAD":
                    self.answers[member] = answer
            if ahead:
                # The clocks of the members that granted this fence or a greater one are ahead of the others.
                # These members no longer count.
                for member in counted:
                    if self._is_granted_by(member) and self.answers[member] >= fence:
                        self.answers[member] = ResponseError("FENCEAHEAD its clock is ahead of the others'")
        return None

    def _is_granted_by(self, member: int) -> bool:
        return isinstance(self.answers.get(member), int)

    def _is_unavailable(self, member: int) -> bool:
        """Returns whether the member cannot vote: it does not answer, or answers with an error that is no
        refusal."""
        if member not in self.answers:
            return self._quorum.is_silent(member)
        answer = self.answers[member]
        return isinstance(answer, Exception) and error_word(answer) not in REFUSAL_WORDS
