"""The members of a quorum: who they are, how they are asked, what they answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from redis.exceptions import LockError, RedisError

from ._attempt import NO_ANSWER
from ._hold import Steps, now
from ._protocol import Args

# How often members that have not answered are asked who they are.
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


class Ask:
    """A step: ask members in parallel, until there are `enough` answers. Answers what came: replies,
    errors."""

    def __init__(self, commands: Mapping[int, Args], enough: Callable[[Answers], bool]) -> None:
        self.commands = commands
        self.enough = enough


class Quorum:
    """Independent masters, one client each: three or five. Everybody must name the same ones."""

    def __init__(self, members: list[Any]) -> None:
        if not members:
            raise ValueError("a quorum needs at least one member")
        self.members = list(members)
        self.majority = len(members) // 2 + 1
        # Who each member was when it was last asked.
        self.run_ids: dict[int, str] = {}
        # When to ask those that have not answered.
        self.tell_apart_at = 0.0

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
        said who it is has no vote."""
        known = self.run_ids
        unknown = [member for member in range(len(self.members)) if member not in known]
        enough = len(known) >= self.majority
        if not unknown or (enough and now() < self.tell_apart_at):
            return
        self.tell_apart_at = now() + TELL_APART
        answers = yield Ask(dict.fromkeys(unknown, ("INFO", "server")), lambda _: False)
        for member, answer in answers.items():
            if isinstance(answer, NO_ANSWER):
                continue
            # Without the right to ask, nobody can tell.
            run_id = answer["run_id"] if isinstance(answer, dict) else f"{UNKNOWN}{member}"
            known[member] = run_id
            # Others can be finding out at the same time.
            if any(known[other] == run_id for other in list(known) if other != member):
                known.pop(member, None)
                raise ValueError(f"two members are the same server: {_address(self.members[member])}")


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
