"""Holds, with their validity, renewal and loss; and owed commands, which are repeated until they are
confirmed.

Both are tasks: a driver wakes a `Task` at its times, and carries out the steps that the task returns. This
module does no I/O and starts no thread."""

from __future__ import annotations

import logging
import math
import os
import random
import threading
from typing import Callable

from redis.exceptions import ResponseError, TimeoutError

from . import _protocol
from ._clock import now, trusted
from ._owners import Owner
from ._protocol import Args, Counted, Steps
from ._steps import SINGLE, Sleep

# Guards the assignment of `Hold.loss`: only the first reason counts, and it is reported once.
_LOSING = threading.Lock()

logger = logging.getLogger("dlock")


class UnansweredLeases:
    """The leases of unanswered requests, by member. The server may still set such a lease, even after it has
    confirmed a longer one over another connection."""

    def __init__(self) -> None:
        self._leases: dict[int, list[int]] = {}

    def send(self, member: int, name: str, command: Callable[[Counted], Args], lease: int) -> Steps:
        """Sends a command that sets the lease, and records the lease until every copy of the command is
        answered. redis-py may have sent an earlier copy over a broken connection: the answer to that copy
        never arrives, so the lease stays recorded."""
        counted, answers = Counted(name), 0
        leases = self._leases.setdefault(member, [])
        leases.append(lease)
        try:
            reply = yield from _protocol.send(command(counted))
            answers = 1
        except ResponseError:
            answers = 1  # the server did nothing
            raise
        finally:
            if counted.sent <= answers:
                leases.remove(lease)
        return reply

    def shortest(self, member: int) -> float:
        """Returns the shortest lease, in ms, that the member may still set. Infinite if there is none."""
        return min(self._leases.get(member, ()), default=math.inf)

    def check(self, lease: int) -> None:
        """Raises `TimeoutError` if the single server may still set a shorter lease."""
        shortest = self.shortest(SINGLE)
        if shortest < lease:
            text = f"Only {shortest / 1000:g} s are certain: an earlier, shorter extension has no answer"
            raise TimeoutError(text + " yet. Release the lock to start anew")

    def shortest_of_all(self) -> float:
        """Returns the shortest lease, in ms, that any member may still set. Infinite if there is none."""
        return min(map(self.shortest, list(self._leases)), default=math.inf)


