"""Holds, with their validity, renewal and loss; and owed commands, which are repeated until a server has
confirmed them.

Both are tasks (`_steps.Task`): `_threads.py` or `_tasks.py` wakes a task at the times that the task chooses,
and carries out the steps that the task returns. This module does no I/O and starts no thread."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import random
import threading
from typing import Any, Callable

from redis.exceptions import LockError, ResponseError, TimeoutError

from . import _observer, _protocol
from ._clock import now, on_grid, validity
from ._owners import Caller, Owner
from ._protocol import Args, CountedName, Reconnect, Steps
from ._steps import LIMIT, SINGLE, Over, Peer, Sleep, WhichPeer
from ._waits import KEEP, WaitRegistry

# Guards each `Hold.loss`: only the first reason counts.
_LOSS_LOCK = threading.Lock()

# The background claims a grant that a message reported after this time, in seconds. A hold that is released
# sooner needs no claim.
CLAIM_AFTER = 0.02
# The pause before a claim is repeated is that of a renewal of this lease at most, in ms.
CLAIM_LEASE = 5000

# The reason of the loss of an ephemeral hold in a cluster.
SLOT_MOVED = "its slot has moved away from its connection"

# The reason of a loss by `max_hold`.
MAX_HOLD_PASSED = "its longest time (max_hold) has passed"

# First pause before an owed command is sent again, and the longest one after a request without a confirming
# answer, in seconds. A short outage must not leave a lock closed for longer.
FIRST_OWED_PAUSE = 0.05
LONGEST_PAUSE_AFTER_FAILURE = 2.0
# The longest pause after an answer, while a late ACQUIRE may still create the hold again.
LONGEST_PAUSE_AFTER_ANSWER = 10.0

# First pause between two searches for the node of a hold in a cluster, and the longest one, in seconds.
FIRST_SEARCH_PAUSE = 0.05
LONGEST_SEARCH_PAUSE = 1.0

logger = logging.getLogger("dlock")


class UnansweredLeases:
    """The leases of requests without an answer, by member. A member may still set such a lease, even after it
    has confirmed a longer one over another connection."""

    def __init__(self) -> None:
        # Longest lease in ms that any request may have set, also one that is answered.
        self.longest = 0
        # When the last answered request to the single server was sent.
        self.sent_at = -math.inf
        self._leases: dict[int, list[int]] = {}

    def send(self, member: int, name: str, command: Callable[[CountedName], Args], lease: int) -> Steps:
        """Sends a command that sets the lease, and records the lease until every copy of the command is
        answered. If redis-py has sent an earlier copy over a connection that broke, the lease stays recorded:
        the answer to that copy never arrives."""
        counted_name, answers = CountedName(name), 0
        leases = self._leases.setdefault(member, [])
        leases.append(lease)
        self.longest = max(self.longest, lease)
        try:
            reply = yield from _protocol.send(command(counted_name))
            answers = 1
            if member == SINGLE:
                self.sent_at = counted_name.sent_at
        except ResponseError:
            answers = 1  # the server did nothing
            raise
        finally:
            if counted_name.times_sent <= answers:
                leases.remove(lease)
        return reply

    def shortest(self, member: int) -> float:
        """Returns the shortest lease, in ms, that an unanswered request may still set at the member. Infinite
        if there is no such request."""
        return min(self._leases.get(member, ()), default=math.inf)

    def ensure_certain(self, lease: int) -> None:
        """Raises `TimeoutError` if the single server may still set a shorter lease than `lease`, in ms."""
        shortest = self.shortest(SINGLE)
        if shortest < lease:
            text = f"Only {shortest / 1000:g} s are certain: an earlier, shorter extension has no answer"
            raise TimeoutError(text + " yet. Release the lock to start anew")

    def shortest_of_all(self) -> float:
        """Returns the shortest lease, in ms, that an unanswered request may still set at any member. Infinite
        if there is no such request."""
        return min(map(self.shortest, list(self._leases)), default=math.inf)


class Hold:
    """The hold of one token, with its validity: the time for which its owner may rely on it."""

    # What few holds have, or change. An attribute of the class costs a hold nothing.

    # The hold is lost at this time, whatever its lease (`max_hold`).
    ends_at = math.inf
    # Number of acquisitions of a reentrant hold that its owner has not released.
    depth = 1
    # True until the observer, which has counted the acquisition, is told how the hold has ended.
    is_observed = False
    # True once the hold was released, or a later acquisition with the same token has taken its place.
    over = False
    # The reason of the loss.
    loss: str | None = None
    # True if its caller never had it, so that `at_least` does not count.
    is_unused = False
    # True once a RELEASE was sent. If a later RELEASE finds no hold, the earlier one may have ended it.
    release_sent = False
    # The members that were asked for the lock, and so may hold it for this token. None means all.
    members_asked: set[int] | None = None
    # See `Task`.
    changed: Callable[[], object] | None = None
    # Watches the hold on the server. None if no caller waits for its loss, and if that is not possible.
    loss_watch: LossWatch | ClusterLossWatch | None = None
    # Called with the token and the hold. Returns the steps that return why the server has ended the hold.
    ask_why: Callable[[bytes, Hold], Steps] | None = None
    # True for a hold that any number of sharers may have.
    is_shared = False
    # The client of the connection that an ephemeral hold is bound to.
    connection: Any = None
    # Time of the next try after a failed renewal, infinite during a renewal. None before the first renewal
    # and after a successful one.
    _retry_at: float | None = None
    # The last error of a renewal, for the reason of a loss.
    _failure = ""

    def __init__(
        self,
        key: bytes,
        token: bytes,
        lease: int,
        fence: int | None,
        valid_until: float,
        caller: Caller,
        owner: Owner | None,
        renewed: bool,
        on_lost: Callable[[str], object] | None,
        ask_extend: Callable[[Hold, int], Steps],
        unanswered: UnansweredLeases,
        is_claimed: bool = True,
        ask_claim: Callable[[CountedName], Steps] | None = None,
    ) -> None:
        """``is_claimed``: False if the server has granted the lock to a queue position. Its lease ends with
        the position, until an EXTEND claims the hold."""
        self.key = key
        self.token = token
        # Lease length in ms.
        self.lease = lease
        self.fence = fence
        self._valid_until = valid_until
        # The thread or task that acquired the lock. Only this one may enter a reentrant hold again.
        self.caller = caller
        # None if the requests name no owner.
        self.owner = owner
        # Whether the background renews the lease.
        self.renewed = renewed
        self.on_lost = on_lost
        self.unanswered = unanswered
        # When the grant was received.
        self.received_at = now()
        self.is_claimed = is_claimed
        # Returns the steps that claim the hold, for the name of the command. They return whether its lease is
        # set.
        self._ask_claim = ask_claim
        # Called with the hold and a lease in ms. Returns the steps that set this lease. The steps return
        # whether the token holds the lock.
        self._ask_extend = ask_extend
        self.pid = os.getpid()
        # The members that have not answered the ACQUIRE of this hold, or a copy of it. They may execute it
        # after a RELEASE, so the RELEASE is repeated there. SINGLE stands for the single server.
        self.members_to_release_again: set[int] = set()
        # Called when the hold is lost or over.
        self.wakers: list[Callable[[], object]] = []
        # The lease of the next renewal, in ms: less than `lease` while a request for less is unanswered.
        self._next_lease = lease
        # Locked during a renewal or an extension: two EXTENDs at once could arrive in either order.
        self._extend_lock = threading.Lock()
        # True once `on_lost` was called, or if it is None.
        self._reported = on_lost is None
        if owner is not None:
            owner.add(self)

    @property
    def valid_until(self) -> float:
        return self._valid_until

    @valid_until.setter
    def valid_until(self, end: float) -> None:
        is_earlier, self._valid_until = end < self._valid_until, end
        if is_earlier and self.changed is not None:
            self.changed()

    def is_lost(self) -> bool:
        """Returns whether the hold is lost. Marks it as lost first if its validity has ended, or in a forked
        child, which does not own the hold of its parent."""
        if self.loss is not None or self.over:
            return self.loss is not None
        if self.pid != os.getpid():
            self.lose("another process acquired it")
        elif now() >= self.ends_at:
            self.lose(MAX_HOLD_PASSED)
        elif now() >= self._valid_until:
            self.lose("its lease ended" + (f": {self._failure}" if self._failure else ""))
        return self.loss is not None

    def is_held(self) -> bool:
        """Returns whether the owner may rely on the hold: it is neither lost nor released, and belongs to
        this process."""
        return not self.over and self.pid == os.getpid() and not self.is_lost()

    def note_extended(self, sent: float) -> None:
        """Called before the background renews the hold, when an EXTEND of the full lease was answered."""
        self.valid_until = sent + validity(self.lease / 1000)
        self.is_claimed = True

    def longest_lease(self) -> int:
        """Returns the longest lease, in ms, that any request of this hold may have set. An unanswered request
        counts, too. The release is owed for that time."""
        return max(self.lease, self.unanswered.longest)

    def lose(self, why: str) -> None:
        """Marks the hold as lost. Does not call `on_lost`: `wake` does, in the background."""
        with _LOSS_LOCK:
            if self.loss is not None or self.over:
                return
            self.loss = why
        self.report_end(None)
        self._wake_all()

    def lose_elsewhere(self) -> Steps:
        """Marks the hold as lost because the server does not have it any more."""
        self.lose("taken away" if self.ask_why is None else (yield from self.ask_why(self.token, self)))

    def end(self) -> None:
        """Marks the hold as released, or as replaced by a later acquisition with the same token. If it was
        lost before, the background still calls `on_lost`."""
        # If the validity has ended, this records the loss: `is_lost` records none once `over` is set.
        self.is_lost()
        self.over = True
        self._wake_all()

    def report_end(self, held: float | None) -> None:
        """Tells the observer, once, that the hold was released after this time in seconds; None if it was
        lost."""
        observer = _observer.observer
        # One call in C takes the flag: another thread may report a loss at the same time.
        if observer is None or not self.__dict__.pop("is_observed", False):
            return
        if held is None:
            observer.lost()
        else:
            observer.released(held)

    def _wake_all(self) -> None:
        if self.owner is not None:
            self.owner.remove(self)
        changed = self.changed
        if changed is not None:
            changed()
        # A copy of the list, as a waker may remove itself.
        for wake in list(self.wakers):
            wake()

    # The methods of a `Task`.

    def _lost_at(self) -> float:
        """Returns the time at which the hold is declared lost: the end of its validity, or of its longest
        time. A renewed hold is declared lost a tenth of the lease earlier, so that its owner has time to
        stop. Until it is claimed, its lease is at most that of a queue position."""
        lease = self._next_lease / 1000
        if not self.is_claimed:
            lease = min(lease, KEEP)
        notice = lease / 10 if self.renewed else 0
        return min(self.valid_until - notice, self.ends_at)

    def master_changed(self) -> None:
        """Called when another server is the master. It may not have the hold: it is asked soon."""
        if self.connection is not None:
            self.lose("another server is the master")
        elif self._retry_at is None and self.is_claimed and self.renewed:
            self._retry_at = now()
            if self.changed is not None:
                self.changed()

    def needs_background(self) -> bool:
        """Returns whether the background renews, claims or watches the hold."""
        return self.renewed or self.on_lost is not None or not self.is_claimed or self.ends_at < math.inf

    def finished(self) -> bool:
        return self.over or not self.needs_background() if self.loss is None else self._reported

    def wake_at(self) -> float:
        if self.loss is not None:
            return -math.inf
        if self._extend_lock.locked() or (self.is_claimed and not self.renewed):
            return self._lost_at()
        if self._retry_at is not None:
            return min(self._retry_at, self._lost_at())
        if not self.is_claimed:
            return min(self.received_at + CLAIM_AFTER, self._lost_at())
        # A renewal is due after a third of the lease, so that two thirds are left for retries.
        lease = self._next_lease / 1000
        return min(on_grid(self.valid_until - lease, lease / 3), self._lost_at())

    def wake(self) -> Steps | Callable[[], object] | None:
        if now() >= self.ends_at:
            self.lose(MAX_HOLD_PASSED)
        elif now() >= self._lost_at():
            self.lose("not renewed in time" + (f": {self._failure}" if self._failure else ""))
        if self.loss is not None:
            return self._report()
        if not self._extend_lock.acquire(blocking=False):
            return None
        self._retry_at = math.inf
        return self._renewal()

    def steps_ended(self) -> None:
        # A successful renewal has cleared `_retry_at`. Otherwise the renewal failed or was cancelled.
        if self._retry_at is not None:
            lease = self.lease if self.is_claimed else min(self.lease, CLAIM_LEASE)
            self._retry_at = now() + random.uniform(0.5, 1) * lease / 10_000
        self._extend_lock.release()

    def _report(self) -> Callable[[], object] | None:
        if self.on_lost is None or self._reported:
            return None
        self._reported = True
        return functools.partial(self.on_lost, self.loss or "")

    def _renewed_lease(self) -> int:
        """Returns the lease of a renewal, in ms: at most the shortest lease that an unanswered request may
        still set. In a quorum, the member of that request would have no vote on a longer lease
        (`_extension_vote` in `_quorum_core.py`)."""
        return int(min(self.lease, self.unanswered.shortest_of_all()))

    def _renewal(self) -> Steps:
        try:
            if not self.over:
                yield from self._set_lease(self._renewed_lease())
            self._retry_at = None
        # Catches any exception, as clusters and credential providers raise classes of their own.
        except Exception as why:
            self._failure = f"{type(why).__name__}: {why}"

    def extend(self, lease: int) -> Steps:
        """Sets the lease at the owner's request, after the end of any renewal under way. Returns whether the
        token holds the lock. Raises `TimeoutError` if an unanswered request may still shorten the lease."""
        while not self._extend_lock.acquire(blocking=False):
            # This loop also ends with the hold: if an exception (such as KeyboardInterrupt) came between
            # `acquire` and `try` in an earlier call, `_extend_lock` stays locked for ever.
            if self.is_lost():
                return False
            yield Sleep(0.005)
        try:
            held = yield from self._set_lease(lease)
            if held:
                self.unanswered.ensure_certain(lease)
            return held
        finally:
            self._extend_lock.release()
            # The next renewal may be due earlier than the end of the validity.
            if self.changed is not None:
                self.changed()

    def _set_lease(self, lease: int) -> Steps:
        """Sets the lease, in ms from now. Returns whether the token holds the lock."""
        sent = now()
        # A shorter lease shortens the validity before the request is sent: the server may set this lease even
        # if its reply never arrives. Servers refuse a lease of 0.
        if lease > 0:
            self.valid_until = min(self.valid_until, sent + validity(lease / 1000))
        if not self.is_claimed and self._ask_claim is not None:
            if not (yield from self._claim()):
                return False
            if lease == self.lease:
                return True
            sent = now()
        held = yield from self._ask_extend(self, lease)
        if self.is_lost():
            # The hold stays lost even if the server has extended it: the owner may have seen the loss, and
            # stopped its work.
            return False
        if not held:
            yield from self.lose_elsewhere()
            return False
        # A single server may still set the shortest unanswered lease, so the hold is certain only for that
        # time. In a quorum, where `shortest(SINGLE)` is infinite, `lease` is certain: a member that may still
        # set a shorter lease had no vote.
        certain_lease = min(lease, self.unanswered.shortest(SINGLE))
        self.valid_until = max(sent, self.unanswered.sent_at) + validity(certain_lease / 1000)
        self._next_lease = self._renewed_lease()
        self.is_claimed = True
        if self.loss_watch is not None:
            # The connection may be a new one, for which the server does not track the key yet.
            self.loss_watch.check()
        return True

    def _claim(self) -> Steps:
        """Claims the hold. Returns whether the owner still has it."""
        assert self._ask_claim is not None
        name = CountedName("DLOCK.ACQUIRE")
        claimed = yield from self._ask_claim(name)
        if not claimed:
            self.lose("taken away")
        if self.is_lost() or (self.over and not claimed):
            # The claim may have queued the token again, or granted it another hold, for example because the
            # server has read the owner's RELEASE first.
            yield from _protocol.send_or_default(_protocol.release(self.key, self.token), if_wrong_type=0)
            return False
        self.valid_until = name.sent_at + validity(self.lease / 1000)
        self._next_lease = self._renewed_lease()
        self.is_claimed = True
        return True


class LossWatch:
    """Notices within a round trip that the server has ended a hold. The server tracks the key for the
    background's connection after each HOLDS, and announces the next change to the subscription. A renewal
    is a change, too. So HOLDS is sent at the start and after each announcement, and again if it got no
    answer."""

    def __init__(
        self, hold: Hold, registry: WaitRegistry, on_away: Callable[[], object] | None = None
    ) -> None:
        """``on_away``: for a node of a cluster. Called when it does not have the hold or cannot be asked, as
        another node may have the slot by now."""
        self.changed: Callable[[], object] | None = None
        self.key = hold.key
        self._hold = hold
        self._registry = registry
        self._on_away = on_away
        # When to send HOLDS, if there is a subscription.
        self._due_at = -math.inf
        # The subscription to which the server could not send its announcements. None if it could.
        self._missing_id: int | None = None
        # True once the watch has ended: for example, the user has no right to the commands.
        self._is_over = False
        registry.watchers.add(self)
        hold.wakers.append(self.stop)

    def check(self) -> None:
        self._due_at = -math.inf
        self._reschedule()

    def disconnected(self) -> None:
        self._search()

    def _search(self) -> None:
        if self._on_away is not None and not self.finished():
            self._on_away()

    def stop(self) -> None:
        self._is_over = True
        self._registry.watchers.discard(self)
        self._registry.idle_since = now()
        with contextlib.suppress(ValueError):  # removed already
            self._hold.wakers.remove(self.stop)
        self._reschedule()

    def _reschedule(self) -> None:
        changed = self.changed
        if changed is not None:
            changed()

    # The methods of a `Task`.

    def finished(self) -> bool:
        return self._is_over or self._hold.over or self._hold.loss is not None

    def wake_at(self) -> float:
        return self._due_at if self._registry.tracking_id() is not None else math.inf

    def wake(self) -> Steps:
        self._due_at = math.inf
        return self._check()

    def steps_ended(self) -> None:
        pass

    def _check(self) -> Steps:
        hold, client_id = self._hold, self._registry.tracking_id()
        if client_id is None or self.finished():
            return
        try:
            yield ("CLIENT", "TRACKING", "ON", "REDIRECT", client_id)
            held = yield from _protocol.send_or_default(
                _protocol.holds(hold.key, hold.token), if_wrong_type=0
            )
            self._missing_id = None
            if held or hold.over:
                return
            if self._on_away is None:
                yield from hold.lose_elsewhere()
            self._search()
        except ResponseError as why:
            if _protocol.is_redirect(why):
                self._search()
            # The subscription may have ended meanwhile. Then a new one checks again.
            elif client_id == self._registry.tracking_id():
                yield from self._refused(why, client_id)
        except Exception as why:
            logger.debug("not watching: %s", why)
            self._due_at = min(self._due_at, now() + LIMIT)
            self._search()

    def _refused(self, why: ResponseError, client_id: int) -> Steps:
        if _protocol.is_misuse(why) and "redirect" in str(why) and self._missing_id is None:
            # The connection of the request leads to another server than the subscription, for example after
            # a failover. The new subscription checks again.
            self._missing_id = client_id
            yield Reconnect()
        else:
            self.stop()


class ClusterLossWatch:
    """Watches a hold in a cluster: by a `LossWatch` at the node of its key. If that node does not have the
    hold, or cannot be asked, this task asks for the hold through the user's client, which follows the slot.
    Then the hold is watched at the node that this client has found."""

    def __init__(
        self,
        hold: Hold,
        cluster: Any,
        find_node: Callable[[], Any],
        watch_at: Callable[[Any, Callable[[], object]], LossWatch],
    ) -> None:
        """``find_node``: returns the client of the key's node, as far as ``cluster`` knows. ``watch_at``:
        begins to watch at such a client, with an ``on_away`` of `LossWatch`."""
        self.changed: Callable[[], object] | None = None
        self._hold = hold
        self._cluster = cluster
        self._find_node = find_node
        self._watch_at = watch_at
        self._node: Any = None
        self._watch: LossWatch | None = None
        self._next_search_at = math.inf
        self._pause = 0.0
        hold.wakers.append(self._reschedule)
        try:
            self._watch_at_node()
        except Exception:  # the client knows no node of the slot
            self.search()

    def check(self) -> None:
        """Called after each renewal."""
        self._pause = 0.0
        if self._watch is not None:
            self._watch.check()

    def search(self) -> None:
        """Called when the node does not have the hold, or cannot be asked."""
        if self._next_search_at == math.inf:
            self._next_search_at = now() + self._pause
            self._pause = min(max(2 * self._pause, FIRST_SEARCH_PAUSE), LONGEST_SEARCH_PAUSE)
            self._reschedule()

    def _reschedule(self) -> None:
        changed = self.changed
        if changed is not None:
            changed()

    def _watch_at_node(self) -> None:
        node = self._find_node()
        if node is self._node and self._watch is not None:
            self._watch.check()
            return
        earlier, self._node = self._watch, node
        if earlier is not None:
            earlier.stop()
            if self._hold.connection is not None:
                self._hold.lose(SLOT_MOVED)
                return
        self._watch = self._watch_at(node, self.search)

    # The methods of a `Task`.

    def finished(self) -> bool:
        return self._hold.over or self._hold.loss is not None

    def wake_at(self) -> float:
        return self._next_search_at

    def wake(self) -> Steps:
        self._next_search_at = math.inf
        return self._search()

    def steps_ended(self) -> None:
        pass

    def _search(self) -> Steps:
        hold = self._hold
        try:
            held = yield Over(self._cluster, _protocol.holds(hold.key, hold.token))
            if self.finished():
                return
            if not held:
                yield from hold.lose_elsewhere()
                return
            self._watch_at_node()
        # Catches any exception, as clusters raise classes of their own.
        except Exception as why:
            logger.debug("not watching: %s", why)
            self.search()


class Owed:
    """An owed command: a RELEASE or CANCEL that the background repeats until the server has confirmed it. The
    repetition also ends once the hold or queue position has expired by itself."""

    def __init__(
        self,
        command: Callable[[], Args],
        expires_after: float,
        *,
        answers_needed: int = 1,
        repeats: Callable[[], bool] = lambda: False,
    ) -> None:
        """``command``: returns the command, for each time that it is sent. ``expires_after``: the time in
        seconds after which the hold or position has expired by itself. ``answers_needed``: the number of
        answers that confirm the command. ``repeats``: returns whether the command is repeated for all of that
        time, even after these answers."""
        # Number of holds or positions that the command has removed. None before the first reply.
        self.removed: int | None = None
        # True after a request without an answer: it may have removed a hold that `removed` does not count.
        self.unanswered = False
        # True once the first request has an answer or an error.
        self.is_tried = False
        # See `OwedTask`.
        self.changed: Callable[[], object] | None = None
        self.on_answer: Callable[[], object] | None = None
        # Receives the reply and the server that sent it, and returns whether the reply confirms the command.
        # None if every reply does.
        self.confirms: Callable[[int, Peer], bool] | None = None
        # Called after each request that fails.
        self.on_failure: Callable[[Exception], object] | None = None
        self._command = command
        self._missing_answers = answers_needed
        self._repeats = repeats
        self._expires_at = now() + expires_after
        self._next_send_at = now()
        self._pause = FIRST_OWED_PAUSE
        # Whether the last request has an answer that confirms the command.
        self._is_answered = False

    def is_awaited(self) -> bool:
        # The time of the next request is infinite while one is under way.
        return not self.is_tried and (self._next_send_at == math.inf or not self.finished())

    def finished(self) -> bool:
        return now() > self._expires_at or (self._missing_answers <= 0 and not self._repeats())

    def wake_at(self) -> float:
        return self._next_send_at

    def wake(self) -> Steps | None:
        self._next_send_at = math.inf
        self._is_answered = False
        return self._send()

    def steps_ended(self) -> None:
        longest = LONGEST_PAUSE_AFTER_ANSWER if self._is_answered else LONGEST_PAUSE_AFTER_FAILURE
        self._next_send_at = now() + min(self._pause, longest)
        self._pause = min(self._pause * 2, longest)

    def _send(self) -> Steps:
        try:
            removed = yield from _protocol.send_or_default(self._command(), if_wrong_type=0)
            if self.confirms is not None and not self.confirms(removed, (yield WhichPeer())):
                raise LockError("the same server as another member")
            self.removed = (self.removed or 0) + removed
            self._is_answered = True
            self._missing_answers -= 1
            self.is_tried = True
            if self.on_answer is not None:
                self.on_answer()
        except Exception as why:
            self.is_tried = True
            self.unanswered |= not isinstance(why, ResponseError)
            self.note_failure(why)
            if self.on_failure is not None:
                self.on_failure(why)

    def note_failure(self, why: Exception) -> None:
        """Called after each request that fails."""


class OwedRelease(Owed):
    """A RELEASE. By default it is sent until it has two answers: after the first answer, the server may still
    read an ACQUIRE that was sent over an earlier, broken connection."""

    def __init__(
        self,
        key: bytes,
        token: bytes,
        expires_after: float,
        *,
        answers_needed: int = 2,
        repeats: Callable[[], bool] = lambda: False,
        delay: Callable[[], int | None] = lambda: None,
    ) -> None:
        """``delay``: returns the delay of the RELEASE in ms."""
        # The error of a server that calls the RELEASE invalid. It accepts the delay no longer, so the RELEASE
        # is sent without one: the lock must not stay held.
        self.refusal: Exception | None = None
        super().__init__(
            lambda: _protocol.release(key, token, delay=None if self.refusal else delay()),
            expires_after,
            answers_needed=answers_needed,
            repeats=repeats,
        )

    def note_failure(self, why: Exception) -> None:
        """Called after each request that fails."""
        if _protocol.is_misuse(why):
            self.refusal = why


def _forked() -> None:
    # If another thread of the parent had locked `_LOSS_LOCK` at the fork, the child's copy stays locked.
    global _LOSS_LOCK
    _LOSS_LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
