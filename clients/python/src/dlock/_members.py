"""The members of a quorum: who they are, which of them answer, what they answered."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Callable

from redis.exceptions import LockError, TimeoutError

from . import _protocol
from ._attempt import NO_ANSWER, Owe
from ._clients import encoder
from ._contended import Contended
from ._hold import Owed, Steps, now
from ._protocol import Args

# In place of a run id that the user may not ask for.
UNKNOWN = "unknown "

# A silent member is asked one question at a time. One that has no answer for so long (s) is not counted on.
QUESTION = 2.0

# Of a resource with more holders it is not asked who they are.
MAX_HOLDERS = 100

Answers = dict[int, Any]
Heard = Callable[[int, Any], "Steps | None"]


class NoQuorumError(LockError):
    """Too few masters answered, or could grant. It is unknown whether somebody else holds the lock."""


class Begin:
    """A step: carry out these steps in the background, over all members or one."""

    def __init__(self, steps: Steps, member: int | None = None) -> None:
        self.steps = steps
        self.member = member


class Ask:
    """A step: ask members in parallel, until there are `enough` answers. Each is asked by steps of its own,
    which answer a reply or an error. Answers what came. Whatever comes, later ones too, is told to `heard`,
    with the run id of the server at the other end of the connection; it answers what to do there next."""

    def __init__(
        self,
        questions: Mapping[int, Steps],
        enough: Callable[[Answers], bool],
        heard: Callable[[int, Any, str | None], Steps | None],
    ) -> None:
        self.questions = questions
        self.enough = enough
        self.heard = heard


class Quorum:
    """Independent masters, one client each: three or five. Everybody must name the same ones."""

    def __init__(self, members: list[Any]) -> None:
        if not members:
            raise ValueError("a quorum needs at least one member")
        self.members = list(members)
        self.majority = len(members) // 2 + 1
        # Who each member was when it last answered.
        self.run_ids: dict[int, str] = {}
        self.contended = Contended()
        self.lookouts: dict[tuple[int, bytes], Any] = {}
        # Those that gave no answer when they were last asked: since when, and what came instead.
        self._silent: dict[int, tuple[float, Exception]] = {}
        # When a silent one was last asked.
        self._asked_at: dict[int, float] = {}
        # Those that are the same server as another.
        self._doubles: set[int] = set()

    def all(self) -> range:
        return range(len(self.members))

    def is_silent(self, member: int) -> bool:
        """Whether it did not answer when it was last asked: it is no place to queue."""
        return member in self._silent

    def get_encoder(self) -> Any:
        return encoder(self.members[0])

    # In which queue the clients meet. Each finds it for itself: the first one it can reach, or a later one
    # where it has met others.

    def order(self, key: bytes) -> list[int]:
        """The order in which the members' queues are tried."""
        order, noted = self._common_order(), self._noted(key)
        return order if noted is None else order[order.index(noted) :]

    def note_queue(self, key: bytes, queue: int) -> None:
        """Notes that others queue there, and takes along those who wait for it elsewhere: one by one they
        would take long to leave a queue, and the heads of two queues keep each other from a majority. From a
        later queue nobody goes back to an earlier one while both are in use."""
        order, noted = self._common_order(), self._noted(key)
        if noted is not None and order.index(noted) > order.index(queue):
            return
        self.contended.note_queue(key, queue)
        for (member, name), lookout in list(self.lookouts.items()):
            if name == key and member != queue:
                lookout.send_away()

    def _noted(self, key: bytes) -> int | None:
        queue = self.contended.queue(key)
        return None if queue is None or self.is_silent(queue) else queue

    def _common_order(self) -> list[int]:
        """The same for all clients, however they spell the addresses. Silent members come last."""

        def rank(member: int) -> tuple[bool, bool, str, str]:
            run_id = self.run_ids.get(member, UNKNOWN)
            unknown = run_id.startswith(UNKNOWN)
            return self.is_silent(member), unknown, run_id, _address(self.members[member])

        return sorted(self.all(), key=rank)

    # Asking.

    def ask(
        self,
        members: Iterable[int],
        command: Args,
        enough: Callable[[Answers, list[int]], bool],
        heard: Heard = lambda member, answer: None,
    ) -> Steps:
        """Asks members in parallel, until `enough` of the answers and of those whose answer is still awaited.
        Nobody waits for the silent while a majority answers: a hold would expire meanwhile."""
        asked_at = now()
        members = list(members)
        answers: Answers = {}
        questions: dict[int, Steps] = {}
        for member in members:
            if self.is_silent(member):
                if asked_at < self._asked_at.get(member, -math.inf) + QUESTION:
                    answers[member] = TimeoutError("it has not answered yet")
                    continue
                self._asked_at[member] = asked_at
            questions[member] = self._question(member, command, asked_at)

        def noted(member: int, answer: Any, run_id: str | None) -> Steps | None:
            self._note(member, answer, run_id)
            return None if member in self._doubles else heard(member, answer)

        def known(found: Answers) -> Answers:
            same = LockError("the same server as another member")
            return {**answers, **{m: same if m in self._doubles else found[m] for m in found}}

        def is_enough(found: Answers) -> bool:
            return enough(known(found), self._awaited(members, known(found)))

        found = yield Ask(questions, is_enough, noted)
        if not is_enough(found):
            for member in questions.keys() - found.keys():
                self.note_silence(member, TimeoutError("no answer in time"))
        return known(found)

    def _question(self, member: int, command: Args, asked_at: float) -> Steps:
        # It fell silent after this was asked: whoever asked does not wait any longer.
        since, why = self._silent.get(member, (-math.inf, None))
        if since > asked_at:
            return why
        try:
            return (yield command)
        except Exception as why:
            return why

    def _awaited(self, asked: list[int], answers: Answers) -> list[int]:
        """Those of the asked whose answer is waited for."""
        some = len(self.members) - len(self._silent) >= self.majority
        return [m for m in asked if m not in answers and not (some and m in self._silent)]

    def _note(self, member: int, answer: Any, run_id: str | None) -> None:
        self._asked_at.pop(member, None)
        if isinstance(answer, NO_ANSWER):
            self.note_silence(member, answer)
            return
        # First written and then compared: of two that answer at once, at least one sees the other. Two
        # addresses of one server would vote twice.
        self.run_ids[member] = run_id or f"{UNKNOWN}{member}"
        if any(self.run_ids[member] == self.run_ids.get(other) for other in self.all() if other != member):
            self._doubles.add(member)
        self._silent.pop(member, None)

    def note_silence(self, member: int, why: Exception) -> None:
        if isinstance(why, NO_ANSWER):
            self._silent.setdefault(member, (now(), why))

    def owe(self, owed: Mapping[int, Owed], enough: Callable[[], bool]) -> Owe:
        """A step: what is owed by these members. Those that do not answer it need not be asked something else
        to be found silent."""
        for member, each in owed.items():
            each.failed = functools.partial(self.note_silence, member)
        return Owe(owed, enough)

    def meet(self) -> Steps:
        """Asks those who they are that were never asked: only then there is an order of queues."""
        strangers = [m for m in self.all() if m not in self.run_ids and not self.is_silent(m)]
        if strangers:
            yield from self.ask(strangers, ("INFO", "server"), lambda answers, awaited: not awaited)
        self.refuse_doubles()

    def refuse_doubles(self) -> None:
        if self._doubles:
            double = self._doubles.pop()
            self.run_ids.pop(double, None)
            raise ValueError(f"two members are the same server: {_address(self.members[double])}")

    # Who has it.

    def holders(self, key: bytes) -> Steps:
        """The tokens that hold the resource, with the ms since each grant, by member; None where that is not
        known."""
        command = _protocol.inspect(key, MAX_HOLDERS)
        answers = yield from self.ask(self.all(), command, lambda answers, awaited: not awaited)
        return [_protocol.holders(answers.get(member, False), MAX_HOLDERS) for member in self.all()]

    def has_holder(self, holders: list[dict[bytes, int] | None]) -> bool:
        """Whether one holder has a majority."""
        known = [there for there in holders if there is not None]
        tokens = {token for there in known for token in there}
        return any(sum(token in there for there in known) >= self.majority for token in tokens)

    def may_move(self, queue: int, holders: list[dict[bytes, int] | None]) -> bool:
        """Whether some of the holders at `queue` hold a majority, or may do so: if not, nobody releases what
        they have there, and its queue does not move."""
        there = holders[queue]
        return not there or any(
            sum(known is None or token in known for known in holders) >= self.majority for token in there
        )

    def parts(self, key: bytes, at: int) -> Steps:
        """The holds at a member that are none of a majority, as far as is known."""
        holders = yield from self.holders(key)

        def votes(token: bytes) -> int:
            return sum(there is not None and token in there for there in holders)

        return {token: held for token, held in (holders[at] or {}).items() if votes(token) < self.majority}

    def somebody_waits(self, key: bytes, at: int) -> Steps:
        """Whether somebody waits there; None where that is not known, for lack of the right to ask too."""
        answers = yield from self.ask([at], _protocol.waiters(key), lambda answers, awaited: not awaited)
        queue = answers.get(at)
        return len(queue) > 0 if isinstance(queue, list) else None


