"""The members of a quorum: which servers they are, which of them do not answer, and the order of their
queues."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Generic, TypeVar

from redis.exceptions import LockError, NoPermissionError, TimeoutError

from . import _protocol
from ._arguments import checking
from ._clients import LIBRARY_NAME, address, check_client, encoder, is_async_client
from ._clock import now
from ._hold import Owed, OwedRelease
from ._holders import Holders
from ._protocol import NO_ANSWER, Args, Steps
from ._steps import Answers, Ask, Owe, Peer
from ._waits import Contention

# Prefix of the entry in `Quorum.run_ids` for a member that refuses INFO to the user.
UNKNOWN = "unknown "

# Error that replaces the answer of a member that refuses INFO to the user. The member may be the same
# server as another member, and this server would vote twice.
UNIDENTIFIED = "cannot tell whether it is the same server as another member: let its user run INFO"

# Least pause between two requests to a member that does not answer, in seconds.
QUESTION_PAUSE = 2.0

# If a lock has this many holders or more, the client treats them as unknown.
MAX_HOLDERS = 100

# Hex digits of the digest in the library name.
DIGEST_LENGTH = 8

# A function that returns the steps (see `_steps.py`) of a request to the member with this number.
Question = Callable[[int], Steps]
# A function that receives a member's answer, and returns the steps to carry out at that member next, or None.
OnAnswer = Callable[[int, Any], "Steps | None"]
C_co = TypeVar("C_co", covariant=True)


class NoQuorumError(LockError):
    """Too few masters answered, or could grant the lock. Whether another client holds the lock is unknown.
    The message has the state of each master."""


class Quorum(Generic[C_co]):
    """Three or five independent masters, with one client for each: all clients for threads, or all for
    asyncio. All processes must name the same masters."""

    @checking("dlock.Quorum")
    def __init__(self, members: Iterable[C_co]) -> None:
        if not isinstance(members, Iterable):
            raise TypeError(f"dlock.Quorum needs a list of clients, and got {type(members).__name__}")
        self.members = list(members)
        if not self.members:
            raise ValueError("a quorum needs at least one member")
        self.is_async = is_async_client(self.members[0])
        for member in self.members:
            check_client(member, "each member of a dlock.Quorum", is_async=self.is_async, single=True)
        self.majority = len(self.members) // 2 + 1
        # The run id of each member, from its last answer.
        self.run_ids: dict[int, str] = {}
        # By the run id of a server: the longest DELAY of a RELEASE, in ms, that it is known to accept.
        self.longest_delays: dict[str, int] = {}
        self.contention = Contention()
        # The `QueueWatch` of each queue in which this client waits, by the member and the key of the lock.
        self.queue_watches: dict[tuple[int, bytes], Any] = {}
        # The silent members, which did not answer the last request: the time of the failure, and the error.
        self._silent: dict[int, tuple[float, Exception]] = {}
        # By silent member: the time of the last request to it.
        self._asked_at: dict[int, float] = {}
        # The members that are the same server as another member.
        self._duplicate_members: set[int] = set()
        # By member: the last library name that was sent, and the server that received it.
        self._sent_names: dict[int, tuple[Peer, str]] = {}

    def all(self) -> range:
        return range(len(self.members))

    def is_silent(self, member: int) -> bool:
        """Returns whether the member did not answer the last request. This client does not queue at a silent
        member."""
        return member in self._silent

    def get_encoder(self) -> Any:
        return encoder(self.members[0])

    def library_name(self) -> str:
        """Returns the name of the client's connections in CLIENT LIST. For a quorum it contains the number of
        members and, once all run ids are known, their digest: `dlock-client(q3-1a2b3c4d)`. Clients with the
        same members have the same name, in every language."""
        if len(self.members) == 1:
            return LIBRARY_NAME
        run_ids = sorted(self.run_ids.get(member, UNKNOWN) for member in self.all())
        if any(run_id.startswith(UNKNOWN) for run_id in run_ids):
            return f"{LIBRARY_NAME}(q{len(self.members)})"
        digest = hashlib.sha1(",".join(run_ids).encode(), usedforsecurity=False).hexdigest()
        return f"{LIBRARY_NAME}(q{len(self.members)}-{digest[:DIGEST_LENGTH]})"

    # The order of the queues.

    def order(self, key: bytes) -> list[int]:
        """Returns the members in the order in which this client tries their queues: from the start queue on
        (see `Contention`), or all members if there is none."""
        order, start_queue = self._common_order(), self._start_queue(key)
        return order if start_queue is None else order[order.index(start_queue) :]

    def move_to_queue(self, key: bytes, queue: int) -> None:
        """Makes the queue of the member `queue` the start queue, because other clients wait there. All waits
        of this client that are in other queues move to the start queue at once. If some stayed, there would
        be two queues. The head of each would get the lock from some of the members, and neither from a
        majority. Does nothing if the start queue comes later in the order: waits move only from an earlier
        queue to a later one."""
        order, start_queue = self._common_order(), self._start_queue(key)
        if start_queue is not None and order.index(start_queue) > order.index(queue):
            return
        self.contention.move_to(key, queue)
        for (member, name), watch in list(self.queue_watches.items()):
            if name == key and member != queue:
                watch.make_waits_leave()

    def _start_queue(self, key: bytes) -> int | None:
        """Returns the member of the start queue. None if there is none, or that member is silent."""
        queue = self.contention.start_queue(key)
        return None if queue is None or self.is_silent(queue) else queue

    def earlier_queues(self, queue: int) -> list[int]:
        """Returns the members before the member `queue` in the order of a client for which none is silent:
        the queues in which other clients may wait."""
        order = sorted(self.all(), key=self._rank)
        return order[: order.index(queue)]

    def _common_order(self) -> list[int]:
        """Returns all members in an order that is the same for all clients, however they spell the addresses:
        by run id. Silent members are last."""
        return sorted(self.all(), key=lambda member: (self.is_silent(member), self._rank(member)))

    def _rank(self, member: int) -> tuple[bool, str, str]:
        run_id = self.run_ids.get(member, UNKNOWN)
        return run_id.startswith(UNKNOWN), run_id, address(self.members[member])

    # Requests.

    def ask(
        self,
        members: Iterable[int],
        question: Question,
        enough: Callable[[Answers, list[int]], bool],
        on_answer: OnAnswer = lambda member, answer: None,
        voters: Voters | None = None,
    ) -> Steps:
        """Asks members in parallel. Returns the answers once `enough` returns True for them. `enough`
        receives the answers so far, and the members whose answers are still awaited. Silent members (see
        `is_silent`) are not awaited while the other members are a majority: the wait would use up a part of
        the lease. An operation that asks more than once passes its `voters` each time."""
        voters = Voters() if voters is None else voters
        asked_at = now()
        members = list(members)
        answers: Answers = {}
        questions: dict[int, Steps] = {}
        for member in members:
            if self.is_silent(member):
                if asked_at < self._asked_at.get(member, -math.inf) + QUESTION_PAUSE:
                    answers[member] = TimeoutError("it has not answered yet")
                    continue
                self._asked_at[member] = asked_at
            questions[member] = self._question(member, question(member), asked_at)

        # By member: the error that takes the place of an answer that does not count.
        not_counted: dict[int, Exception] = {}

        def handle_answer(member: int, answer: Any, peer: Peer) -> Steps | None:
            self.record_answer(member, answer, peer)
            if member in self._duplicate_members or not voters.admit(member, answer, peer):
                not_counted[member] = LockError("the same server as another member")
            elif peer.run_id is None and len(self.members) > 1 and not isinstance(answer, Exception):
                not_counted[member] = NoPermissionError(UNIDENTIFIED)
            next_steps = None if member in not_counted else on_answer(member, answer)
            return self._add_library_name(member, answer, peer, next_steps)

        def with_errors(found: Answers) -> Answers:
            return {**answers, **{member: not_counted.get(member, found[member]) for member in found}}

        def is_enough(found: Answers) -> bool:
            return enough(with_errors(found), self._awaited(members, with_errors(found)))

        found = yield Ask(questions, is_enough, handle_answer)
        if not is_enough(found):
            for member in questions.keys() - found.keys():
                self.record_silence(member, TimeoutError("no answer in time"))
        return with_errors(found)

    def ask_all(self, command: Args) -> Steps:
        """Sends the same command to all members, and waits for every answer."""
        return self.ask(self.all(), lambda member: _protocol.send(command), all_answered)

    def _question(self, member: int, question: Steps, asked_at: float) -> Steps:
        # Commands to one member are sent one after the other. The member may have failed to answer an earlier
        # one while this command waited. Then this command is not sent, and its answer is the same error.
        since, why = self._silent.get(member, (-math.inf, None))
        if since > asked_at:
            return why
        try:
            return (yield from question)
        except Exception as why:
            return why

    def _awaited(self, asked: list[int], answers: Answers) -> list[int]:
        """Returns the members whose answers are still awaited."""
        has_majority = len(self.members) - len(self._silent) >= self.majority
        return [m for m in asked if m not in answers and not (has_majority and m in self._silent)]

    def record_answer(self, member: int, answer: Any, peer: Peer) -> None:
        """Records what an answer shows about the member: its run id, whether it is silent, and whether it is
        the same server as another member."""
        self._asked_at.pop(member, None)
        if isinstance(answer, NO_ANSWER):
            self.record_silence(member, answer)
            return
        # Two threads may record two addresses of one server at the same time. Each writes the run id before
        # it compares, so at least one of them finds the run id of the other.
        self.run_ids[member] = peer.run_id or f"{UNKNOWN}{member}"
        others = [m for m in self.all() if m != member and m not in self._duplicate_members]
        if any(self.run_ids[member] == self.run_ids.get(other) for other in others):
            self._duplicate_members.add(member)
        else:
            self._duplicate_members.discard(member)
        self._silent.pop(member, None)

    def record_silence(self, member: int, why: Exception) -> None:
        if isinstance(why, NO_ANSWER):
            self._silent.setdefault(member, (now(), why))

    def _add_library_name(self, member: int, answer: Any, peer: Peer, steps: Steps | None) -> Steps | None:
        """Returns the steps after an answer: `steps`, and the command that sets the library name if the
        server has not received the present name."""
        name = self.library_name()
        if isinstance(answer, NO_ANSWER) or self._sent_names.get(member) == (peer, name):
            return steps
        self._sent_names[member] = peer, name
        return _set_name(name, steps)

    def owe(
        self,
        owed: Mapping[int, Owed],
        enough: Callable[[], bool],
    ) -> Owe:
        """Returns the step that sends each member of ``owed`` its owed command (see `_hold.Owed`). A RELEASE
        is not confirmed by the server of another member. A member that does not answer becomes silent."""

        def confirms(member: int, removed: int, peer: Peer) -> bool:
            self.record_answer(member, removed, peer)
            return member not in self._duplicate_members

        for member, each in owed.items():
            each.on_failure = functools.partial(self.record_silence, member)
            # A CANCEL is not repeated if another member's server has answered it: the token may wait there.
            if isinstance(each, OwedRelease):
                each.confirms = functools.partial(confirms, member)
        return Owe(owed, enough)

    def identify_members(self) -> Steps:
        """Asks the members with unknown run ids, as the order of the queues depends on the run ids.
        Raises ValueError if two members are the same server."""
        unidentified = [m for m in self.all() if m not in self.run_ids and not self.is_silent(m)]
        if unidentified:
            command = "INFO", "server"
            yield from self.ask(unidentified, lambda member: _protocol.send(command), all_answered)
        self.refuse_duplicate_members()

    def refuse_duplicate_members(self) -> None:
        """Raises ValueError if two addresses are the same server."""
        try:
            member = self._duplicate_members.pop()
        except KeyError:
            return  # not an `if` before it, as another thread may remove the last member meanwhile
        # Forgets the member, so that the next acquisition asks it for its run id again.
        self.run_ids.pop(member, None)
        raise ValueError(f"two members are the same server: {address(self.members[member])}")

    def holders(self, key: bytes) -> Steps:
        """Returns the `Holders` of the lock."""
        answers = yield from self.ask_all(_protocol.inspect(key, MAX_HOLDERS))
        # False if the member did not answer. None is the answer for a free lock.
        holders = [_protocol.holders(answers.get(member, False), MAX_HOLDERS) for member in self.all()]
        return Holders(holders, self.majority, sum(map(_protocol.is_closed, answers.values())))

    def has_waiters(self, key: bytes, at: int) -> Steps:
        """Returns whether clients wait in the queue of the member `at`. None if it does not show its
        waiters."""
        command = _protocol.waiters(key, 1)
        answers = yield from self.ask([at], lambda member: _protocol.send(command), all_answered)
        queue = answers.get(at)
        return len(queue) > 0 if isinstance(queue, list) else None


class Voters:
    """The servers that have answered in one operation, each as one member. The address of a member may
    meanwhile lead to the server of another member, and that of the other member to a third server. Even then
    no server may vote twice."""

    def __init__(self) -> None:
        # By run id: the member.
        self._members: dict[str, int] = {}

    def admit(self, member: int, answer: Any, peer: Peer) -> bool:
        """Returns False if the server has answered as another member."""
        if peer.run_id is None or isinstance(answer, Exception):
            return True
        # Atomic, as several threads may call this function at the same time.
        return self._members.setdefault(peer.run_id, member) == member


class Confirmations:
    """The time at which each member last confirmed that it has the hold of one token."""

    def __init__(self, quorum: Quorum[Any]) -> None:
        self._quorum = quorum
        # By member: its run id at the confirmation, and the time of the confirmation.
        self._last: dict[int, tuple[str | None, float]] = {}

    def note(self, member: int) -> None:
        """Records that the member has granted or extended the hold."""
        self._last[member] = self._quorum.run_ids.get(member), now()

    def has_forgotten(self, member: int, lease: float) -> bool:
        """Called when a member has answered that it does not have the hold. ``lease``: in seconds.

        Returns True if the member has forgotten the hold, and may be asked for it again: the member never
        confirmed it, confirmed it more than a lease ago, or its server was restarted or replaced since the
        confirmation. Otherwise the hold was ended there on purpose, for example by an operator. Then later
        calls return False even after the lease, unless the server was restarted or replaced meanwhile."""
        run_id, when = self._last.get(member, (None, 0.0))
        if run_id != self._quorum.run_ids.get(member) or now() >= when + lease:
            return True
        # With this time, the lease never counts as over.
        self._last[member] = run_id, math.inf
        return False


def all_answered(answers: Answers, awaited: list[int]) -> bool:
    return not awaited


def report(quorum: Quorum[Any], answers: Answers) -> str:
    """Returns the state of each member as one line of text."""

    def state(member: int) -> str:
        answer = answers.get(member, "no answer yet")
        if isinstance(answer, int):
            return "granted"
        return "taken" if answer is None else str(answer)

    return "; ".join(f"{address(each)}: {state(member)}" for member, each in enumerate(quorum.members))


def _set_name(name: str, steps: Steps | None) -> Steps:
    if steps is not None:
        yield from steps
    # Servers before Redis 7.2 and Valkey 8 refuse the command, and ACLs may, too.
    with contextlib.suppress(Exception):
        yield _protocol.set_library_name(name)
