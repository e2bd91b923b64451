"""The steps that the locks yield. A step is data: a command as a tuple, or one of these classes. The drivers
`_threads.py` and `_tasks.py` carry it out and send back its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, Protocol

from ._protocol import Steps
from ._waits import Wait

# Stands for the single server, where a quorum has the number of a member.
SINGLE = -1

Answers = dict[int, Any]

# Time limits of the drivers, in seconds.

# Limit of one reply to the background.
LIMIT = 1.0
# Limit of one answer of a quorum's member, including the time to connect.
ASK_LIMIT = 2 * LIMIT
# Time that a caller waits for an owed release.
PATIENCE = 0.5
# Longest sleep before the clock is read again: timers stop while the machine is suspended.
TICK = 1.0


class Task(Protocol):
    """Background work at times that the task chooses."""

    # Ends the watch over the task once it is finished. Set by the driver.

    forget: Callable[[], object] | None

    def finished(self) -> bool: ...

    def wake_at(self) -> float: ...

    def wake(self) -> Steps | None:
        """Returns the steps that are due, if any."""

    def woken(self) -> None:
        """Called when the steps of `wake` have ended, or were dropped before they began."""


class OwedTask(Task, Protocol):
    """A command that is sent until it is confirmed."""

    # Called after each answer.
    answered: Callable[[], object] | None


class Sleep:
    """Sleeps for `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Listen:
    """Opens a wait, and begins to listen for its messages. The outcome is the `Wait`, before the subscription
    is live, so that the caller can close the wait after any failure."""

    def __init__(self, member: int = SINGLE) -> None:
        self.member = member


class Pause:
    """Sleeps until a message of `wait` arrives, at most for `seconds`."""

    def __init__(self, wait: Wait, seconds: float) -> None:
        self.wait = wait
        self.seconds = seconds


class Watch:
    """Renews the hold in the background, and reports its loss."""

    def __init__(self, hold: Task) -> None:
        self.hold = hold


class Owe:
    """Sends owed commands in the background until they are confirmed. Waits for `enough` of the answers, at
    most for `PATIENCE` seconds."""

    def __init__(self, owed: Mapping[int, OwedTask], enough: Callable[[], bool]) -> None:
        # The owed commands, by the number of the member or SINGLE.
        self.owed = owed
        self.enough = enough


class Begin:
    """Carries out these steps in the background, over all members of the quorum or over one."""

    def __init__(self, steps: Steps, quorum: Any, member: int | None = None) -> None:
        self.steps = steps
        self.quorum = quorum
        self.member = member


class Ask:
    """Asks members in parallel until there are `enough` answers, and returns the answers so far.

    Each question is a generator, which returns a reply or an error. `on_answer` is called for every answer,
    also for late ones, with the member, the answer and the `Peer` that sent it. It returns steps to carry out
    at that member next, or None."""

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
    """The server at the other end of a member's connection."""

    def __init__(self, run_id: str | None) -> None:
        # None means that the user may not run INFO.
        self.run_id = run_id


def reporting(question: Steps, report: Callable[[Any], Steps | None]) -> Steps:
    """Asks a question, reports its answer, and carries out the steps that the report returns."""
    then = report((yield from question))
    if then is not None:
        yield from then
