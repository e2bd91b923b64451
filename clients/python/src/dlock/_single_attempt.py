"""One acquisition from a single server: the first request, and the wait in the queue. This module does no
I/O: it yields steps (see `_steps.py`), which a driver carries out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable

from redis.exceptions import BusyLoadingError, LockError, LockNotOwnedError, ResponseError, TimeoutError

from . import _protocol
from ._clock import now, on_grid, validity
from ._hold import Hold, Owed, OwedRelease, UnansweredLeases
from ._protocol import (
    FOREIGN,
    NO_ANSWER,
    NO_NODE,
    Args,
    CountedName,
    Key,
    Options,
    Reconnect,
    Steps,
    error,
)
from ._steps import SINGLE, Listen, NoTurnError, Owe, Pause, Sleep, TurnLimit, Watch
from ._waits import KEEP, Contention, QueuePosition, Wait, number_of

# An acquisition fails after this many grants that arrived after the end of their leases.
MAX_LATE = 3

# Longest pause between two requests during the grace period of the server, in seconds. An operator can end
# that period early.
GRACE_CHECK = 2.0

# First and longest pause of a wait while the server refuses its requests (see `_protocol.PASSING_WORDS`), in
# seconds.
FIRST_PAUSE_AFTER_REFUSAL = 0.05
LONGEST_PAUSE_AFTER_REFUSAL = 1.0

# Pause between two requests of a wait whose position the background retains, in seconds.
KEPT_PAUSE = 60.0

# Longest delay of a wait while its client subscribes for the first time, in seconds.
SUBSCRIBING = 1.0

# The locks that this process found taken within the last second, on any server.
_contended = Contention()


def time_until_expired(lease: float) -> float:
    """Returns the longest time in seconds for which the server retains a hold or a queue position after it
    has executed a request with this lease. A position lasts for `KEEP`. Just before its end, a late copy of
    the request may claim the lock, for the length of the lease, or renew the position."""
    return KEEP + max(lease, KEEP)


class SingleAttempt:
    """One acquisition, with one token."""

    fence = 0
    valid_until = 0.0
    # The holds without which the lock is not wanted: the wait ends once one of them is lost.
    needed: Sequence[Hold] = ()
    # Whether the hold has its full lease. A grant that a message reported must be claimed by EXTEND.
    is_claimed = True
    # Raises an error if the server does not accept the DELAY of the release. None if the release has none.
    check_delay: Callable[[], Steps] | None = None
    # True once a request may have been sent, so that `take_back` is needed after a failure.
    request_sent = False
    # Always None. In a `QuorumAttempt`, this is the set of the members that were asked.
    members_asked: set[int] | None = None
    # True once the client has found a server, which may be silent: an ACQUIRE was sent, or a time limit has
    # passed.
    _found_server: bool
    # The message of the last call of the wait.
    _message = b""
    # False for the request after an answer that the owner would wait for itself.
    _names_owner = True
    # None until the acquisition waits in the queue.
    _position: QueuePosition | None = None
    # Retains the position, as long as the wait receives messages.
    _keep_alive: KeepAlive | None = None
    # The number of the call whose message has reported the grant, and the hold.
    _granted_call = 0
    _hold: Hold | None = None
    # True once an ACQUIRE has no reply: the server may still execute it. Also true if redis-py has resent an
    # ACQUIRE, so that only the last copy has a reply: the server may still execute an earlier copy.
    _outstanding = False
    # Number of requests of `KeepAlive` that are under way, and whether one of them got no answer.
    under_way = 0
    is_late = False

    def __init__(
        self,
        key: bytes,
        name: Key,
        token: bytes | None,
        lease: int,
        options: Options,
        *,
        found_server: bool = False,
        converts: bool = False,
    ) -> None:
        """``found_server``: whether the address is known to be right. ``converts``: whether the token holds
        the lock, in another mode. Then nothing is released if the lock is not granted: the token keeps its
        hold."""
        self.name = name
        self._found_server = found_server
        self._converts = converts
        # Whether the wait itself sends every request: the background would bind the hold to its connection.
        # And with a given token, a RELEASE must follow the last ACQUIRE, and cannot be repeated: a later hold
        # may have the same token. And no DELAY follows a grant that is not claimed. A message then only wakes
        # the wait.
        self._asks_itself = converts or options.ephemeral or token is not None or options.delay > 0
        self.token = _protocol.fresh_token() if token is None else token
        # Lease length in ms.
        self.lease = lease
        # Passed to the hold once the lock is granted.
        self.unanswered = UnansweredLeases()
        self._key = key
        # Whether the caller gave the token, and so may use it again.
        self._token_given = token is not None
        self._options = options
        # Answers to calls of `KeepAlive` that arrived after the grant, and before there was a hold.
        self.late_answers: list[tuple[int, Any]] = []
        # When the server last answered.
        self.answered_at = now()
        # See below. The set changes when the last request of `KeepAlive` is answered.
        self._release_again: set[int] = set()

    @property
    def members_to_release_again(self) -> set[int]:
        """Contains `SINGLE` as long as the RELEASE must be repeated, because the server may execute an
        ACQUIRE after the first RELEASE. Empty if the caller gave the token: a later acquisition may use the
        same token, and a repeated RELEASE would end its hold."""
        return set() if self._token_given else self._release_again

    def note_outstanding(self, outstanding: bool | None = None) -> None:
        """Called when an ACQUIRE is sent or answered. ``outstanding``: see `_outstanding`; None if a request
        of `KeepAlive` was sent or answered."""
        if outstanding is not None:
            self._outstanding = outstanding
        if self._outstanding or self.is_late or self.under_way:
            self._release_again.add(SINGLE)
        else:
            self._release_again.discard(SINGLE)

    def take_back(self) -> Steps:
        """Ends the hold or queue position that the server may have for the token."""
        # An ACQUIRE without a reply can arrive later than a RELEASE that is sent over another connection. So
        # after such an ACQUIRE, the RELEASE is repeated until any hold has expired.
        again = self.members_to_release_again
        expires_after = time_until_expired(self.lease / 1000)
        owed: Owed = OwedRelease(
            self._key, self.token, expires_after, answers_needed=1, repeats=lambda: SINGLE in again
        )
        if self._converts:
            owed = Owed(self._give_up, KEEP)
        # Waits for the first reply to the RELEASE, but not for long.
        yield Owe({SINGLE: owed}, lambda: owed.removed is not None)

    def close(self) -> None:
        self._stop_keep_alive()
        if self._position is not None:
            self._position.wait.close()

    def _stop_keep_alive(self) -> None:
        if self._keep_alive is not None:
            self._keep_alive.stop()

    def run(self, sleep: float, blocking: bool, end: float | None) -> Steps:
        """Returns whether the lock was granted. If not, neither a hold nor a queue position is left on the
        server."""
        # The name of the first copy of the current request, which has the time of its send. None before that.
        first: CountedName | None = None
        # The error of the last request if it has no answer, or if the server refuses requests for a while.
        no_answer: Exception | None = None
        late_grants = refusals = 0
        # Whether a request was answered without a grant.
        is_taken = False
        if blocking and end is not None:
            yield TurnLimit(end)
        if blocking and self._key in _contended and (end is None or self.answered_at < end):
            # The lock is probably still taken, so the first request already asks for a queue position.
            yield from self._listen(end)
        while True:
            pause = sleep
            if self._position is not None:
                self._position.wait.event.clear()
                if self._position.wait.refused:
                    self._position.wait.refused = False
                    yield Reconnect()
            # If the last request has no answer, this one repeats it. The server may have executed the first
            # copy, and counts the lease from that time.
            name = CountedName("DLOCK.ACQUIRE")
            first = name if first is None else first
            try:
                if self.check_delay is not None:
                    yield from self.check_delay()
                reply = yield from self._ask(name)
            except NoTurnError:
                if not is_taken:
                    raise
                break
            except (*NO_ANSWER, *NO_NODE, ResponseError) as answer:
                no_answer = None
                if blocking and _protocol.is_passing(answer):
                    # The wait continues until its limit.
                    no_answer, first = answer, None
                    pause = min(FIRST_PAUSE_AFTER_REFUSAL * 2**refusals, LONGEST_PAUSE_AFTER_REFUSAL)
                    refusals = min(refusals + 1, 10)
                elif isinstance(answer, NO_ANSWER):
                    # A wait outlasts an outage of `KEEP`, which counts from the first request without answer.
                    # But if its first request finds no server, the address is probably wrong.
                    self._found_server |= self._position is not None or isinstance(answer, TimeoutError)
                    if not blocking or now() - first.sent_at > KEEP or not self._found_server:
                        raise
                    no_answer = answer
                elif self._position is not None and self._position.change_refused_option(answer):
                    continue
                elif self._names_owner and self._options.may_wait_without_owner(answer, self._key, end):
                    self._names_owner = False
                    continue
                else:
                    pause = self._pause_after_error(answer, blocking, end)
                    first = None
            else:
                no_answer = None
                self._names_owner, refusals = True, 0
                self.answered_at = now()
                if type(reply) is int:
                    if self._position is not None and self._position.receives_messages():
                        self._position.wait.note_grant()
                    self.fence = reply
                    self.valid_until = first.sent_at + validity(self.lease / 1000)
                    if self.answered_at < self.valid_until:
                        return True
                    late_grants += 1
                    if late_grants == MAX_LATE:
                        raise error(
                            _protocol.LateError, "The timeout is too short for this server", self.name
                        )
                    first = None
                    continue
                first, is_taken = None, True
                if self._position is not None and reply is None:
                    self._position.wait.note_null(self._message or b"0")
                # A key with a lock of another library (FOREIGN) has no queue, so the client polls.
                if reply is not FOREIGN:
                    if blocking:
                        _contended.note_taken(self._key)
                    if blocking and self._position is None and (end is None or self.answered_at < end):
                        yield from self._listen(end)
                        continue
                    if self._position is not None and self._position.receives_messages():
                        pause = yield from self._begin_keep_alive(self._position)
            left = math.inf if end is None else end - now()
            if not blocking or left <= 0:
                break
            pause = min(pause, left)
            if self._position is None:
                yield Sleep(pause)
                continue
            yield from self._pause(self._position.wait, pause)
            self._stop_keep_alive()
            grant = None if self._asks_itself else self._position.wait.valid_grant()
            if grant is not None:
                self.fence, self.valid_until, self.is_claimed = grant.fence, grant.valid_until, False
                self._granted_call = grant.call
                # A null may have arrived meanwhile. From here on, `check_late_answer` finds it.
                if self._position.wait.valid_grant() is not None:
                    return True
                self.is_claimed = True
            if self._position.wait.cancelled:
                break
        if no_answer is not None:
            # It is unknown whether another client holds the lock.
            raise no_answer
        if self.members_to_release_again:
            yield from self.take_back()
        elif self._position is not None:
            try:
                yield from _protocol.send_or_default(self._give_up(), if_wrong_type=0)
            except (*NO_ANSWER, *NO_NODE, ResponseError):
                yield from self.take_back()
        return False

    def _pause(self, wait: Wait, seconds: float) -> Steps:
        """Waits for a message. Raises `LockNotOwnedError` if a needed hold is lost meanwhile."""
        wake = wait.event.set
        for hold in self.needed:
            hold.wakers.append(wake)
        try:
            if any(hold.is_lost() for hold in self.needed):
                wake()
            yield Pause(wait, seconds)
        finally:
            for hold in self.needed:
                hold.wakers.remove(wake)
        for hold in self.needed:
            if hold.is_lost():
                text = f"Another lock is lost, before all locks were acquired: {hold.loss}"
                raise error(LockNotOwnedError, text, hold.key)

    def _ask(self, name: CountedName) -> Steps:
        """Sends ACQUIRE, and returns the reply. Sets `_outstanding` to True if a copy of the command has no
        reply: redis-py may send several copies."""
        was_outstanding, is_answered = self._outstanding, False
        was_sent, self.request_sent = self.request_sent, True
        self.note_outstanding(True)
        try:
            options = self.options_of_next_call(name)
            self._message = b"" if options.notify is None else options.notify[1]
            reply = yield from _protocol.send_raising_for_data(self.acquire(options, name), self.name)
            is_answered = True
        except (ResponseError, BusyLoadingError, LockError):
            # The only `LockError` here is `NotALockError`, which replaces the reply WRONGTYPE.
            is_answered = True
            raise
        finally:
            self._found_server |= name.times_sent > 0
            if name.times_sent <= is_answered:
                self.note_outstanding(was_outstanding)
            if name.times_sent == 0 and not is_answered:
                self.request_sent = was_sent
        return reply

    def claim(self, name: CountedName) -> Steps:
        """Claims a grant that a message has reported, by the next call. Returns 1 if this call has set the
        lease of the hold, else 0. EXTEND could not tell the hold from a later one of the same token."""
        position = self._position
        assert position is not None
        options = self._options.waiting(int(position.keep * 1000), position.unread_notify())
        # A RELEASE that is sent meanwhile is repeated: the server may read it before this call.
        self.under_way += 1
        self.note_outstanding()
        is_answered = False
        try:
            answer = yield from _protocol.send(self.acquire(options, name))
            is_answered = True
        except ResponseError as why:
            is_answered = True
            if _protocol.error_word(why) == "WRONGTYPE":
                return 0
            if _protocol.error_word(why) != "OOM":
                raise
            # This server refuses ACQUIRE, but not EXTEND.
            return (yield from _protocol.send(_protocol.extend(self._key, self.token, self.lease)))
        finally:
            self.under_way -= 1
            self.is_late |= not is_answered
            self.note_outstanding()
        return int(answer == self.fence)

    def note_hold(self, hold: Hold) -> None:
        """Called with the hold once the lock is granted."""
        self._hold = hold
        for number, answer in self.late_answers:
            self.check_late_answer(number, answer)

    def check_late_answer(self, number: int, answer: Any) -> bool:
        """Checks the answer to a call of `KeepAlive` that arrives after the grant. Returns whether it shows
        that the hold has ended: the call is later than that of the grant, and was answered with null; or the
        token has another hold."""
        hold = self._hold
        if hold is None:
            self.late_answers.append((number, answer))
            return False
        if self.is_claimed:
            return False
        later = number > self._granted_call if answer is None else type(answer) is int and answer > self.fence
        if later:
            hold.lose("taken away")
        return later

    def _begin_keep_alive(self, position: QueuePosition) -> Steps:
        """Lets the background retain the position. Returns the pause of the wait, in seconds."""
        pause = position.pause()
        if self._asks_itself:
            return pause
        self._keep_alive = KeepAlive(self, position, pause)
        try:
            is_watched = yield Watch(self._keep_alive, may_refuse=True)
        except RuntimeError:
            is_watched = False  # no thread can be started
        return KEPT_PAUSE if is_watched else pause

    def options_of_next_call(self, name: CountedName) -> Options:
        options = self._options if self._names_owner else self._options.owned_by(None)
        return options if self._position is None else self._position.added_to(options, name)

    def release(self) -> Args:
        return _protocol.release(self._key, self.token)

    def _give_up(self) -> Args:
        return _protocol.cancel(self._key, self.token) if self._converts else self.release()

    def acquire(self, options: Options, name: str = "DLOCK.ACQUIRE") -> Args:
        return _protocol.acquire(self._key, self.token, self.lease, options, name)

    def _listen(self, end: float | None) -> Steps:
        wait: Wait = yield Listen()
        self._position = QueuePosition(wait, self.lease)
        # Waits for the subscription, as messages published before it are lost. Once the first attempt to
        # subscribe has ended, even in failure, later waits are not delayed here.
        if not wait.registry.has_tried_to_subscribe:
            yield Pause(wait, SUBSCRIBING if end is None else max(min(SUBSCRIBING, end - now()), 0))

    def _pause_after_error(self, answer: Exception, blocking: bool, end: float | None) -> float:
        """Returns the pause after an error reply, in seconds. Raises the error unless it is GRACE, and the
        acquisition can wait for the end of the grace period."""
        refusal = _protocol.refusal(answer, self.name)
        if (
            isinstance(refusal, _protocol.GraceError)
            and blocking
            and (end is None or now() + refusal.left < end)
        ):
            return min(refusal.left, GRACE_CHECK)
        raise answer if refusal is None else refusal from answer


class KeepAlive:
    """Repeats the ACQUIRE of a wait in the background, which sends the requests of many waits together. Wakes
    the wait for every answer but null. The wait then asks by itself."""

    def __init__(self, attempt: SingleAttempt, position: QueuePosition, pause: float) -> None:
        self.changed: Callable[[], object] | None = None
        self._attempt = attempt
        self._position = position
        self._is_over = False
        self._wake_at = on_grid(now(), pause)

    def stop(self) -> None:
        self._is_over = True
        if self.changed is not None:
            self.changed()

    # The methods of a `Task`.

    def finished(self) -> bool:
        return self._is_over

    def wake_at(self) -> float:
        return self._wake_at

    def wake(self) -> Steps:
        self._wake_at = math.inf
        return self._ask()

    def steps_ended(self) -> None:
        self._wake_at = on_grid(now(), self._position.pause())

    def _ask(self) -> Steps:
        if self._is_over:
            return
        attempt, wait = self._attempt, self._position.wait
        attempt.under_way += 1
        attempt.note_outstanding()
        name = CountedName("DLOCK.ACQUIRE")
        options = attempt.options_of_next_call(name)
        answer: Any = TimeoutError()
        try:
            answer = yield from _protocol.send(attempt.acquire(options, name))
        except Exception as why:
            answer = why
        finally:
            attempt.under_way -= 1
            attempt.is_late |= isinstance(answer, NO_ANSWER)
            attempt.note_outstanding()
        message = b"" if options.notify is None else options.notify[1]
        if self._is_over:
            if answer is None:
                wait.note_null(message)
            if attempt.check_late_answer(number_of(message), answer):
                # The call may have queued the token again.
                yield from _protocol.send_or_default(attempt.release(), if_wrong_type=0)
        elif answer is None:
            attempt.answered_at = now()
            wait.note_null(message)
        else:
            wait.event.set()
