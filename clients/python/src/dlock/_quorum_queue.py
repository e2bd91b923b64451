"""A wait in the queue of one member of a quorum. The queue position belongs to the token, not to a
connection: all waits at the member share one connection, and keep their positions if it breaks. The member
publishes the grant. As a message can be lost, a wait also repeats its request, which retains the position.
This module yields steps and does no I/O."""

from __future__ import annotations

import math
import random
from typing import Any

from redis.exceptions import ResponseError, TimeoutError

from . import _protocol
from ._clock import now
from ._members import Quorum, all_answered
from ._protocol import FOREIGN, NO_ANSWER, CountedName, GraceError, Key, Options, Reconnect, Steps
from ._steps import Begin, Listen, Pause
from ._waits import ASK, QueuePosition, Wait

# Pauses between two requests of a wait, in seconds. A wait that receives messages repeats its request only to
# retain its position, and to find out whether the member still answers. It pauses for at most LONGEST_PAUSE
# times the number of the client's waits at the member, so together they send about one request per
# LONGEST_PAUSE. The first pause of a wait that receives no messages is FIRST_PAUSE. Its pauses then double,
# up to LONGEST_PAUSE.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 0.5
# First and longest pause between two checks whether a queue moves (see `QueueWatch`), in seconds. Each check
# asks all members. A queue that has moved for long seldom gets stuck, so the pauses double.
FIRST_CHECK_PAUSE = 0.125
LONGEST_CHECK_PAUSE = 20.0
# The pause between two checks is at least this multiple of the duration of a check: if answers are slow, so
# are the releases that would move the queue.
CHECK_FACTOR = 8
# Longest lease and QUEUE time of the requests that search for a deadlock at other members, in ms.
SEARCH_TIME = 1000
# A hold without a majority is a partial hold. A waiting client can get one from the member of its queue while
# other members refuse the lock. The client then gives the partial hold up within this time, in ms. So the
# client of an older partial hold counts as dead.
PARTIAL_HOLD_MAX_AGE = 2000


class QueueWatch:
    """Checks whether the queue of one member moves, on behalf of all waits of this client in it. The queue
    counts as stuck if no holder at the member can have a majority: such a holder may have died, and then its
    hold lasts until the end of the lease.

    One wait at a time carries out the check. All waits leave the queue together. If some stayed, the heads of
    the old and the new queue could each hold the lock at some members. Neither would then get a majority."""

    def __init__(self, quorum: Quorum[object], queue: int, key: bytes) -> None:
        self.waits: set[Wait] = set()
        # Number of times that the waits were made to leave.
        self.departures = 0
        self._quorum = quorum
        # The key of this object in `Quorum.queue_watches`.
        self._watch_key = queue, key
        self._pause = FIRST_CHECK_PAUSE
        # The holders at the last check. None if the queue could move then.
        self._stuck_before: set[bytes] | None = None
        # Time of the next check. Infinite during a check.
        self._check_at = now() + FIRST_CHECK_PAUSE

    def wake_at(self) -> float:
        return self._check_at

    def check(self, is_last: bool) -> Steps:
        """Makes all waits leave the queue if two checks in a row find the same holders, none of which can
        have a majority. One check is not enough, as a hold begins and ends at one member after the other.
        ``is_last``: whether this is the last queue that the client tries."""
        if now() < self._check_at:
            return
        queue, key = self._watch_key
        self._check_at, began = math.inf, now()
        stuck_holders = None
        try:
            holders = yield from self._quorum.holders(key)
            ages = {} if holders.queue_can_move(queue) else holders.at(queue)
            # The waits leave the last queue only if each hold there is so old that its client counts as dead.
            if ages and not (is_last and min(ages.values()) < PARTIAL_HOLD_MAX_AGE):
                stuck_holders = set(ages)
        finally:
            # The second look at a queue that does not move follows soon.
            longer = min(2 * self._pause, LONGEST_CHECK_PAUSE)
            self._pause = longer if stuck_holders is None else FIRST_CHECK_PAUSE
            self._check_at = now() + max(self._pause, CHECK_FACTOR * (now() - began))
        if stuck_holders is not None and stuck_holders == self._stuck_before:
            self.make_waits_leave()
        self._stuck_before = stuck_holders

    def make_waits_leave(self) -> None:
        self.departures += 1
        for wait in list(self.waits):
            wait.event.set()

    def leave(self, wait: Wait) -> None:
        self.waits.discard(wait)
        if not self.waits:
            self._quorum.queue_watches.pop(self._watch_key, None)


