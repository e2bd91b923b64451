"""The steps that the locks yield. A step is data: a command as a tuple, or an object of one of these classes.
The drivers, `_threads.py` for threads and `_tasks.py` for asyncio, carry it out and send back its outcome. A
driver does part of the work in the background: in threads or tasks of its own."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Protocol

from redis.exceptions import TimeoutError

from ._protocol import Args, Steps
from ._waits import Wait

# The members of a quorum have the numbers 0, 1 and so on. This number stands for the single server of a
# `Lock`.
SINGLE = -1

# The answers of members, by their numbers. An error is an answer, too.
Answers = dict[int, Any]

# Time limits of the drivers, in seconds.

# Longest wait of the background for a connection, or for a reply.
LIMIT = 1.0
# Longest wait for the answer of a quorum's member, including the time to connect.
ASK_LIMIT = 2 * LIMIT
# Longest wait of a caller for the answers to owed commands: see `Owe`.
PATIENCE = 0.5
# Time after which the background closes a connection without work. Longer than the pause between two renewals
# of a lease of 30 s.
LINK_IDLE = 15.0
# Most commands in one pipeline of the background.
MOST_AT_ONCE = 500
# Longest sleep of the background before it reads the clock again: timers stop while the machine is suspended.
TICK = 1.0


class Task(Protocol):
    """Background work at times that the task chooses."""

    # The driver sets this function. The task calls it when it is finished, or due earlier than before.
    changed: Callable[[], object] | None

    def finished(self) -> bool: ...

    def wake_at(self) -> float:
        """Returns the time of the next call of `wake`, on the clock of `now()`."""

    def wake(self) -> Steps | Callable[[], object] | None:
        """Returns the steps that are due, if any, or a function of the user to call. That function must not
        delay other tasks."""

    def steps_ended(self) -> None:
        """Called when the steps of `wake` have ended, or were dropped before they began."""


class OwedTask(Task, Protocol):
    """A RELEASE or CANCEL that the background repeats until the server has confirmed it: see `_hold.Owed`."""

    # The driver sets this function, and the task calls it after each answer.
    on_answer: Callable[[], object] | None

    def is_awaited(self) -> bool:
        """Returns whether the first request has no answer and no error yet. False also if it is never sent,
        because the hold or queue position has expired before."""


class NoTurnError(TimeoutError):
    """The `TurnLimit` has passed, and the command was not sent."""


class TurnLimit:
    """From now on, the commands of these steps wait for their turn at the connection pool until the time
    ``end`` at the latest, and otherwise raise `NoTurnError`. Only for steps of callers."""

    def __init__(self, end: float) -> None:
        self.end = end


class Sleep:
    """Sleeps for `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Listen:
    """Opens a wait at a server, and begins to subscribe to its messages. Returns the `Wait` at once, without
    waiting for the subscription, so that the caller can close the wait if subscribing fails."""

    def __init__(self, member: int = SINGLE) -> None:
        self.member = member


class AtKey:
    """Sends a command that names no key to the node of a key in a cluster, and returns the reply."""

    def __init__(self, key: bytes, command: Args) -> None:
        self.key = key
        self.command = command


class WhichPeer:
    """Returns the `Peer` that sent the last reply, to steps in the background of a quorum's member."""


class Pause:
    """Sleeps until a message of `wait` arrives, at most for `seconds`."""

    def __init__(self, wait: Wait, seconds: float) -> None:
        self.wait = wait
        self.seconds = seconds


class Watch:
    """Wakes the task in the background whenever it is due: `Hold.wake` renews the lease, and reports a loss.
    Returns whether it does. With `may_refuse`, it does not in a cluster, whose background has no connection
    that sends many commands together."""

    def __init__(self, task: Task, *, may_refuse: bool = False) -> None:
        self.task = task
        self.may_refuse = may_refuse


class SeparateClient:
    """Returns a client with one connection of its own to the server, without retries. The replies may take
    `seconds` longer than the user's client permits. In a cluster, the connection leads to the node of `key`,
    and a new one follows the slot."""

    def __init__(self, seconds: float, key: bytes) -> None:
        self.seconds = seconds
        self.key = key


class Over:
    """Sends a command over a client of `SeparateClient`, and returns the reply."""

    def __init__(self, client: Any, command: Args) -> None:
        self.client = client
        self.command = command


class Close:
    """Closes a client of `SeparateClient`."""

    def __init__(self, client: Any) -> None:
        self.client = client


def over(client: Any, steps: Steps) -> Steps:
    """Carries out steps, whose commands are sent over a client of `SeparateClient`."""
    outcome, failure = None, None
    while True:
        try:
            step = steps.send(outcome) if failure is None else steps.throw(failure)
        except StopIteration as end:
            return end.value
        outcome, failure = None, None
        try:
            outcome = yield Over(client, step) if type(step) is tuple else step
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as why:
            failure = why


class WatchLoss:
    """Watches a hold on a single server, so that its loss is noticed at once."""

    def __init__(self, hold: Any) -> None:
        self.hold = hold


class FindMaster:
    """Asks the sentinels of a client for the address of the master, and returns it."""

    def __init__(self, client: Any) -> None:
        self.client = client


class LeaveMaster:
    """Closes the connections of a client to a master whose place another one has taken, and renews its holds
    there."""

    def __init__(self, client: Any) -> None:
        self.client = client


class Owe:
    """Sends owed commands in the background until they are confirmed. The step itself ends once `enough`
    returns True, and after `PATIENCE` seconds at the latest."""

    def __init__(self, owed: Mapping[int, OwedTask], enough: Callable[[], bool]) -> None:
        # The owed commands, by the number of the member or SINGLE.
        self.owed = owed
        self.enough = enough


class Begin:
    """Carries out `steps` in the background."""

    def __init__(self, steps: Steps, quorum: Any, member: int | None = None) -> None:
        self.steps = steps
        self.quorum = quorum
        # The member that receives the commands among the steps. None: the steps contain no commands, but ask
        # members of the quorum.
        self.member = member


class Ask:
    """Asks members in parallel. The outcome is the `Answers` so far, once `enough` accepts them, all have
    arrived, or `ASK_LIMIT` seconds have passed.

    `questions` has the steps for each member, which return a reply or an error. `on_answer` is called with
    every answer, even after the outcome: with the member, the answer and the `Peer` that sent it. It returns
    the steps to carry out at that member next, or None."""

    def __init__(
        self,
        questions: Mapping[int, Steps],
        enough: Callable[[Answers], bool],
        on_answer: Callable[[int, Any, Peer], Steps | None],
    ) -> None:
        self.questions = questions
        self.enough = enough
        self.on_answer = on_answer


class Peer:
    """The server at the other end of one connection to a member. A later connection to the same address may
    lead to another server."""

    def __init__(self, run_id: str | None) -> None:
        # None if the user may not run INFO.
        self.run_id = run_id


def reporting(question: Steps, report: Callable[[Any], Steps | None]) -> Steps:
    """Carries out one of the `questions` of an `Ask`, passes the answer to `report`, and carries out the
    steps that `report` returns."""
    next_steps = report((yield from question))
    if next_steps is not None:
        yield from next_steps


def sending(command: Args) -> Steps:
    """Sends a command as a question of an `Ask`: returns the reply, or the error."""
    try:
        return (yield command)
    except Exception as why:
        return why


def asking(step: Ask, answers: Answers, on_answer: Callable[[], object]) -> Iterator[tuple[int, Steps]]:
    """Returns each member with the steps of its question. They store the answer in ``answers``, call
    ``on_answer``, and carry out the steps that follow the answer."""

    def report(member: int, answer: Any) -> Steps:
        next_steps = step.on_answer(member, answer, (yield WhichPeer()))
        answers[member] = answer
        on_answer()
        if next_steps is not None:
            yield from next_steps

    for member, question in step.questions.items():
        yield member, reporting(question, functools.partial(report, member))
