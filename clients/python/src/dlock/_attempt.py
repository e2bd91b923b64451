"""One acquisition from a single server: a try, the queue, the claim. And the steps that it and `_core.py`
yield."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Callable

from redis.exceptions import ConnectionError, NoPermissionError, ResponseError, TimeoutError

from . import _protocol
from ._contended import Contended
from ._hold import Hold, Owed, OwedRelease, Sleep, Steps, now, trusted
from ._protocol import Args, Key, error, is_misuse
from ._waits import ASK, KEEP, Wait

# The lock is asked for this often if each answer takes longer than the lease.
LATE = 3

# Grace may end earlier than the server said: it is asked again after so long at most (s).
GRACE_CHECK = 2.0

# A wait that nobody listens for yet begins after so long at most (s).
SUBSCRIBING = 1.0

NO_ANSWER = (ConnectionError, TimeoutError)


# In place of a member's number.
SINGLE = -1


class Listen:
    """A step: open a wait, and begin to listen for it. Answers a `Wait` at once, so that whoever asked can
    close it, whatever comes."""

    def __init__(self, member: int = SINGLE) -> None:
        self.member = member


class Pause:
    """A step: wait until something is heard of `wait`, at most so long."""

    def __init__(self, wait: Wait, seconds: float) -> None:
        self.wait = wait
        self.seconds = seconds


class Watch:
    """A step: renew the hold, and tell when it is lost."""

    def __init__(self, hold: Hold) -> None:
        self.hold = hold


class Owe:
    """A step: send what is owed in the background, until it is confirmed; wait a moment for `enough`
    answers."""

    def __init__(self, owed: Mapping[int, Owed], enough: Callable[[], bool]) -> None:
        # By member of a quorum, or SINGLE.
        self.owed = owed
        self.enough = enough


def owe(owed: OwedRelease) -> Owe:
    return Owe({SINGLE: owed}, lambda: owed.ended is not None)


# Whoever asks again for a key that was found taken enters the queue with the first request.
_contended = Contended()


class Attempt:
    """One acquisition, with one token."""

    def __init__(self, key: bytes, name: Key, token: bytes | None, lease: int, terms: Args) -> None:
        self.name = name
        self.token = _protocol.fresh_token() if token is None else token
        self.lease = lease
        self.fence = 0
        self.valid_until = 0.0
        self.asked = False
        self.wait: Wait | None = None
        # A single server.
        self.members_asked: set[int] | None = None
        self._key = key
        # A token that is used again must not be released late.
        self._releases = 2 if token is None else 1
        self._terms = terms
        self._notify = True
        # For how long the server keeps the position (s).
        self._keep = KEEP

    def owe(self) -> Owe:
        lasts = max(self.lease / 1000, KEEP) + KEEP
        return owe(OwedRelease(self._key, self.token, lasts, times=self._releases))

    def close(self) -> None:
        if self.wait is not None:
            self.wait.close()

    def run(self, sleep: float, blocking: bool, end: float | None) -> Steps:
        """Whether it was granted. After a no, nothing is left on the server."""
        sent: float | None = None
        answered_at = now()
        late = 0
        if blocking and self._key in _contended and (end is None or answered_at < end):
            yield from self._listen(end)
        while True:
            pause = sleep
            terms = self._terms
            if self.wait is not None:
                self.wait.event.clear()
                terms += _protocol.queued(
                    int(self._keep * 1000), self.wait.desk.channel, self.wait.number, notify=self._notify
                )
            # A request sent again keeps the first send as its start: the server may count from that one.
            sent = now() if sent is None else sent
            self.asked = True
            try:
                fence = yield _protocol.acquire(self._key, self.token, self.lease, terms)
            except NO_ANSWER:
                # A waiter outlasts what its position outlasts.
                if self.wait is None or now() - answered_at > KEEP:
                    raise
            except NoPermissionError:
                if self.wait is None or not self._notify:
                    raise
                # No right to the channel: waits by the clock alone.
                self._notify = False
                continue
            except ResponseError as answer:
                if self.wait is not None and is_misuse(answer) and self._keep > self.lease / 1000:
                    # Not longer than the server's `dlock.max-ttl`, which the lease is not either.
                    self._keep = self.lease / 1000
                    continue
                pause = self._refused(answer, sleep, blocking, end)
                sent = None
            else:
                answered_at = now()
                if fence is not None:
                    self.fence = fence
                    self.valid_until = sent + trusted(self.lease / 1000)
                    if now() < self.valid_until:
                        return True
                    late += 1
                    if late == LATE:
                        raise error(
                            _protocol.LateError, "The timeout is too short for this server", self.name
                        )
                    sent = None
                    continue
                sent = None
                if blocking:
                    _contended.note(self._key)
                if blocking and self.wait is None and (end is None or answered_at < end):
                    yield from self._listen(end)
                    continue
                if self.wait is not None and self._notify and self.wait.listening:
                    pause = ASK * self._keep / KEEP
            left = math.inf if end is None else end - now()
            if not blocking or left <= 0:
                break
            pause = min(pause, left)
            if self.wait is None:
                yield Sleep(pause)
                continue
            yield Pause(self.wait, pause)
            if self.wait.cancelled:
                break
        if self.wait is not None:
            try:
                yield _protocol.release(self._key, self.token)
            except NO_ANSWER:
                yield self.owe()
        return False

    def _listen(self, end: float | None) -> Steps:
        self.wait = wait = yield Listen()
        # What is published before the subscription would be lost. Where there is none, waits go by the clock
        # alone, and only the first one finds that out.
        if not wait.desk.tried:
            yield Pause(wait, SUBSCRIBING if end is None else max(min(SUBSCRIBING, end - now()), 0))

    def _refused(self, answer: ResponseError, sleep: float, blocking: bool, end: float | None) -> float:
        """After how long to ask again; or raises."""
        # Somebody holds it by `SET NX PX`, and does not know of the queue.
        if str(answer).startswith("WRONGTYPE"):
            return sleep
        refusal = _protocol.refusal(answer, self.name)
        if (
            isinstance(refusal, _protocol.GraceError)
            and blocking
            and (end is None or now() + refusal.left < end)
        ):
            return min(refusal.left, GRACE_CHECK)
        raise answer if refusal is None else refusal from answer