class Waiter:
    """One token in the queue of one member."""

    def __init__(
        self,
        quorum: Quorum[object],
        queue: int,
        key: bytes,
        name: Key,
        token: bytes,
        lease: int,
        options: Options,
        unanswered_acquires: set[int],
    ) -> None:
        """``unanswered_acquires``: the waiter adds ``queue`` to this set if an ACQUIRE gets no answer."""
        self._quorum = quorum
        self._queue = queue
        self._key = key
        self._name = name
        self._token = token
        self._lease = lease
        self._options = options
        # False for the request after an answer that the owner would wait for itself.
        self._names_owner = True
        self._unanswered_acquires = unanswered_acquires
        # The message of the last call.
        self._message = b""
        # The error of a member of an earlier queue, at which the wait would close a cycle.
        self._deadlock: Exception | None = None

    def wait(self, sleep: float, end: float | None, may_move_on: bool, is_last: bool) -> Steps:
        """Waits for the grant. Returns True if the member granted the lock; None if the wait timed out, an
        operator cancelled it, or all waits leave the queue; the error of the last request if the member
        cannot grant. Raises `DeadlockError` and `QueueFullError`.

        ``sleep``: the pause in seconds while a lock of another library is at the key. ``end``: the time at
        which the wait times out, or None. ``may_move_on``: False if the wait must stay in this queue.
        ``is_last``: see `QueueWatch.check`."""
        wait: Wait = yield Listen(self._queue)
        watches = self._quorum.queue_watches
        watch_key = self._queue, self._key
        watch = watches.setdefault(watch_key, QueueWatch(self._quorum, *watch_key)) if may_move_on else None
        if watch is not None:
            watch.waits.add(wait)
        try:
            return (yield from self._ask_repeatedly(wait, watch, sleep, end, is_last))
        finally:
            wait.close()
            if watch is not None:
                watch.leave(wait)

    def _ask_repeatedly(
        self, wait: Wait, watch: QueueWatch | None, sleep: float, end: float | None, is_last: bool
    ) -> Steps:
        """Asks for the lock. Asks again when a message arrives, and before the position expires."""
        position = QueuePosition(wait, self._lease)
        departures = 0 if watch is None else watch.departures
        pause_without_messages = FIRST_PAUSE
        failures = 0
        search_at = now() + ASK
        while True:
            wait.event.clear()
            answer = yield from self._ask(position)
            if isinstance(answer, int):
                return True
            if position.change_refused_option(answer):
                continue  # asks again at once, without NOTIFY or with a shorter QUEUE time
            if isinstance(answer, NO_ANSWER):
                # The request itself may still be under way, if the wait for its answer has timed out.
                self._unanswered_acquires.add(self._queue)
                # Wakes the other waits at this member, which then find it silent, too.
                wait.registry.wake_all()
                failures += 1
                # After one broken connection the wait asks again, as the member retains the position.
                if failures > 1 or isinstance(answer, TimeoutError):
                    return answer
                continue
            failures = 0
            if isinstance(answer, ResponseError):
                if self._names_owner and self._options.may_wait_without_owner(answer, self._key, end):
                    self._names_owner = False
                    continue
                refusal = _protocol.refusal(answer, self._name)
                if refusal is not None and not isinstance(refusal, GraceError):
                    raise refusal from answer
            if isinstance(answer, Exception):
                return answer
            self._names_owner = True
            if answer is None:
                wait.note_null(self._message)
                if now() >= search_at:
                    search_at = now() + ASK
                    yield from self._begin_search(wait)
            if answer is FOREIGN:
                pause = sleep
            elif position.receives_messages():
                # One request is enough for all waits at the member to know whether the member still answers,
                # so the pause grows with the number of waits. But it is at most a third of `keep`: a position
                # expires `keep` seconds after its last request.
                longest = min(LONGEST_PAUSE * len(wait.registry.open_waits), position.pause())
                pause = random.uniform(longest * 3 / 4, longest)
            else:
                pause = pause_without_messages
                pause_without_messages = min(2 * pause, LONGEST_PAUSE)
            next_request_at = now() + pause
            while not wait.event.is_set() and now() < next_request_at:
                until = next_request_at if watch is None else min(next_request_at, watch.wake_at())
                if end is not None:
                    until = min(until, end)
                yield Pause(wait, max(until - now(), 0))
                if watch is not None and not wait.event.is_set():
                    yield from watch.check(is_last)
                if end is not None and now() >= end:
                    break
            if wait.valid_grant() is not None:
                return True
            if self._deadlock is not None:
                refusal = _protocol.refusal(self._deadlock, self._name)
                assert refusal is not None
                raise refusal from self._deadlock
            leaves = watch is not None and watch.departures != departures
            if wait.cancelled or leaves or (end is not None and now() >= end):
                return None

    def _ask(self, position: QueuePosition) -> Steps:
        options = self._options if self._names_owner else self._options.owned_by(None)
        name = CountedName("DLOCK.ACQUIRE")
        options = position.added_to(options, name)
        self._message = b"" if options.notify is None else options.notify[1]
        command = _protocol.acquire(self._key, self._token, self._lease, options, name)
        refused, position.wait.refused = position.wait.refused, False

        def question(member: int) -> Steps:
            try:
                if refused:
                    yield Reconnect()
                return (yield from _protocol.send_raising_for_data(command, self._name))
            except NO_ANSWER:
                # The wait may have ended meanwhile, because the caller was cancelled.
                self._unanswered_acquires.add(member)
                raise

        answers = yield from self._quorum.ask(
            [self._queue], question, lambda answers, awaited: self._queue in answers
        )
        return answers.get(self._queue, TimeoutError("no answer in time"))

    def _begin_search(self, wait: Wait) -> Steps:
        """Begins to ask the members of the earlier queues, in the background, whether this wait would close a
        cycle there: no member sees the waits in the queues of others."""
        earlier = self._quorum.earlier_queues(self._queue)
        if self._options.owner is not None and earlier:
            yield Begin(self._search(earlier, wait), self._quorum)

    def _search(self, members: list[int], wait: Wait) -> Steps:
        # The position or grant of this fresh token is released at once. If that fails, or the ACQUIRE has no
        # answer, it ends within SEARCH_TIME.
        token, time = _protocol.fresh_token(), min(SEARCH_TIME, self._lease)
        options = Options(shared=self._options.shared, owner=self._options.owner, queue=time)
        acquire = _protocol.acquire(self._key, token, time, options)

        def question(member: int) -> Steps:
            answer = yield from _protocol.send(acquire)
            yield from _protocol.send(_protocol.release(self._key, token))
            return answer

        def on_answer(member: int, answer: Any) -> None:
            # The owner may have given up a position or a hold that this member still has.
            if _protocol.error_word(answer) == "DEADLOCK" and not _protocol.is_own_deadlock(answer):
                self._deadlock = answer
                wait.event.set()

        yield from self._quorum.ask(members, question, all_answered, on_answer)
