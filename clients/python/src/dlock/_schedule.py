"""What the drivers for threads and asyncio share: the tasks of a process or event loop, in the order in which
they are due, the jobs of a connection, and the turns of callers. This module starts nothing: `_threads.py`
and `_tasks.py` wake the tasks and carry out the jobs."""

from __future__ import annotations

import copy
import heapq
import itertools
import math
from typing import Any

from redis.exceptions import TimeoutError

from ._clock import now
from ._protocol import NO_ANSWER, Steps, is_passing
from ._steps import Task

# An entry of the heap: the time at which the task is due, a number that makes entries comparable, the task,
# and what the driver passed with it.
Entry = tuple[float, int, Task, Any]

# A command that fails within this time, in seconds, delays no other one: each caller tries for itself, as the
# error may be that of a single connection.
QUICK = 0.1

# The heap is rebuilt once it has this many outdated entries, and more of them than tasks.
MOST_OUTDATED = 1000


class Job:
    """Steps that a link carries out, and the task that returned them, if any."""

    def __init__(self, steps: Steps, task: Task | None) -> None:
        self.steps = steps
        self.task = task
        # The outcome of the last step: a reply, or an error to raise in the steps.
        self.outcome: Any = None

    def resume(self) -> Any:
        """Continues the steps with the outcome of the last one. Returns the next step; None once the steps
        have ended."""
        outcome, self.outcome = self.outcome, None
        try:
            if isinstance(outcome, BaseException):
                return self.steps.throw(outcome)
            return self.steps.send(outcome)
        except StopIteration:
            return None


class TurnsCore:
    """The part that threads and asyncio share of the turns of the callers at a connection pool. Once a
    command has failed without an answer, its error is also that of each caller that has waited for its turn
    since before the command was sent, unless another command was answered meanwhile. So callers behind a
    server that hangs wait for about two time limits, however many they are."""

    # When the command that was answered last was sent.
    answered = -math.inf
    # The last failure: when its command was sent, the value of `answered` at that time, and the error.
    _failure: tuple[float, float, BaseException] = -math.inf, 0.0, TimeoutError()

    def note_failure(self, sent: float, answered: float, why: BaseException) -> None:
        """Called after each error. ``answered``: the value of `answered` when the command was sent."""
        if not isinstance(why, NO_ANSWER) or is_passing(why):
            self.answered = sent
        elif now() - sent > QUICK and self.answered == answered and sent > self._failure[0]:
            self._failure = sent, answered, why

    def raise_failure(self, began: float) -> None:
        """Raises the error for a caller that has begun to wait for its turn at this time, if there is one."""
        sent, answered, why = self._failure
        if sent >= began and self.answered == answered:
            # A copy, as an error in several threads would collect the traces of all.
            raise copy.copy(why)


class LinkCore:
    """The part that threads and asyncio share of a `Link`, the connection of the background to a server."""

    def __init__(self, client: Any, is_member: bool) -> None:
        # This reference keeps the client and its pool alive, so that no new pool gets the id in the `key`.
        self.client = client
        self.is_member = is_member
        self.key = link_key(client, is_member)
        # The tasks that are scheduled for this link, by id.
        self.tasks: set[int] = set()


def pool_id(client: Any) -> int:
    return id(getattr(client, "connection_pool", client))


def link_key(client: Any, is_member: bool) -> tuple[int, bool]:
    """Returns the key of the link for a client: clients with the same pool share a link."""
    return pool_id(client), is_member


class Schedule:
    """A heap by due time. If a task becomes due later, its entry stays until the earlier time. So a renewal,
    which only ever moves to a later time, costs one entry."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        # The valid entry of each task, by the id of the task. The other entries are outdated.
        self._entries: dict[int, Entry] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def set(self, task: Task, at: float, where: Any) -> bool:
        """Adds a task that is due at the time ``at``, or moves it to an earlier time. Returns whether it is
        now the first."""
        entry = self._entries.get(id(task))
        if entry is not None and entry[0] <= at:
            return False
        entry = self._entries[id(task)] = at, next(self._numbers), task, where
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + MOST_OUTDATED:
            heap = list(self._entries.values())
            heapq.heapify(heap)
            self._heap = heap
        return self._first() is entry

    def remove(self, task: Task) -> None:
        self._entries.pop(id(task), None)

    def tasks_at(self, where: Any) -> list[Task]:
        """Returns the tasks with which the driver passed ``where``."""
        return [task for _, _, task, at in self._entries.values() if at is where]

    def next_at(self) -> float:
        """Returns the time at which the first task is due; infinite if there is none."""
        first = self._first()
        return math.inf if first is None else first[0]

    def pop(self, time: float) -> tuple[Task, Any] | None:
        """Removes and returns the first task that is due at this time."""
        if self.next_at() > time:
            return None
        _, _, task, where = heapq.heappop(self._heap)
        del self._entries[id(task)]
        return task, where

    def _first(self) -> Entry | None:
        """Returns the first valid entry. Drops the outdated ones before it: a driver sets its timer only for
        a task that becomes the first, and behind an outdated entry, none would. `remove` does not drop them:
        a signal handler may interrupt it."""
        while self._heap and self._entries.get(id(self._heap[0][2])) is not self._heap[0]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None
