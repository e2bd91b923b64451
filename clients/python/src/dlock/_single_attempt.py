"""One acquisition from a single server: the first try, and the wait in the queue. Yields steps and does no
I/O."""

from __future__ import annotations

import math

from redis.exceptions import LockError, ResponseError

from . import _protocol
from ._clock import now, trusted
from ._hold import OwedRelease, UnansweredLeases
from ._owners import Owner
from ._protocol import FOREIGN, NO_ANSWER, Args, Counted, Key, Steps, error
from ._steps import SINGLE, Listen, Owe, Pause, Sleep
from ._waits import ASK, KEEP, Contention, QueuePosition, Wait

# An acquisition fails after this many grants that arrived after the end of their leases.
LATE = 3

# Longest pause during a grace period, in seconds, as an operator can end it.
GRACE_CHECK = 2.0

# Longest time that a wait is delayed for the first subscription of its client, in seconds.
SUBSCRIBING = 1.0

# The resources that this process found taken.
_contended = Contention()


def late_for(lease: float) -> float:
    """Returns the seconds for which a late ACQUIRE is released again: until its lease and its position in the
    queue would have ended."""
    return max(lease, KEEP) + KEEP


class SingleAttempt:
    """One acquisition, with one token."""

    def __init__(
        self, key: bytes, name: Key, token: bytes | None, lease: int, terms: Args, owner: Owner
    ) -> None:
        self.name = name
        self.token = _protocol.fresh_token() if token is None else token
        self.lease = lease
        self.fence = 0
        self.valid_until = 0.0
        # True once a request may have been sent, so that `take_back` is needed after a failure.
        self.request_sent = False
        # Only a quorum has members.
        self.members_asked: set[int] | None = None
        self.unanswered = UnansweredLeases()
        self._key = key
        # True if the caller gave the token, and may use it again.
        self._token_given = token is not None
        self.terms = terms
        self._owner = owner
        # None until the acquisition waits in the queue.
        self._position: QueuePosition | None = None
        # True once an ACQUIRE, or a copy of it, has no reply: the server may execute it at any time.
        self._outstanding = False

    @property
    def orphaned(self) -> set[int]:
        """Returns the server if it may execute an ACQUIRE after a RELEASE. A token from the caller may be
        used again, and must not be released late."""
        return {SINGLE} if self._outstanding and not self._token_given else set()

    def take_back(self) -> Steps:
        """Ends the hold or queue position that the server may have for the token."""
        # The RELEASE is repeated until the end of the lease, as an ACQUIRE without a reply can arrive after
        # any RELEASE over another connection.
        lasts = late_for(self.lease / 1000)
        orphaned = bool(self.orphaned)
        owed = OwedRelease(self._key, self.token, lasts, times=1, repeats=lambda: orphaned)
        yield Owe({SINGLE: owed}, lambda: owed.ended is not None)
        if self._outstanding or owed.ended is None:
            # The background still releases the hold, so a wait of the owner for that hold would be no
            # deadlock.
            self._owner.rename(self.terms)

    def close(self) -> None:
        if self._position is not None:
            self._position.wait.close()

    def run(self, sleep: float, blocking: bool, end: float | None) -> Steps:
        """Returns whether the lock was granted. If not, neither a hold nor a queue position is left on the
        server."""
        sent: float | None = None
        answered_at = now()
        silence: Exception | None = None
        late = 0
        if blocking and self._key in _contended and (end is None or answered_at < end):
            yield from self._listen(end)
        while True:
            pause = sleep
            if self._position is not None:
                self._position.wait.event.clear()
            # A request that is repeated without an answer retains the time of its first send, as the server
            # may count the lease from that time.
            sent = now() if sent is None else sent
            try:
                reply = yield from self._ask()
            except NO_ANSWER as why:
                # A wait continues during an outage for as long as the server may retain its position.
                if self._position is None or now() - answered_at > KEEP:
                    raise
                silence = why
            except ResponseError as answer:
                silence = None
                if self._position is not None and self._position.ask_differently(answer):
                    continue
                if end is not None and _protocol.is_own_deadlock(answer):
                    # The owner waits for a lock that it holds itself. As with redis-py, such a wait times
                    # out.
                    self.terms = _protocol.without_owner(self.terms)
                    continue
                pause = self._refused(answer, blocking, end)
                sent = None
            else:
                silence = None
                answered_at = now()
                if type(reply) is int:
                    self.fence = reply
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
                if reply is not FOREIGN:
                    if blocking:
                        _contended.note_taken(self._key)
                    if blocking and self._position is None and (end is None or answered_at < end):
                        yield from self._listen(end)
                        continue
                    if self._position is not None and self._position.receives_messages():
                        pause = ASK * self._position.keep / KEEP
            left = math.inf if end is None else end - now()
            if not blocking or left <= 0:
                break
            pause = min(pause, left)
            if self._position is None:
                yield Sleep(pause)
                continue
            yield Pause(self._position.wait, pause)
            if self._position.wait.cancelled:
                break
        if silence is not None:
            # After a missing answer it is unknown whether another client holds the lock.
            raise silence
        if self.orphaned:
            yield from self.take_back()
        elif self._position is not None:
            try:
                yield from _protocol.send_or(_protocol.release(self._key, self.token), 0)
            except NO_ANSWER:
                yield from self.take_back()
        return False

    def _ask(self) -> Steps:
        """Sends ACQUIRE. After a reply, no copy is outstanding if redis-py has sent the command only once."""
        name = Counted("DLOCK.ACQUIRE")
        before, is_answered = self._outstanding, False
        self.request_sent = self._outstanding = True
        try:
            reply = yield from _protocol.send_unless_data(self._command(name), self.name)
            is_answered = True
        except (ResponseError, LockError):
            is_answered = True
            raise
        finally:
            if is_answered and name.sent <= 1:
                self._outstanding = before
        return reply

    def _command(self, name: str) -> Args:
        terms = self.terms
        if self._position is not None:
            terms = *terms, *self._position.terms()
        return _protocol.acquire(self._key, self.token, self.lease, terms, name)

    def _listen(self, end: float | None) -> Steps:
        wait: Wait = yield Listen()
        self._position = QueuePosition(wait, self.lease)
        # A message from before the subscription would be lost. If the client cannot subscribe, only its first
        # wait is delayed to find that out.
        if not wait.registry.tried:
            yield Pause(wait, SUBSCRIBING if end is None else max(min(SUBSCRIBING, end - now()), 0))

    def _refused(self, answer: ResponseError, blocking: bool, end: float | None) -> float:
        """Returns the pause before the next request, in seconds, or raises."""
        refusal = _protocol.refusal(answer, self.name)
        if (
            isinstance(refusal, _protocol.GraceError)
            and blocking
            and (end is None or now() + refusal.left < end)
        ):
            return min(refusal.left, GRACE_CHECK)
        raise answer if refusal is None else refusal from answer