class Hold:
    """The hold of one token, with its validity: the time for which its owner may rely on it."""

    def __init__(
        self,
        token: bytes,
        lease: int,
        fence: int | None,
        valid_until: float,
        owner: Owner,
        terms: Args,
        renewed: bool,
        on_lost: Callable[[str], object] | None,
        ask: Callable[[Hold, int], Steps],
        unanswered: UnansweredLeases,
    ) -> None:
        self.token = token
        # Lease length in ms.
        self.lease = lease
        self.fence = fence
        self.valid_until = valid_until
        self.owner = owner
        # The terms of the ACQUIRE that was granted.
        self._terms = terms
        self.renewed = renewed
        self.on_lost = on_lost
        self.unanswered = unanswered
        # Returns steps that set the lease, and return whether the token holds the lock.
        self._ask = ask
        self.pid = os.getpid()
        # Number of times that a reentrant hold was entered.
        self.depth = 1
        # True once the hold was released, or replaced in its lock object.
        self.over = False
        # The reason of the loss.
        self.loss: str | None = None
        # True after a RELEASE without an answer, which may have ended the hold.
        self.release_sent = False
        # The members with an unanswered ACQUIRE, or copy of it, which they may execute after a RELEASE.
        self.orphaned: set[int] = set()
        # The members that may hold the lock for this token. None means all.
        self.members_asked: set[int] | None = None
        # Called when the hold is lost or over.
        self.wakers: list[Callable[[], object]] = []
        # Ends the watch over the hold. Set by the driver that watches it.
        self.forget: Callable[[], object] | None = None
        self._retry_at: float | None = None
        # The lease of the next renewal, in ms. Less than the lease while a shorter one is unanswered.
        self._next_lease = lease
        self._failure = ""
        # Held by a renewal or an extension: two EXTENDs at once could arrive or be answered in either order.
        self._turn = threading.Lock()
        self._reported = on_lost is None

    def is_lost(self) -> bool:
        """Returns whether the hold is lost. Marks it as lost first if its validity has ended."""
        if self.loss is None and not self.over and now() >= self.valid_until:
            self.lose("its lease ended" + (f": {self._failure}" if self._failure else ""))
        return self.loss is not None

    def lose(self, why: str) -> None:
        """Marks the hold as lost. Does not call `on_lost`: the driver that watches the hold does."""
        with _LOSING:
            if self.loss is not None or self.over:
                return
            self.loss = why
        self.rename_owner()
        self._wake_all()

    def rename_owner(self) -> None:
        """Called when the server may still have the hold, although its owner has given it up."""
        self.owner.rename(self._terms)

    def end(self) -> None:
        """Marks the hold as released, or as replaced in its lock object. Still reports an earlier loss."""
        self.is_lost()
        self.over = True
        if self.forget is not None and self.finished():
            self.forget()
        self._wake_all()

    def _wake_all(self) -> None:
        # A copy of the list, as a waker may remove itself.
        for wake in list(self.wakers):
            wake()

    # The task of the driver: see `Task`.

    def _lost_at(self) -> float:
        """Returns the time at which the hold is declared lost. For a renewed hold, this is a tenth of the
        lease before the end of the validity, so that its owner has time to stop."""
        return self.valid_until - (self._next_lease / 10_000 if self.renewed else 0)

    def finished(self) -> bool:
        return self.over if self.loss is None else self._reported

    def wake_at(self) -> float:
        if self.loss is not None:
            return now()
        if not self.renewed or self._turn.locked():
            return self._lost_at()
        if self._retry_at is not None:
            return min(self._retry_at, self._lost_at())
        # A renewal is due after a third of the lease, so that there is time for more tries.
        return min(self.valid_until - self._next_lease / 1000 * 2 / 3, self._lost_at())

    def wake(self) -> Steps | None:
        if now() >= self._lost_at():
            self.lose("not renewed in time" + (f": {self._failure}" if self._failure else ""))
        if self.loss is not None:
            self._report(self.loss)
            return None
        if not self._turn.acquire(blocking=False):
            return None
        self._retry_at = math.inf
        return self._renewal()

    def woken(self) -> None:
        # A successful renewal has cleared `_retry_at`. Otherwise it failed or was cancelled.
        if self._retry_at is not None:
            self._retry_at = now() + random.uniform(0.5, 1) * self.lease / 10_000
        self._turn.release()

    def _report(self, why: str) -> None:
        if self.on_lost is None or self._reported:
            return
        self._reported = True
        try:
            self.on_lost(why)
        except Exception:
            logger.exception("on_lost failed")

    def _renewed_lease(self) -> int:
        """Returns the lease of a renewal, in ms: no longer than the shortest unanswered one, as members that
        may still set the shorter lease do not count for a longer one."""
        return int(min(self.lease, self.unanswered.shortest_of_all()))

    def _renewal(self) -> Steps:
        try:
            if not self.over:
                yield from self.extend(self._renewed_lease())
            self._retry_at = None
        # Catches any exception, as clusters and credential providers raise classes of their own.
        except Exception as why:
            self._failure = f"{type(why).__name__}: {why}"

    def extending(self, lease: int) -> Steps:
        """Sets the lease at the owner's request, after the end of any renewal under way. Returns whether the
        token holds the lock. Raises `TimeoutError` if an unanswered request may still shorten the lease."""
        while not self._turn.acquire(blocking=False):
            # An interrupted extension may never release `_turn`.
            if self.is_lost():
                return False
            yield Sleep(0.005)
        try:
            held = yield from self.extend(lease)
            if held:
                self.unanswered.check(lease)
            return held
        finally:
            self._turn.release()

    def extend(self, lease: int) -> Steps:
        """Sets the lease, in ms from now. Returns whether the token holds the lock."""
        sent = now()
        # A shorter lease limits the validity from now on, as its reply may be lost. Servers refuse a lease of
        # 0.
        if lease > 0:
            self.valid_until = min(self.valid_until, sent + trusted(lease / 1000))
        held = yield from self._ask(self, lease)
        if self.is_lost():
            return False  # the owner may have seen the loss, and stopped its work
        if not held:
            self.lose("taken away")
            return False
        certain = min(lease, self.unanswered.shortest(SINGLE))
        self.valid_until = sent + trusted(certain / 1000)
        self._next_lease = self._renewed_lease()
        return True


class Owed:
    """A command that is repeated until it is confirmed, for at most `lasts` seconds."""

    def __init__(
        self, command: Args, lasts: float, *, times: int = 1, repeats: Callable[[], bool] = lambda: False
    ) -> None:
        """``lasts``: the seconds after which the command is pointless. ``times``: the number of answers that
        confirm it. ``repeats``: returns whether it is repeated for ``lasts`` seconds even after that."""
        # Sum of the replies. None before the first reply.
        self.ended: int | None = None
        # True after a request without an answer, which may have ended a hold that `ended` does not count.
        self.unanswered = False
        self.forget: Callable[[], object] | None = None
        self.answered: Callable[[], object] | None = None
        self.failed: Callable[[Exception], object] | None = None
        self._command = command
        self._times = times
        self._repeats = repeats
        self._until = now() + lasts
        self._next = now()
        self._pause = 0.05
        self._longest_pause = max(2.0, lasts / 20)

    def finished(self) -> bool:
        return now() > self._until or (self._times <= 0 and not self._repeats())

    def wake_at(self) -> float:
        return self._next

    def wake(self) -> Steps | None:
        self._next = math.inf
        return self._send()

    def woken(self) -> None:
        self._next = now() + self._pause
        if self._repeats():
            self._slow_down()

    def _send(self) -> Steps:
        try:
            ended = yield from _protocol.send_or(self._command, 0)
            self.ended = (self.ended or 0) + ended
            self._times -= 1
            if self.answered is not None:
                self.answered()
        except Exception as why:
            self.unanswered |= not isinstance(why, ResponseError)
            self._slow_down()
            if self.failed is not None:
                self.failed(why)

    def _slow_down(self) -> None:
        self._pause = min(self._pause * 2, self._longest_pause)


class OwedRelease(Owed):
    """A RELEASE. By default it needs two answers: after the first RELEASE, the server may still read an
    ACQUIRE from an earlier, broken connection."""

    def __init__(
        self,
        key: bytes,
        token: bytes,
        lasts: float,
        *,
        times: int = 2,
        repeats: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(_protocol.release(key, token), lasts, times=times, repeats=repeats)


def _forked() -> None:
    # Without a new lock, the child would wait for ever if another thread of the parent held the lock.
    global _LOSING
    _LOSING = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