class Holders:
    """The members that hold one token's hold, as far as is known."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        # Who each was, and when it said so.
        self._noted: dict[int, tuple[str | None, float]] = {}

    def note(self, member: int) -> None:
        self._noted[member] = self._quorum.run_ids.get(member), now()

    def has_forgotten(self, member: int, lease: float) -> bool:
        """Whether a member that does not hold it has forgotten it: it never did, is another server since, or
        was not reached for a lease. Otherwise somebody has taken it away there, and it stays so."""
        run_id, when = self._noted.get(member, (None, 0.0))
        if run_id != self._quorum.run_ids.get(member) or now() >= when + lease:
            return True
        self._noted[member] = run_id, math.inf
        return False


def run_id(info: Any) -> str | None:
    """Who answers INFO like that."""
    found = re.search(
        r"^run_id:(\w+)", info if isinstance(info, str) else info.decode("utf-8", "replace"), re.MULTILINE
    )
    return found and found[1]


def _address(client: Any) -> str:
    options = client.connection_pool.connection_kwargs
    return str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")


def report(quorum: Quorum, answers: Answers) -> str:
    def said(member: int) -> str:
        answer = answers.get(member, "no answer yet")
        return "granted" if isinstance(answer, int) else "taken" if answer is None else str(answer)

    return "; ".join(f"{_address(each)}: {said(member)}" for member, each in enumerate(quorum.members))
