"""How long a hold is valid, when it is renewed, when it is lost. Does no I/O and starts no thread: whoever
drives a `Task` asks it when to wake it, and carries out the steps that it then wants."""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
from collections.abc import Generator
from typing import Any, Callable, Protocol

from redis.exceptions import ResponseError

from . import _protocol

# A clock that runs on while the machine is suspended, where there is one: a laptop that wakes up must not
# believe that it still holds a lock that expired an hour ago.
# On macOS, CLOCK_MONOTONIC does, and `time.monotonic` does not.
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))

# Held for one assignment: the first reason counts, and is told once.
_LOSING = threading.Lock()

logger = logging.getLogger("dlock")

Steps = Generator[Any, Any, Any]


def now() -> float:
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


def trusted(ttl: float) -> float:
    """How much of a lease counts, in seconds: less a hundredth, for clocks whose rates differ, and 2 ms for
    their resolution."""
    return ttl - ttl / 100 - 0.002


class Task(Protocol):
    """Something to do in the background, over the hold's client."""

    forget: Callable[[], object] | None

    def finished(self) -> bool: ...

    def wake_at(self) -> float: ...

    def wake(self) -> Steps | None: ...

    def woken(self) -> None:
        """The steps of `wake` have ended, or were dropped before they began."""


class Hold:
    """One token's tenure, as its owner may believe in it."""

    def __init__(
        self,
        token: bytes,
        lease: int,
        fence: int | None,
        valid_until: float,
        owner: object,
        renewed: bool,
        on_lost: Callable[[str], object] | None,
        ask: Callable[[Hold, int], Steps],
    ) -> None:
        self.token = token
        self.lease = lease
        self.fence = fence
        self.valid_until = valid_until
        self.owner = owner
        self.renewed = renewed
        self.on_lost = on_lost
        # The steps that set the lease, and say whether the token holds the lock.
        self._ask = ask
        self.pid = os.getpid()
        self.depth = 1
        self.over = False
        self.loss: str | None = None
        # A RELEASE was sent and not answered: it may have ended the hold.
        self.release_sent = False
        # How often each member is told to release it, and which members may hold it: any, if None.
        self.releases = 1
        self.members_asked: set[int] | None = None
        self.wakers: list[Callable[[], object]] = []
        # Set by whoever watches it.
        self.forget: Callable[[], object] | None = None
        self._retry_at: float | None = None
        self._failure = ""
        # The shortest lease of an EXTEND without an answer: the server may still carry it out.
        self._orphan = math.inf
        # Held by a renewal or an extension: two EXTENDs could arrive, or be answered, in either order.
        self._turn = threading.Lock()
        self._told = on_lost is None

    def is_lost(self) -> bool:
        """Looks at the clock first: past its validity a hold is lost, whether or not anything has noticed."""
        if self.loss is None and not self.over and now() >= self.valid_until:
            self.lose("its lease ended" + (f": {self._failure}" if self._failure else ""))
        return self.loss is not None

    def lose(self, why: str) -> None:
        """Whoever watches it calls `on_lost`: it is not for the thread of whoever looks."""
        with _LOSING:
            if self.loss is not None or self.over:
                return
            self.loss = why
        self._wake_all()

    def end(self) -> None:
        """It is released, or not this object's business any longer."""
        self.is_lost()
        self.over = True
        if self.forget is not None and self.finished():
            self.forget()
        self._wake_all()

    def _wake_all(self) -> None:
        # Whoever is woken removes its own.
        for wake in list(self.wakers):
            wake()

    # The background.

    def _lost_at(self) -> float:
        """A renewed hold is declared lost a tenth of its lease early: the time that its owner has to stop."""
        return self.valid_until - (self.lease / 10_000 if self.renewed else 0)

    def finished(self) -> bool:
        return self.over if self.loss is None else self._told

    def wake_at(self) -> float:
        if self.loss is not None:
            return now()
        if not self.renewed or self._turn.locked():
            return self._lost_at()
        if self._retry_at is not None:
            return min(self._retry_at, self._lost_at())
        # After a third of the lease: it leaves room for more tries.
        return min(self.valid_until - self.lease / 1000 * 2 / 3, self._lost_at())

    def wake(self) -> Steps | None:
        if now() >= self._lost_at():
            self.lose("not renewed in time" + (f": {self._failure}" if self._failure else ""))
        if self.loss is not None:
            self._tell(self.loss)
            return None
        if not self._turn.acquire(blocking=False):
            return None
        self._retry_at = math.inf
        return self._renewal()

    def woken(self) -> None:
        # Not renewed: it failed, or was cancelled.
        if self._retry_at is not None:
            self._retry_at = now() + random.uniform(0.5, 1) * self.lease / 10_000
        self._turn.release()

    def _tell(self, why: str) -> None:
        if self.on_lost is None or self._told:
            return
        self._told = True
        try:
            self.on_lost(why)
        except Exception:
            logger.exception("on_lost failed")

    def _renewal(self) -> Steps:
        try:
            if not self.over:
                yield from self.extend(self.lease)
            self._retry_at = None
        # Whatever it is: clusters and whoever provides passwords have errors of their own.
        except Exception as why:
            self._failure = f"{type(why).__name__}: {why}"

    def extending(self, lease: int) -> Steps:
        """An extension by the owner, in its turn. Answers whether the token holds the lock."""
        while not self._turn.acquire(blocking=False):
            # One that was interrupted may have kept its turn.
            if self.is_lost():
                return False
            yield Sleep(0.005)
        try:
            return (yield from self.extend(lease))
        finally:
            self._turn.release()

    def extend(self, lease: int) -> Steps:
        sent = now()
        # A shorter lease counts as soon as it is asked for: the answer may be lost. One that no server grants
        # shortens nothing.
        if lease > 0:
            self.valid_until = min(self.valid_until, sent + trusted(lease / 1000))
        try:
            held = yield from self._ask(self, lease)
        except ResponseError:
            raise
        except BaseException:
            self._orphan = min(self._orphan, lease)
            raise
        if self.is_lost():
            return False  # its owner has been told, or could know, and may have stopped
        if not held:
            self.lose("taken away")
            return False
        self.valid_until = sent + trusted(min(lease, self._orphan) / 1000)
        return True


