"""A lock over a quorum: its requests to the members, and the majority of their answers. `_quorum_attempt.py`
acquires the lock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from redis.exceptions import RedisError, ResponseError

from . import _protocol
from ._clients import check_client
from ._hold import Hold, OwedRelease, UnansweredLeases
from ._lock_core import C, Core, Number
from ._members import Confirmations, NoQuorumError, OnAnswer, Question, Quorum, report
from ._owners import Owner
from ._protocol import Args, DataError, Key, Steps, error, is_misuse, word
from ._quorum_attempt import QuorumAttempt
from ._steps import Answers, Begin

# The vote of a member, for messages.
STATES = {
    True: "held",
    False: "not held",
    None: "held, but an earlier, shorter extension has no answer",
}


class QuorumCore(Core[C]):
    """The base class of `Redlock`. Asks all members of a quorum, and the majority decides."""

    redis: Quorum[Any]

    def __init__(
        self,
        quorum: C,
        name: Key,
        timeout: Number | None = None,
        sleep: Number = 0.1,
        blocking: bool = True,
        blocking_timeout: Number | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
        *,
        fenced: bool = False,
        shared: bool = False,
        permits: int | None = None,
        reentrant: bool = False,
        auto_renew: bool | None = None,
        on_lost: Callable[[str], object] | None = None,
        owner: str | bytes | None = None,
    ) -> None:
        super().__init__(
            quorum,
            name,
            timeout,
            sleep,
            blocking,
            blocking_timeout,
            thread_local,
            raise_on_release_error,
            shared=shared,
            permits=permits,
            reentrant=reentrant,
            auto_renew=auto_renew,
            on_lost=on_lost,
            owner=owner,
        )
        self.fenced = fenced

    def _attempt(self, token: bytes | None, owner: Owner) -> Any:
        if self.permits is not None:
            raise ValueError("permits need a single server: majorities cannot count them")
        return QuorumAttempt(
            self.redis,
            key=self._key,
            name=self.name,
            token=token,
            lease=self._lease(),
            next_terms=lambda: self._terms(owner),
            owner=owner,
            fenced=self.fenced,
        )

    def _extension(self, attempt: Any) -> Callable[[Hold, int], Steps]:
        # Another object may release a token from the caller: asking for the hold again could then revive it.
        confirmations = None if attempt.token_given else attempt.confirmations
        return Extension(self.redis, self._key, self._mode, confirmations, self._decided).ask

    def _ask_extend(self, token: bytes, ttl: int, unanswered: UnansweredLeases) -> Steps:
        question = _extend(self._key, token, ttl, unanswered)
        return int((yield from self._decided(question, _extended(ttl, unanswered))))

    def _ask_holds(self, token: bytes) -> Steps:
        command = _protocol.holds(self._key, token)

        def question(member: int) -> Steps:
            return _protocol.send_or(command, 0)

        return int((yield from self._decided(question, lambda member, answer: answer > 0)))

    def _ask_pttl(self, token: bytes) -> Steps:
        """Returns the ms for which a majority still has the hold; -2 if no majority has it."""
        lefts: list[int] = []
        command = _protocol.pttl(self._key, token)

        def question(member: int) -> Steps:
            return _protocol.send_or(command, -2)

        held = yield from self._decided(question, lambda member, answer: answer >= 0, lefts)
        return sorted(lefts, reverse=True)[self.redis.majority - 1] if held else -2

    def _ask_locked(self) -> Steps:
        def question(member: int) -> Steps:
            return _protocol.is_locked(self._key, self.name)

        return bool((yield from self._decided(question, lambda member, answer: bool(answer))))

    def _ask_release(self, token: bytes, hold: Hold | None, lasts: float) -> Steps:
        orphaned = set() if hold is None else hold.orphaned
        asked = None if hold is None else hold.members_asked
        # A member that was never asked for the lock needs no release.
        members = self.redis.all() if asked is None else sorted(asked)

        def release(member: int) -> OwedRelease:
            # `orphaned` is read at each repetition, as a member may fail to answer its ACQUIRE later.
            times = 2 if member in orphaned else 1
            return OwedRelease(self._key, token, lasts, times=times, repeats=lambda: member in orphaned)

        owed = {member: release(member) for member in members}
        # A wait of the owner for a hold that the background still releases would be no deadlock.
        failed = (lambda: None) if hold is None else hold.rename_owner
        yield self.redis.owe(owed, lambda: self._released(owed) is not None, failed)
        released = self._released(owed)
        if released is None:
            raise error(
                NoQuorumError, "Not confirmed yet: the release continues in the background", self.name
            )
        if self._released(owed, only_certain=True):
            return True
        return None if released else False

    def _released(self, owed: Mapping[int, OwedRelease], *, only_certain: bool = False) -> int | None:
        def vote(member: int) -> bool | None:
            if member not in owed:
                return False
            release = owed[member]
            if release.ended is None:
                return None
            return release.ended > 0 or (release.unanswered and not only_certain)

        return self._majority([vote(member) for member in self.redis.all()])

    def _majority(self, votes: list[bool | None]) -> int | None:
        """Returns 1 if a majority votes True, 0 if no majority can any more, and None while missing votes
        (None) could decide."""
        if votes.count(True) >= self.redis.majority:
            return 1
        return 0 if len(self.redis.members) - votes.count(False) < self.redis.majority else None

    def _decided(
        self,
        question: Question,
        yes: Callable[[int, Any], bool | None],
        accepted: list[int] | None = None,
        on_answer: OnAnswer = lambda member, answer: None,
    ) -> Steps:
        """Asks all members. Returns whether `yes` is true for the answers of a majority. Appends the answers
        for which `yes` is true to `accepted`. Raises `NoQuorumError` if too few members answered."""

        def vote(member: int, answers: Answers) -> bool | None:
            answer = answers.get(member)
            if isinstance(answer, Exception):
                # The hold is gone: another command has stored data under the key.
                return False if type(answer) is ResponseError and word(answer) == "WRONGTYPE" else None
            return None if answer is None else yes(member, answer)

        def votes(answers: Answers) -> list[bool | None]:
            return [vote(member, answers) for member in self.redis.all()]

        def enough(answers: Answers, awaited: list[int]) -> bool:
            return not awaited or self._majority(votes(answers)) is not None

        answers = yield from self.redis.ask(self.redis.all(), question, enough, on_answer)
        decided = self._majority(votes(answers))
        if decided is None:
            for answer in answers.values():
                if isinstance(answer, DataError):
                    raise answer
            misuse = [answer for answer in answers.values() if is_misuse(answer)]
            if len(self.redis.members) - len(misuse) < self.redis.majority:
                raise misuse[0]
            states = {
                member: answer if isinstance(answer, Exception) else STATES[vote(member, answers)]
                for member, answer in answers.items()
            }
            raise error(NoQuorumError, "Too few masters answered: " + report(self.redis, states), self.name)
        if accepted is not None:
            accepted += [answers[member] for member in answers if vote(member, answers)]
        return decided


def check_quorum(quorum: Any, user: str, *, is_async: bool) -> None:
    """Raises TypeError unless ``quorum`` is one of clients of the right kind. ``user`` names the
    class that needs the quorum, for the message."""
    if not isinstance(quorum, Quorum):
        raise TypeError(f"{user} needs a dlock.Quorum of clients, and got {type(quorum).__name__}")
    for member in quorum.members:
        check_client(member, user, is_async=is_async, single=True)


class Extension:
    """Sends EXTEND to all members, and restores the hold at the members that have forgotten it.

    A member that restarted without its data, or was unreachable for a whole lease, has forgotten the hold. If
    the members forgot it one after the other, the hold would be lost, although a majority had it at every
    moment. So such a member is asked for the hold again, but only after a majority has extended without it.
    The new grant does not count as a vote; the answer of that member to a later EXTEND does.
    `crates/quorum/src/extension.rs` says why that is safe.

    While an EXTEND or CONFIRM with a shorter lease is unanswered at a member, that member's vote for a longer
    lease does not count: it may still set the shorter one."""

    def __init__(
        self,
        quorum: Quorum[Any],
        key: bytes,
        mode: Args,
        confirmations: Confirmations | None,
        decided: Callable[..., Steps],
    ) -> None:
        """``confirmations``: None if the hold must not be restored at members that have forgotten it.
        ``decided``: see `QuorumCore._decided`."""
        self._quorum = quorum
        self._key = key
        self._mode = mode
        self._confirmations = confirmations
        self._decided = decided

    def ask(self, hold: Hold, lease: int) -> Steps:
        """Sets the lease, in ms. Returns 1 if a majority has set it, else 0."""
        extended = False
        not_held: dict[int, Steps] = {}

        def on_answer(member: int, answer: Any) -> Steps | None:
            if self._confirmations is None:
                return None
            if answer == 1:
                self._confirmations.note(member)
            elif answer == 0:
                not_held[member] = self._restore(self._confirmations, member, hold, lease)
            # May run in another thread while the loop below runs: `pop` ensures that only one of the two
            # carries out the steps.
            return not_held.pop(member, None) if extended else None

        question = _extend(self._key, hold.token, lease, hold.unanswered)
        yes = _extended(lease, hold.unanswered)
        extended = bool((yield from self._decided(question, yes, on_answer=on_answer)))
        for member in list(not_held) if extended else ():
            steps = not_held.pop(member, None)
            if steps is not None:
                yield Begin(steps, self._quorum, member)
        return int(extended)

    def _restore(self, confirmations: Confirmations, member: int, hold: Hold, lease: int) -> Steps:
        # The request asks for a queue position, as another client may hold the lock there. The next EXTEND
        # retains the position, and shows whether the lock was granted. The request names no owner, as the
        # owner does not wait for this grant.
        command = _protocol.acquire(self._key, hold.token, lease, (*self._mode, "QUEUE", lease))
        try:
            if not confirmations.has_forgotten(member, lease / 1000) or hold.over or hold.is_lost():
                return
            hold.orphaned.add(member)
            if hold.members_asked is not None:
                hold.members_asked.add(member)
            if (yield from _protocol.send(command)) is not None:
                confirmations.note(member)
        except RedisError:
            pass  # the member may be in its grace period, for example: the next extension asks it again


def _extend(key: bytes, token: bytes, lease: int, unanswered: UnansweredLeases) -> Question:
    def command(name: str) -> Args:
        return _protocol.extend(key, token, lease, name)

    return lambda member: unanswered.send(member, "DLOCK.EXTEND", command, lease)


def _extended(lease: int, unanswered: UnansweredLeases) -> Callable[[int, Any], bool | None]:
    """Returns the vote of an answer to EXTEND: None if the member may still set a shorter lease."""

    def vote(member: int, answer: Any) -> bool | None:
        return None if answer == 1 and unanswered.shortest(member) < lease else bool(answer == 1)

    return vote
