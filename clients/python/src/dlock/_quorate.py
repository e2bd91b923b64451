"""What a lock over a quorum asks a majority, once it is held. How it is acquired is in `_quorum.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from . import _protocol
from ._core import Core
from ._extension import Extension
from ._hold import Hold, OwedRelease, Steps
from ._members import Answers, NoQuorumError, Quorum, report
from ._protocol import Args, Key, error, word
from ._quorum import QuorumAttempt


class Quorate(Core):
    """A `Core` whose questions go to a majority."""

    redis: Quorum

    def __init__(
        self, quorum: Quorum, name: Key, *arguments: Any, fenced: bool = False, **options: Any
    ) -> None:
        super().__init__(quorum, name, *arguments, **options)
        self.fenced = fenced

    def _attempt(self, token: bytes | None) -> Any:
        if self.permits is not None:
            raise ValueError("permits need a single server: majorities cannot count them")
        return QuorumAttempt(self.redis, self._key, self.name, token, self._lease(), self._terms, self.fenced)

    def _extension(self, attempt: Any) -> Callable[[Hold, int], Steps]:
        # A token that was given may be released elsewhere, while this object asks for it again.
        if attempt.given:
            return super()._extension(attempt)
        return Extension(self.redis, self._key, self._terms, attempt.holders, self._decided).ask

    def _ask_extend(self, token: bytes, ttl: int) -> Steps:
        command = _protocol.extend(self._key, token, ttl)
        return int((yield from self._decided(command, lambda answer: answer == 1)))

    def _ask_holds(self, token: bytes) -> Steps:
        command = _protocol.holds(self._key, token)
        return int((yield from self._decided(command, lambda answer: answer > 0)))

    def _ask_pttl(self, *token: bytes) -> Steps:
        """The lease left on a majority, ms."""
        lefts: list[int] = []
        command = _protocol.pttl(self._key, *token)
        held = yield from self._decided(command, lambda answer: answer >= 0, lefts)
        return sorted(lefts, reverse=True)[self.redis.majority - 1] if held else -2

    def _ask_release(self, token: bytes, lasts: float) -> Steps:
        hold = self._hold()
        times = 1 if hold is None else hold.releases
        asked = None if hold is None else hold.members_asked
        # What was never asked for is not held: nobody owes its release to a member that is away.
        members = self.redis.all() if asked is None else sorted(asked)
        owed = {member: OwedRelease(self._key, token, lasts, times=times) for member in members}
        yield self.redis.owe(owed, lambda: self._released(owed) is not None)
        released = self._released(owed)
        if released is None:
            raise error(NoQuorumError, "Not confirmed yet: the release goes on in the background", self.name)
        return True if self._released(owed, surely=True) else None if released else False

    def _released(self, owed: Mapping[int, OwedRelease], *, surely: bool = False) -> int | None:
        def vote(member: int) -> bool | None:
            if member not in owed:
                return False
            each = owed[member]
            if each.ended is None:
                return None
            return each.ended > 0 or (each.unanswered and not surely)

        return self._majority([vote(member) for member in self.redis.all()])

    def _majority(self, votes: list[bool | None]) -> int | None:
        """1 or 0 once it is certain; None stands for no vote."""
        if votes.count(True) >= self.redis.majority:
            return 1
        return 0 if len(self.redis.members) - votes.count(False) < self.redis.majority else None

    def _decided(
        self,
        command: Args,
        yes: Callable[[Any], bool],
        found: list[int] | None = None,
        heard: Callable[[int, Any], Steps | None] = lambda member, answer: None,
    ) -> Steps:
        """Whether a majority says yes."""

        def votes(answers: Answers) -> list[bool | None]:
            return [_vote(answers.get(member), yes) for member in self.redis.all()]

        def enough(answers: Answers, awaited: list[int]) -> bool:
            return not awaited or self._majority(votes(answers)) is not None

        answers = yield from self.redis.ask(self.redis.all(), command, enough, heard)
        decided = self._majority(votes(answers))
        if decided is None:
            raise error(NoQuorumError, "Too few masters answered: " + report(self.redis, answers), self.name)
        if found is not None:
            found += [answer for answer in answers.values() if _vote(answer, yes)]
        return decided


def _vote(answer: Any, yes: Callable[[Any], bool]) -> bool | None:
    if isinstance(answer, Exception) or answer is None:
        return False if word(answer) == "WRONGTYPE" else None
    return yes(answer)