class Owed:
    """A command that has no answer yet: sent until it has one, or until all that it could end has ended."""

    def __init__(self, command: _protocol.Args, lasts: float, *, times: int = 1) -> None:
        # How much it ended, once there is an answer. A try that had none may have ended what the next one did
        # not find.
        self.ended: int | None = None
        self.unanswered = False
        self.forget: Callable[[], object] | None = None
        self.answered: Callable[[], object] | None = None
        self.failed: Callable[[Exception], object] | None = None
        self._command = command
        self._times = times
        self._until = now() + lasts
        self._next = now()
        self._pause = 0.05

    def finished(self) -> bool:
        return self._times == 0 or now() > self._until

    def wake_at(self) -> float:
        return self._next

    def wake(self) -> Steps | None:
        self._next = math.inf
        return self._send()

    def woken(self) -> None:
        self._next = now() + self._pause

    def _send(self) -> Steps:
        try:
            ended = yield from or_wrong_type(self._command, 0)
            self.ended = (self.ended or 0) + ended
            self._times -= 1
            if self.answered is not None:
                self.answered()
        except Exception as why:
            self.unanswered |= not isinstance(why, ResponseError)
            self._pause = min(self._pause * 2, 2.0)
            if self.failed is not None:
                self.failed(why)


class OwedRelease(Owed):
    """Twice by default: the server may have read an ACQUIRE without an answer after the first RELEASE, from
    another connection."""

    def __init__(self, key: bytes, token: bytes, lasts: float, *, times: int = 2) -> None:
        super().__init__(_protocol.release(key, token), lasts, times=times)


class Sleep:
    """A step: do nothing for some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


def or_wrong_type(command: _protocol.Args, otherwise: int) -> Steps:
    """The answer, or this where the key holds something else than a lock."""
    try:
        return (yield command)
    except ResponseError as answer:
        if str(answer).startswith("WRONGTYPE"):
            return otherwise
        raise


def _forked() -> None:
    # Another thread of the parent may have held it.
    global _LOSING
    _LOSING = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
