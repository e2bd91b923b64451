"""The members of a quorum: who they are, how they are asked, what they answered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Callable

from redis.exceptions import LockError, RedisError

from ._attempt import NO_ANSWER
from ._hold import Steps, now
from ._protocol import Args

# How often members are asked who they are: one that was restarted is another server.
TELL_APART = 10.0

# In place of a run id that the user may not ask for.
UNKNOWN = "unknown "

Answers = dict[int, Any]


class NoQuorumError(LockError):
    """Too few masters answered, or could grant. It is unknown whether somebody else holds the lock."""


class To:
    """A step: carry out these steps, over one member."""

    def __init__(self, member: int, steps: Steps) -> None:
        self.member = member
        self.steps = steps


class Begin:
    """A step: carry out these steps over one member, in the background."""

    def __init__(self, member: int, steps: Steps) -> None:
        self.member = member
        self.steps = steps


class Ask:
    """A step: ask members in parallel, until there are `enough` answers. Answers what came: replies,
    errors. Whatever comes, later ones too, is told to `heard`, which answers what to do there next."""

    def __init__(
        self,
        commands: Mapping[int, Args],
        enough: Callable[[Answers], bool],
        heard: Callable[[int, Any], Steps | None] = lambda member, answer: None,
    ) -> None:
        self.commands = commands
        self.enough = enough
        self.heard = heard


class Quorum:
    """Independent masters, one client each: three or five. Everybody must name the same ones."""

    def __init__(self, members: list[Any]) -> None:
        if not members:
            raise ValueError("a quorum needs at least one member")
        self.members = list(members)
        self.majority = len(members) // 2 + 1
        # Who each member was when it was last asked.
        self.run_ids: dict[int, str] = {}
        # When to ask again.
        self.tell_apart_at = 0.0
        # One that is the same server as another.
        self._double: int | None = None

    def order(self) -> list[int]:
        """The order in which everybody tries the members' queues, however they spell the addresses."""

        def rank(member: int) -> tuple[bool, str, str]:
            run_id = self.run_ids.get(member, UNKNOWN)
            return run_id.startswith(UNKNOWN), run_id, _address(self.members[member])

        return sorted(range(len(self.members)), key=rank)

    def get_encoder(self) -> Any:
        first = self.members[0]
        return first.get_encoder() if hasattr(first, "get_encoder") else first.connection_pool.get_encoder()

    def tell_apart(self) -> Steps:
        """Finds the members that may vote. Two addresses of one server would vote twice, so one that has not
        said who it is has no vote. Those that are known are asked again without waiting for them."""
        unknown = [member for member in range(len(self.members)) if member not in self.run_ids]
        if len(self.run_ids) < self.majority or now() >= self.tell_apart_at:
            self.tell_apart_at = now() + TELL_APART
            commands = dict.fromkeys(range(len(self.members)), ("INFO", "server"))
            yield Ask(commands, lambda answers: all(each in answers for each in unknown), self.heard)
        double, self._double = self._double, None
        if double is not None:
            raise ValueError(f"two members are the same server: {_address(self.members[double])}")

    def heard(self, member: int, answer: Any) -> None:
        """Who a member says it is."""
        if isinstance(answer, NO_ANSWER):
            return
        # Without the right to ask, nobody can tell.
        run_id = answer["run_id"] if isinstance(answer, dict) else f"{UNKNOWN}{member}"
        if any(known == run_id for other, known in list(self.run_ids.items()) if other != member):
            self.run_ids.pop(member, None)
            self._double = member
        else:
            self.run_ids[member] = run_id


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


def word(answer: Any) -> str:
    return str(answer).split(" ", 1)[0] if isinstance(answer, RedisError) else ""


def _address(client: Any) -> str:
    options = client.connection_pool.connection_kwargs
    return str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")


def report(quorum: Quorum, answers: Answers) -> str:
    def said(member: int) -> str:
        answer = answers.get(member, "no answer yet")
        return "granted" if isinstance(answer, int) else "taken" if answer is None else str(answer)

    return "; ".join(f"{_address(each)}: {said(member)}" for member, each in enumerate(quorum.members))
