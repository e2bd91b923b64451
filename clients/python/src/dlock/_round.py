"""One round of an acquisition from a quorum, with one token: votes in, verdict out. The rules are those of
the Rust client, which a model checker has searched (`crates/quorum`). As `_core.py`, it yields
steps and does no I/O."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from . import _protocol
from ._attempt import LATE
from ._hold import Owed, Sleep, Steps, now, trusted
from ._members import Answers, Holders, Quorum, report
from ._protocol import Args, Key, is_misuse, word
from ._queue import Waiter
from ._waits import KEEP

# So often one whose turn has come asks the others again: what its predecessor releases may be on the way.
TRIES = 12
# So often before it goes to those who queue elsewhere.
BRIEF_TRIES = 5
# The longest pause between two of these tries (s).
LONGEST_PAUSE = 0.032

# Errors that are a no.
REFUSALS = "WRONGTYPE", "DEADLOCK", "QUEUEFULL"


class Request(NamedTuple):
    key: bytes
    name: Key
    lease: int
    terms: Args
    fenced: bool


class Round:
    """`order`: at whose queues it waits, or whose it respects."""

    def __init__(self, quorum: Quorum, request: Request, token: bytes, order: list[int]) -> None:
        self.token = token
        self.fence: int | None = None
        self.valid_until = 0.0
        self.answers: Answers = {}
        self.holders = Holders(quorum)
        # Those that may hold something for the token.
        self.members_asked: set[int] = set()
        self._quorum = quorum
        self._request = request
        self._order = order
        # Whose queue decides the turn: an index of the order.
        self._queue = 0
        self._has_waited = False

    def at_once(self) -> Steps:
        """Asks all members at once. The first of the order, where others queue, is heard before a majority
        counts, and if it refuses, nobody may wait there: a newcomer could overtake the whole queue by a
        majority of the others."""
        since = now()
        first = self._order[0] if self._order else None
        yield from self._ask(list(self._quorum.all()), first)
        if self.grants() < self._quorum.majority:
            return False
        if first is not None and self.has_refused(first):
            somebody_waits = yield from self._quorum.somebody_waits(self._request.key, first)
            if somebody_waits is not False:
                return False
        return (yield from self._won(since))

    def in_order(self) -> Steps:
        """Asks the first reachable member of the order, and the others once that one has granted: of several
        clients, only one at a time gets so far."""
        for queue in self._order:
            since = now()
            yield from self._ask([queue], queue)
            if self._has_granted(queue):
                return (yield from self._turn(since, None))
            if self.has_refused(queue):
                return False
            self._queue += 1
        return False

    def queued(self, sleep: float, end: float | None, may_move_on: bool) -> Steps:
        """Waits in the queue of the first reachable member of the order, and asks all members once that one
        has granted.

        It is unknown when a grant after a wait began, and its lease can be short. So it is no vote: asked
        again together with the others, that member renews the lease, and validity counts from there."""
        key, name, lease, terms, _ = self._request
        self._has_waited = True
        for queue in self._order:
            is_last = self._queue + 1 == len(self._order)
            waiter = Waiter(self._quorum, queue, key, name, self.token, lease, terms)
            self.members_asked.add(queue)
            answer = yield from waiter.wait(sleep, end, may_move_on and self._quorum.majority > 1, is_last)
            if answer is True:
                return (yield from self._turn(now(), end))
            self.answers[queue] = answer
            if answer is None:
                return False
            # Not a RELEASE: it would end what this member grants later. Nobody keeps a position in two
            # queues.
            yield self._quorum.owe({queue: Owed(_protocol.cancel(key, self.token), KEEP)}, lambda: True)
            self._queue += 1
        return False

    def queue(self) -> int | None:
        """Whose queue decides the turn."""
        return self._order[self._queue] if self._queue < len(self._order) else None

    def next_queue(self) -> int | None:
        """Where to queue next, if not at the first member as ever. One whose turn came, and who is refused by
        a later member, meets others who queue there, as the earlier ones are out of their reach; it goes to
        them, for they cannot come. The queue of a member that refuses, while others grant or nobody has a
        majority, does not move: the next one does. And whoever has waited in a later queue than the first
        stays there, as the others do: each that went back alone would keep their head from a majority."""
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

    def may_be_taken(self) -> bool:
        """Whether enough members could vote, and too many refused. Otherwise nobody can acquire it now."""
        able = sum(not self._is_unavailable(member) for member in self._quorum.all())
        return able >= self._quorum.majority

    def is_reachable(self, member: int) -> bool:
        """Whether waiting there makes sense."""
        return not self._quorum.is_silent(member) and not isinstance(self.answers.get(member), Exception)

    def misuse(self) -> Exception | None:
        """What so many members answer, to a request that they call invalid, that no majority can ever grant
        it."""
        errors = [answer for answer in self.answers.values() if is_misuse(answer)]
        possible = len(self._quorum.members) - len(errors) >= self._quorum.majority
        return None if possible else errors[0]

    def has_refused(self, member: int) -> bool:
        return member in self.answers and (
            self.answers[member] is None or word(self.answers[member]) == "WRONGTYPE"
        )

    def grants(self) -> int:
        return sum(self._has_granted(member) for member in self.answers)

    def report(self) -> str:
        return report(self._quorum, self.answers)

    def _turn(self, since: float, end: float | None) -> Steps:
        """Its turn has come: asks the others, whose holds may be about to be given back."""
        for tries in range(TRIES):
            yield from self._ask([m for m in self._quorum.all() if not self._has_granted(m)])
            if (yield from self._won(since)):
                return True
            # Its turn has come in another queue than that of those who have the rest. Two that each kept a
            # part until a missing member is back would keep everybody from a majority.
            goes_on = self._has_waited and self.next_queue() not in (None, self._order[self._queue])
            is_late = self.grants() >= self._quorum.majority or (end is not None and now() >= end)
            if is_late or (goes_on and tries >= BRIEF_TRIES):
                return False
            yield Sleep(random.uniform(0.5, 1) * min(0.001 * 2**tries, LONGEST_PAUSE))
        return False

    def _ask(self, members: list[int], first: int | None = None) -> Steps:
        """Until a majority has granted, or cannot; `first` is heard before."""
        key, _, lease, terms, _ = self._request
        self.members_asked.update(members)
        before = {member: answer for member, answer in self.answers.items() if member not in members}
        holders = self.holders

        def enough(answers: Answers, awaited: list[int]) -> bool:
            self.answers = {**before, **answers}
            grants, majority = self.grants(), self._quorum.majority
            if first in awaited:
                return False
            return grants >= majority or grants + len(awaited) < majority

        def heard(member: int, answer: Any) -> None:
            if isinstance(answer, int):
                holders.note(member)

        command = _protocol.acquire(key, self.token, lease, terms)
        answers = yield from self._quorum.ask(members, command, enough, heard)
        self.answers = {**before, **answers}

    def _won(self, since: float) -> Steps:
        if self.grants() < self._quorum.majority:
            return False
        if self._request.fenced:
            confirmed = yield from self._confirm()
            if confirmed is None:
                return False
            since = confirmed
        elif self._quorum.majority == 1:
            self.fence = self.answers[0]
        self.valid_until = since + trusted(self._request.lease / 1000)
        return now() < self.valid_until

    def _confirm(self) -> Steps:
        """Brings a majority of those whose grant counts to one fence. Answers from when validity counts."""
        majority = self._quorum.majority
        for _ in range(LATE + len(self._quorum.members)):
            counted = {m: self.answers[m] for m in self.answers if self._has_granted(m)}
            if len(counted) < majority:
                return None
            fence = max(counted.values())
            since = now()
            command = _protocol.confirm(self._request.key, self.token, fence, self._request.lease)

            def yes(answers: Answers, fence: int = fence) -> int:
                return sum(answer == fence for answer in answers.values())

            def enough(answers: Answers, awaited: list[int], yes: Any = yes) -> bool:
                return bool(yes(answers) >= majority or yes(answers) + len(awaited) < majority)

            answers = yield from self._quorum.ask(counted, command, enough)
            if yes(answers) >= majority:
                self.fence = fence
                return since
            ahead = any(word(answer) == "FENCEAHEAD" for answer in answers.values())
            for member, answer in answers.items():
                # A greater one is the next to try. What is not held any longer does not count.
                if isinstance(answer, int) or answer is None:
                    self.answers[member] = answer
            if ahead:
                # The fence came from a clock that is ahead: go on without the masters that granted it.
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
