"""A wait in the queue of one member of a quorum. The position belongs to the token, so that all waits share
one connection, and outlast it. The member publishes when the turn has come; as a message can be lost, a wait
also asks again, which keeps its position. As `_core.py`, it yields steps and does no I/O."""

from __future__ import annotations

import math
import random

from redis.exceptions import NoPermissionError, ResponseError, TimeoutError

from . import _protocol
from ._attempt import NO_ANSWER, Listen, Pause
from ._hold import Steps, now
from ._members import Quorum
from ._protocol import GraceError, Key, is_misuse, word
from ._waits import KEEP, Wait

# How often, at least, the waits at a member find out together whether it has fallen silent (s).
CHECK = 0.5
# The pauses of those whom the member tells nothing: the first, which grows up to CHECK.
FIRST_PAUSE = 0.1
# How often it is looked whether a queue moves: the first pause, and the longest.
FIRST_LOOK = 0.125
LONGEST_LOOK = 1.0
# Not more often than so many times what the look took: where answers are late, so are those that make it
# move.
LOOK_FACTOR = 8
# Whoever's turn has come at a member keeps its part there for less time (ms) while others refuse it. What is
# older was left behind.
HEAD_KEEPS = 2000


class Lookout:
    """Of all that wait for one resource at one member, one at a time looks whether its queue moves. They
    leave it together: the heads of two queues keep each other from a majority."""

    def __init__(self, quorum: Quorum, queue: int, key: bytes) -> None:
        self.waits: set[Wait] = set()
        # How often they were told to leave.
        self.left = 0
        self._quorum = quorum
        self._name = queue, key
        self._pause = FIRST_LOOK
        self._before: set[bytes] | None = None
        # When to look again; nobody else while somebody looks.
        self._at = now() + FIRST_LOOK

    def wake_at(self) -> float:
        return self._at

    def look(self, is_last: bool) -> Steps:
        """Looks whether those who hold the lock there hold it nowhere else. Found twice in a row: a hold
        begins and ends at one master after the other."""
        if now() < self._at:
            return
        queue, key = self._name
        self._at, began = math.inf, now()
        try:
            holders = yield from self._quorum.holders(key)
        finally:
            self._pause = min(2 * self._pause, LONGEST_LOOK)
            self._at = now() + max(self._pause, LOOK_FACTOR * (now() - began))
        there = None if self._quorum.may_move(queue, holders) else holders[queue]
        # From the last queue it is a long way back.
        if there is not None and is_last and min(there.values()) < HEAD_KEEPS:
            there = None
        if there is not None and set(there) == self._before:
            self.send_away()
        self._before = None if there is None else set(there)

    def send_away(self) -> None:
        """Lets all leave the queue."""
        self.left += 1
        for wait in list(self.waits):
            wait.event.set()

    def leave(self, wait: Wait) -> None:
        self.waits.discard(wait)
        if not self.waits:
            self._quorum.lookouts.pop(self._name, None)


class Waiter:
    """One token in the queue of one member."""

    def __init__(
        self,
        quorum: Quorum,
        queue: int,
        key: bytes,
        name: Key,
        token: bytes,
        lease: int,
        terms: _protocol.Args,
    ) -> None:
        self._quorum = quorum
        self._queue = queue
        self._key = key
        self._name = name
        self._token = token
        self._lease = lease
        self._terms = terms
        self._notify = True
        self._keep = int(KEEP * 1000)

    def wait(self, sleep: float, end: float | None, may_move_on: bool, is_last: bool) -> Steps:
        """Waits until the turn has come: answers True. None: the time is over, the wait was cancelled, or
        the queue is to be left. An error: the member does not grant."""
        wait: Wait = yield Listen(self._queue)
        lookouts = self._quorum.lookouts
        name = self._queue, self._key
        lookout = lookouts.setdefault(name, Lookout(self._quorum, *name)) if may_move_on else None
        if lookout is not None:
            lookout.waits.add(wait)
        try:
            return (yield from self._asking(wait, lookout, sleep, end, is_last))
        finally:
            wait.close()
            if lookout is not None:
                lookout.leave(wait)

    def _asking(
        self, wait: Wait, lookout: Lookout | None, sleep: float, end: float | None, is_last: bool
    ) -> Steps:
        """Asks for the lock, and again whenever it may have been granted, or the position would be lost."""
        left = 0 if lookout is None else lookout.left
        unheard = FIRST_PAUSE
        lost = 0
        while True:
            wait.event.clear()
            answer = yield from self._ask(wait)
            pause = sleep
            if isinstance(answer, int):
                return True
            if isinstance(answer, NoPermissionError) and self._notify:
                # No right to the channel: waits by the clock alone.
                self._notify = False
                continue
            if isinstance(answer, NO_ANSWER):
                # Who waits there, too, finds out.
                wait.desk.wake_all()
                lost += 1
                # A connection can break once: the member keeps the position.
                if lost > 1 or isinstance(answer, TimeoutError):
                    return answer
                continue
            lost = 0
            if isinstance(answer, ResponseError):
                refusal = _protocol.refusal(answer, self._name)
                if refusal is not None and not isinstance(refusal, GraceError):
                    raise refusal from answer
                if is_misuse(answer) and self._keep > self._lease:
                    # Not longer than the server's `dlock.max-ttl`, which the lease is not either.
                    self._keep = self._lease
                    continue
                if word(answer) != "WRONGTYPE":
                    return answer
            elif wait.listening and self._notify:
                # So many waits share the check whether the member has fallen silent.
                longest = min(CHECK * len(wait.desk.waits), self._keep / 3000)
                pause = random.uniform(longest / 2, longest)
            else:
                pause, unheard = unheard, min(2 * unheard, CHECK)
            again = now() + pause
            while not wait.event.is_set() and now() < again:
                until = again if lookout is None else min(again, lookout.wake_at())
                if end is not None:
                    until = min(until, end)
                yield Pause(wait, max(until - now(), 0))
                if lookout is not None and not wait.event.is_set():
                    yield from lookout.look(is_last)
                if end is not None and now() >= end:
                    break
            if wait.granted:
                return True
            leaves = lookout is not None and lookout.left != left
            if wait.cancelled or leaves or (end is not None and now() >= end):
                return None

    def _ask(self, wait: Wait) -> Steps:
        position = _protocol.queued(self._keep, wait.desk.channel, wait.number, notify=self._notify)
        command = _protocol.acquire(self._key, self._token, self._lease, (*self._terms, *position))
        answers = yield from self._quorum.ask(
            [self._queue], command, lambda answers, awaited: self._queue in answers
        )
        return answers.get(self._queue, TimeoutError("no answer in time"))
