"""The logic of a lock over a quorum, without I/O: its requests to the members, and the majority of their
answers. `_quorum_attempt.py` acquires the lock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from redis.exceptions import LockError, RedisError, ResponseError, TimeoutError

from . import _protocol, _reading
from ._clients import check_client
from ._hold import Hold, OwedRelease, UnansweredLeases
from ._lock_core import INCIDENTS, TAKEN_AWAY, C, Core, Number, check_flag, why_lost
from ._members import Confirmations, NoQuorumError, OnAnswer, Question, Quorum, all_answered, report
from ._protocol import Args, Key, NotALockError, Options, Steps, error, error_word, is_misuse
from ._quorum_attempt import QuorumAttempt
from ._steps import Answers, Begin

# Texts for the votes of members in error messages.
STATES = {
    True: "held",
    False: "not held",
    None: "held, but an earlier, shorter extension has no answer",
}


class QuorumCore(Core[C]):
    """The base class of `Redlock`. Asks all members of a quorum, and the majority decides."""

    redis: Quorum[Any]
    _no_majority = (NoQuorumError,)

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
        label: str | bytes | None = None,
        delay: Number | None = None,
        ephemeral: bool = False,
        at_least: Number | None = None,
        max_hold: Number | None = None,
        durable: tuple[int, Number] | None = None,
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
            label=label,
            delay=delay,
            ephemeral=ephemeral,
            at_least=at_least,
            max_hold=max_hold,
            durable=durable,
        )
        if ephemeral:
            raise ValueError("ephemeral needs a single server: a hold of a quorum outlasts its connections")
        if durable is not None:
            raise ValueError("durable needs a single server: a majority of a quorum outlasts a lost server")
        check_flag("fenced", fenced)
        self.fenced = fenced

    def _attempt(self, token: bytes | None, options: Options) -> Any:
        if self.permits is not None:
            raise ValueError("permits need a single server: majorities cannot count them")
        return QuorumAttempt(
            self.redis,
            key=self._key,
            name=self.name,
            token=token,
            lease=self._lease(),
            options=options,
            fenced=self.fenced,
        )

    def _extension(self, attempt: Any) -> Callable[[Hold, int], Steps]:
        # With `confirmations` (when each member last confirmed the hold), the extension sends ACQUIRE to
        # members that have forgotten the hold. If the caller gave the token, another object may have released
        # the hold, and the ACQUIRE would bring the hold back.
        confirmations = None if attempt.token_given else attempt.confirmations
        return Extension(self.redis, self._key, self._options, confirmations, self._ask_majority).ask

    def _check_delay(self) -> Steps:
        """Raises `LockError` if a member does not accept the DELAY of the releases of this lock. Asks the
        members that are not known to accept it. Returns those that have not answered, each with its error."""
        quorum, longest = self.redis, self._longest_delay()
        known = quorum.longest_delays

        def missing() -> list[int]:
            run_ids = quorum.run_ids
            return [member for member in quorum.all() if longest > known.get(run_ids.get(member, ""), -1)]

        def question(member: int) -> Steps:
            return _protocol.send_or_default(self._probe(longest), if_wrong_type=0)

        def on_answer(member: int, answer: Any) -> None:
            if answer == 0:
                run_id = quorum.run_ids[member]
                known[run_id] = max(longest, known.get(run_id, -1))

        asked = missing()
        if not asked:
            return {}
        answers = yield from quorum.ask(asked, question, all_answered, on_answer)
        refusals = {member: answer for member, answer in answers.items() if is_misuse(answer)}
        if refusals:
            member, answer = min(refusals.items())
            zero = (yield from quorum.ask_all(self._probe(0))).get(member)
            raise self._delay_refused(zero is not None and not is_misuse(zero), answer) from answer
        no_answer = TimeoutError("no answer in time")
        return {member: answers.get(member) or no_answer for member in missing()}

    def _require_delay(self) -> Steps:
        without = yield from self._check_delay()
        if len(without) > len(self.redis.members) - self.redis.majority:
            answers = {member: without.get(member, 0) for member in self.redis.all()}
            raise self._undecided(answers, lambda member: "answered")

    def _ask_extend(self, token: bytes, ttl: int, unanswered: UnansweredLeases) -> Steps:
        question = _extend_question(self._key, token, ttl, unanswered)
        return int((yield from self._ask_majority(question, _extension_vote(ttl, unanswered))))

    def _ask_holds(self, token: bytes) -> Steps:
        command = _protocol.holds(self._key, token)

        def question(member: int) -> Steps:
            return _protocol.send_or_default(command, if_wrong_type=0)

        return int((yield from self._ask_majority(question, lambda member, answer: answer > 0)))

    def _ask_pttl(self, token: bytes) -> Steps:
        """Returns the ms for which a majority still has the hold; -2 if no majority has it."""
        remaining: list[int] = []
        command = _protocol.pttl(self._key, token)

        def question(member: int) -> Steps:
            return _protocol.send_or_default(command, if_wrong_type=-2)

        held = yield from self._ask_majority(question, lambda member, answer: answer >= 0, remaining)
        return sorted(remaining, reverse=True)[self.redis.majority - 1] if held else -2

    def _ask_inspections(self) -> Steps:
        """Returns the answers of all members to INSPECT; the states that they show, None for a free lock; and
        the first holder of each state that has one."""
        answers = yield from self.redis.ask_all(_protocol.inspect(self._key, 1))
        seen = [
            _reading.inspection(answer) for answer in answers.values() if not isinstance(answer, Exception)
        ]
        return answers, seen, [each.holders[0] for each in seen if each is not None and each.holders]

    def _ask_obstacle(self) -> Steps:
        """Returns a `Holder` that a member shows: that of most members, or None; and the seconds until a
        majority is not closed."""
        _, seen, holders = yield from self._ask_inspections()
        tokens = [holder.token for holder in holders]
        delays = sorted(0.0 if each is None else each.delay for each in seen)
        # A member without an answer may be closed, or not: it does not count.
        closed = delays[self.redis.majority - 1] if len(delays) >= self.redis.majority else 0.0
        return max(holders, key=lambda holder: tokens.count(holder.token), default=None), closed

    def _ask_holder(self) -> Steps:
        """Returns the `Holder` that a majority shows, or None. Raises `NoQuorumError` if no majority
        answered."""
        answers, seen, holders = yield from self._ask_inspections()
        if len(seen) < self.redis.majority:
            raise self._undecided(answers, lambda member: "answered")
        tokens = [holder.token for holder in holders]
        return next((each for each in holders if tokens.count(each.token) >= self.redis.majority), None)

    def _ask_why(self, token: bytes, hold: Hold | None) -> Steps:
        # A fence of a quorum is no time on the clock of a member.
        answers = yield from self.redis.ask_all(_protocol.log(self._key, INCIDENTS))
        reasons = [why_lost(answer, token, None) for answer in answers.values()]
        return next((why for why in reasons if why != TAKEN_AWAY), TAKEN_AWAY)

    def _ask_free(self) -> Steps:
        def question(member: int) -> Steps:
            command = _protocol.inspect(self._key, 1)
            return int((yield from _protocol.send_raising_for_data(command, self.name)) is None)

        return bool((yield from self._ask_majority(question, lambda member, answer: answer == 1)))

    def _ask_fence(self, token: bytes, lease: int, unanswered: UnansweredLeases) -> Steps:
        # The members' own fences do not rise over the quorum.
        yield from ()
        return None

    def _guarding(self, command: tuple[Any, ...]) -> Steps:
        yield from ()
        text = "guard needs a single server. Over a quorum, write with fenced() on the server of the data"
        raise error(LockError, text, self.name)

    def _converting(
        self, action: str, shared: bool, blocking: bool | None, blocking_timeout: Number | None
    ) -> Steps:
        yield from ()
        raise error(
            LockError, f"Cannot {action} over a quorum: release the lock and acquire it again", self.name
        )

    def _ask_locked(self) -> Steps:
        def question(member: int) -> Steps:
            return _protocol.is_locked(self._key, self.name)

        return bool((yield from self._ask_majority(question, lambda member, answer: bool(answer))))

    def _ask_release(self, token: bytes, hold: Hold | None, expires_after: float) -> Steps:
        """Returns whether the release ended the hold; None if an unanswered RELEASE may have ended it."""
        owed = yield from self._owe_release(token, hold, expires_after)
        released = self._released(owed)
        if released is None:
            raise error(
                NoQuorumError, "Not confirmed yet: the release continues in the background", self.name
            )
        refusals = [each.refusal for each in owed.values() if each.refusal is not None]
        if released and refusals and not self._released(owed, keeps_closed=True):
            # No majority is known to keep the lock closed.
            raise refusals[0]
        if self._released(owed, only_certain=True):
            return True
        return None if released else False

    def _owe_release(self, token: bytes, hold: Hold | None, expires_after: float) -> Steps:
        """Lets the background release a hold, and waits until the answers decide, but not for long. Returns
        the releases by their members."""
        # `repeat_at`: the members that may execute an unanswered ACQUIRE after the RELEASE. There, one answer
        # to the RELEASE is not enough, and the RELEASE is repeated. The set is the hold's own, not a copy: if
        # an ACQUIRE that is still under way gets no answer, its member is added. `repeats` reads the set
        # before each repetition.
        repeat_at = set() if hold is None else hold.members_to_release_again
        asked = None if hold is None else hold.members_asked
        # A member that was never asked for the lock needs no release.
        members = self.redis.all() if asked is None else sorted(asked)
        delay = self._delay(hold)

        def release(member: int) -> OwedRelease:
            answers_needed = 2 if member in repeat_at else 1
            return OwedRelease(
                self._key,
                token,
                expires_after,
                answers_needed=answers_needed,
                repeats=lambda: member in repeat_at,
                delay=delay,
            )

        owed = {member: release(member) for member in members}

        def is_decided() -> bool:
            released = self._released(owed)
            # The last answers show whether a majority keeps the lock closed.
            return released == 0 or (released == 1 and self._released(owed, keeps_closed=True) is not None)

        step = self.redis.owe(owed, is_decided)
        if hold is not None:
            hold.release_sent = True
        yield step
        return owed

    def _released(
        self,
        owed: Mapping[int, OwedRelease],
        *,
        only_certain: bool = False,
        keeps_closed: bool = False,
    ) -> int | None:
        """Returns 1 if the releases ended the hold at a majority of the members, and 0 if they did not.
        Returns None while missing answers could still decide this. If a RELEASE got no answer, and its
        repetition found no hold, the RELEASE counts as having ended the hold, unless ``only_certain``. With
        ``keeps_closed``, a member that has refused the DELAY does not count."""

        def vote(member: int) -> bool | None:
            if member not in owed:
                return False
            release = owed[member]
            if keeps_closed and release.refusal is not None:
                return False
            if release.removed is None:
                return None
            return release.removed > 0 or (release.unanswered and not only_certain)

        return self._majority([vote(member) for member in self.redis.all()])

    def _majority(self, votes: list[bool | None]) -> int | None:
        """Returns 1 if a majority of the members voted True, and 0 if too many voted False for that. Returns
        None while missing votes (None) could still decide."""
        if votes.count(True) >= self.redis.majority:
            return 1
        return 0 if len(self.redis.members) - votes.count(False) < self.redis.majority else None

    def _ask_majority(
        self,
        question: Question,
        vote_of: Callable[[int, Any], bool | None],
        accepted: list[int] | None = None,
        on_answer: OnAnswer = lambda member, answer: None,
    ) -> Steps:
        """Asks all members. `vote_of` returns the vote of an answer; None does not count. Returns 1 if a
        majority votes True, else 0. Appends the answers with a vote of True to `accepted`. Raises
        `NoQuorumError` if too few members voted to decide."""

        def vote(member: int, answers: Answers) -> bool | None:
            answer = answers.get(member)
            if isinstance(answer, Exception):
                # WRONGTYPE: another command has stored data under the key, so the hold is gone.
                return False if type(answer) is ResponseError and error_word(answer) == "WRONGTYPE" else None
            return None if answer is None else vote_of(member, answer)

        def votes(answers: Answers) -> list[bool | None]:
            return [vote(member, answers) for member in self.redis.all()]

        def enough(answers: Answers, awaited: list[int]) -> bool:
            return not awaited or self._majority(votes(answers)) is not None

        answers = yield from self.redis.ask(self.redis.all(), question, enough, on_answer)
        decided = self._majority(votes(answers))
        if decided is None:
            for answer in answers.values():
                if isinstance(answer, NotALockError):
                    raise answer
            raise self._undecided(answers, lambda member: STATES[vote(member, answers)])
        if accepted is not None:
            accepted += [answers[member] for member in answers if vote(member, answers)]
        return decided

    def _undecided(self, answers: Answers, state: Callable[[int], str]) -> Any:
        """Returns the error for answers that do not decide. ``state``: describes a member's answer that is no
        error."""
        misuse = [answer for answer in answers.values() if is_misuse(answer)]
        if len(self.redis.members) - len(misuse) < self.redis.majority:
            return misuse[0]
        states = {
            member: answer if isinstance(answer, Exception) else state(member)
            for member, answer in answers.items()
        }
        return error(NoQuorumError, "Too few masters answered: " + report(self.redis, states), self.name)


def check_quorum(quorum: Any, needed_by: str, *, is_async: bool) -> None:
    """Raises TypeError unless ``quorum`` is a `Quorum` of clients for asyncio, or for threads if not
    ``is_async``. ``needed_by``: the class that needs the quorum, for the message."""
    if not isinstance(quorum, Quorum):
        raise TypeError(f"{needed_by} needs a dlock.Quorum of clients, and got {type(quorum).__name__}")
    for member in quorum.members:
        check_client(member, needed_by, is_async=is_async, single=True)


class Extension:
    """Sends EXTEND to all members, and restores the hold at the members that have forgotten it.

    A member that restarted without its data, or was unreachable for a whole lease, has forgotten the hold. If
    two of three members forgot it, even days apart, the hold would be left without a majority. So the client
    sends ACQUIRE to such a member, but only after a majority has extended the hold. The new grant does not
    count as a vote; the answer of that member to a later EXTEND does. The header of
    `crates/quorum/src/extension.rs` says why restoring is safe."""

    def __init__(
        self,
        quorum: Quorum[Any],
        key: bytes,
        options: Options,
        confirmations: Confirmations | None,
        ask_majority: Callable[..., Steps],
    ) -> None:
        """``confirmations``: None if the hold must not be restored. ``ask_majority``: see
        `QuorumCore._ask_majority`."""
        self._quorum = quorum
        self._key = key
        self._options = options
        self._confirmations = confirmations
        self._ask_majority = ask_majority

    def ask(self, hold: Hold, lease: int) -> Steps:
        """Sets the lease, in ms. Returns 1 if a majority has set it, else 0."""
        extended = False
        # For each member that does not have the hold: the steps that restore the hold there.
        restores: dict[int, Steps] = {}

        def on_answer(member: int, answer: Any) -> Steps | None:
            if self._confirmations is None:
                return None
            if answer == 1:
                self._confirmations.note(member)
            elif answer == 0:
                restores[member] = self._restore(self._confirmations, member, hold, lease)
            # This function may run in another thread while the loop below runs: `pop` gives the steps to only
            # one of the two.
            return restores.pop(member, None) if extended else None

        question = _extend_question(self._key, hold.token, lease, hold.unanswered)
        vote_of = _extension_vote(lease, hold.unanswered)
        extended = bool((yield from self._ask_majority(question, vote_of, on_answer=on_answer)))
        for member in list(restores) if extended else ():
            steps = restores.pop(member, None)
            if steps is not None:
                yield Begin(steps, self._quorum, member)
        return int(extended)

    def _restore(self, confirmations: Confirmations, member: int, hold: Hold, lease: int) -> Steps:
        # Another client may hold the lock at this member, so the ACQUIRE asks for a queue position. The next
        # extension shows whether the lock was granted. If not, that extension sends another ACQUIRE, which
        # retains the position. The ACQUIRE names no owner: in its search for deadlocks, the server would
        # otherwise count the owner as waiting.
        command = _protocol.acquire(self._key, hold.token, lease, self._options.waiting(lease))
        try:
            # A member without the hold may not have forgotten it: an operator may have ended the hold there.
            if not confirmations.has_forgotten(member, lease / 1000) or hold.over or hold.is_lost():
                return
            hold.members_to_release_again.add(member)
            if hold.members_asked is not None:
                hold.members_asked.add(member)
            if (yield from _protocol.send(command)) is not None:
                confirmations.note(member)
        except RedisError:
            pass  # for example GRACE: the next extension tries again


def _extend_question(key: bytes, token: bytes, lease: int, unanswered: UnansweredLeases) -> Question:
    # `send` passes "DLOCK.EXTEND" as a string that counts how often it is sent.
    def extend_as(command_name: str) -> Args:
        return _protocol.extend(key, token, lease, command_name)

    return lambda member: unanswered.send(member, "DLOCK.EXTEND", extend_as, lease)


def _extension_vote(lease: int, unanswered: UnansweredLeases) -> Callable[[int, Any], bool | None]:
    """Returns the function that returns the vote of an answer to EXTEND. The vote of a member that has
    extended the hold does not count (None) while an earlier, unanswered request may still shorten the lease
    there."""

    def vote(member: int, answer: Any) -> bool | None:
        return None if answer == 1 and unanswered.shortest(member) < lease else bool(answer == 1)

    return vote
