"""A lock over several independent masters: a majority of them decides. The rules are those of the Rust
client, which a model checker has searched (`crates/client/src/quorum`). As `_core.py`, it yields steps and
does no I/O.

Not here: entering the queue of one master does not probe the others, so a hold that only that master still
has delays those who wait until its lease ends. Nobody goes on to a later queue where others wait, and a
master that does not answer can cost each round the time limit of a vote."""

from __future__ import annotations

import itertools
import random
from typing import Any

from redis.exceptions import ResponseError

from . import _protocol
from ._attempt import LATE, NO_ANSWER, Attempt, Owe
from ._hold import OwedRelease, Sleep, Steps, now, trusted
from ._members import Answers, Ask, Holders, NoQuorumError, Quorum, To, report, word
from ._protocol import Args, Key, error
from ._waits import KEEP

# How often those whose votes were split try again before they say "taken".
SPLITS = 8
# How often one that has waited asks the others again: their holds may be about to be given back.
BRIEF_TRIES = 8


class QuorumAttempt:
    """One acquisition. Each round has a token of its own, unless the caller gave one."""

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
        self.fence: int | None = None
        self.valid_until = 0.0
        self.token = token or b""
        self.given = token is not None
        self.holders = Holders(quorum)
        self._quorum = quorum
        self._key = key
        self._name = name
        self._terms = terms
        self._fenced = fenced
        self._queued: Attempt | None = None
        self._answers: Answers = {}

    def owe(self) -> Owe:
        lasts = max(self.lease / 1000, KEEP) + KEEP
        times = 1 if self.given else 2
        owed = {
            member: OwedRelease(self._key, self.token, lasts, times=times)
            for member in range(len(self._quorum.members))
        }
        # A round begins after those that answered have let go.
        reached = [member for member, answer in self._answers.items() if not isinstance(answer, NO_ANSWER)]
        return Owe(owed, lambda: all(owed[member].ended is not None for member in reached))

    def close(self) -> None:
        if self._queued is not None:
            self._queued.close()

    def run(self, sleep: float, blocking: bool, end: float | None) -> Steps:
        pause = 0.05
        for tries in itertools.count():
            yield from self._quorum.tell_apart()
            began = now()
            self._begin()
            granted = yield from self._at_once(blocking)
            if granted:
                return True
            took = now() - began
            votes = self._grants()
            taken = self._refusals() > len(self._quorum.members) - self._quorum.majority
            yield self.owe()
            if not taken:
                # Those who were away may be back.
                self._quorum.tell_apart_at = 0.0
            # Votes can be split between those who asked at the same moment: one of them must win.
            if taken and votes and tries < SPLITS and not self.given:
                yield Sleep(random.uniform(0, 2 * took * (tries + 1)))
                continue
            if taken and blocking and (end is None or now() < end) and not self.given:
                if (yield from self._in_line(sleep, end)):
                    return True
                yield self.owe()
            elif not taken and (not blocking or self.given):
                raise error(NoQuorumError, "No majority can grant: " + self._report(), self._name)
            if not blocking or self.given or (end is not None and now() >= end):
                return False
            wait = random.uniform(0.5, 1) * pause
            pause = min(pause * 2, 2.0)
            yield Sleep(wait if end is None else max(min(wait, end - now()), 0))
        return False

    def _begin(self) -> None:
        if not self.given:
            self.token = _protocol.fresh_token()
        self._answers = {}
        self.holders = Holders(self._quorum)
        self.asked = True

    def _at_once(self, blocking: bool) -> Steps:
        since = now()
        yield from self._ask(list(self._quorum.run_ids))
        # One whose queue says no is not overtaken with the votes of the others.
        if blocking and self._answers.get(self._quorum.order()[0], 0) is None:
            return False
        return (yield from self._won(since))

    def _in_line(self, sleep: float, end: float | None) -> Steps:
        """Waits in the queue of one master, and asks the others once it grants."""
        answered = [m for m in self._answers if not isinstance(self._answers[m], Exception)]
        reachable = [m for m in self._quorum.order() if m in answered]
        if not reachable:
            return False
        self._begin()
        first = reachable[0]
        self._queued = Attempt(self._key, self._name, self.token, self.lease, self._terms)
        try:
            granted = yield To(first, self._queued.run(sleep, True, end))
        except NO_ANSWER as why:
            self._answers[first] = why
            return False
        finally:
            self._queued.close()
        if not granted:
            return False
        self._answers[first] = self._queued.fence
        self.holders.note(first)
        # Counts from the claim: when the grant began is unknown, but the claim has set the lease anew.
        since = self._queued.valid_until - trusted(self.lease / 1000)
        for tries in range(BRIEF_TRIES):
            yield from self._ask([m for m in list(self._quorum.run_ids) if not self._granted(m)])
            if (yield from self._won(since)):
                return True
            yield Sleep(random.uniform(0.5, 1) * 0.001 * 2**tries)
        return False

    def _ask(self, members: Any) -> Steps:
        command = _protocol.acquire(self._key, self.token, self.lease, self._terms)
        before = dict(self._answers)
        asked = dict.fromkeys(members, command)

        def enough(answers: Answers) -> bool:
            self._answers = {**before, **answers}
            missing = len(asked) - len(answers)
            grants = self._grants()
            return grants >= self._quorum.majority or grants + missing < self._quorum.majority

        for member in asked:
            before.pop(member, None)
        holders = self.holders

        def heard(member: int, answer: Any) -> None:
            if isinstance(answer, int):
                holders.note(member)

        answers = yield Ask(asked, enough, heard)
        self._answers = {**before, **answers}

    def _won(self, since: float) -> Steps:
        if self._grants() < self._quorum.majority:
            return False
        if self._fenced:
            confirmed = yield from self._confirm()
            if confirmed is None:
                return False
            since = confirmed
        elif self._quorum.majority == 1:
            self.fence = self._answers[0]
        self.valid_until = since + trusted(self.lease / 1000)
        return now() < self.valid_until

    def _confirm(self) -> Steps:
        """Brings a majority of those whose grant counts to one fence. Answers from when validity counts."""
        for _ in range(LATE + len(self._quorum.members)):
            counted = {m: self._answers[m] for m in self._answers if self._granted(m)}
            if len(counted) < self._quorum.majority:
                return None
            fence = max(counted.values())
            since = now()
            command = _protocol.confirm(self._key, self.token, fence, self.lease)

            def yes(answers: Answers, fence: int = fence) -> int:
                return sum(answer == fence for answer in answers.values())

            def enough(answers: Answers, asked: int = len(counted), yes: Any = yes) -> bool:
                hoped_for = yes(answers) + asked - len(answers)
                return bool(yes(answers) >= self._quorum.majority or hoped_for < self._quorum.majority)

            answers = yield Ask(dict.fromkeys(counted, command), enough)
            if yes(answers) >= self._quorum.majority:
                self.fence = fence
                return since
            ahead = any(word(answer) == "FENCEAHEAD" for answer in answers.values())
            for member, answer in answers.items():
                # A greater one is the next to try. What is not held any longer does not count.
                if isinstance(answer, int) or answer is None:
                    self._answers[member] = answer
            if ahead:
                # The fence came from a clock that is ahead: go on without the masters that granted it.
                for member in counted:
                    if self._granted(member) and self._answers[member] >= fence:
                        self._answers[member] = ResponseError("FENCEAHEAD its clock is ahead of the others'")
        return None

    def _granted(self, member: int) -> bool:
        return isinstance(self._answers.get(member), int)

    def _grants(self) -> int:
        return sum(self._granted(member) for member in self._answers)

    def _refusals(self) -> int:
        return sum(answer is None or word(answer) == "WRONGTYPE" for answer in self._answers.values())

    def _report(self) -> str:
        return report(self._quorum, self._answers)
