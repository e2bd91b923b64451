"""The lock itself, as steps: each method yields what it wants done (a command as a tuple, or one of the
classes below) and is sent the outcome. `lock.py` carries the steps out with threads, `asyncio.py` with
tasks."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any, Callable, Union

from redis.exceptions import (
    ConnectionError,
    LockError,
    LockNotOwnedError,
    NoPermissionError,
    ResponseError,
    TimeoutError,
)

from . import _protocol
from ._hold import Hold, OwedRelease, Sleep, Steps, now, or_wrong_type, trusted
from ._protocol import Args, Key, error
from ._waits import ASK, KEEP, Wait

# The lease of a lock without a timeout, ms. It is renewed until the release or the end of the process.
LEASE = 30_000
# The lock is asked for this often if each answer takes longer than the lease.
LATE = 3

Number = Union[int, float]

NO_ANSWER = (ConnectionError, TimeoutError)


class Listen:
    """A step: open a wait, and listen for it. Answers a `Wait`."""


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
    """A step: release in the background, until it is confirmed; wait a moment for `enough` answers."""

    def __init__(self, owed: Mapping[int, OwedRelease], enough: Callable[[], bool]) -> None:
        # By member of a quorum; a single server has no number.
        self.owed = owed
        self.enough = enough


SINGLE = -1


def owe(owed: OwedRelease) -> Owe:
    return Owe({SINGLE: owed}, lambda: owed.ended is not None)


class Core:
    """What `Lock` and `asyncio.Lock` share."""

    _local_state: type[Any]

    def __init__(
        self,
        redis: Any,
        name: Key,
        timeout: Number | None = None,
        sleep: Number = 0.1,
        blocking: bool = True,
        blocking_timeout: Number | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
        *,
        shared: bool = False,
        permits: int | None = None,
        reentrant: bool = False,
        auto_renew: bool | None = None,
        on_lost: Callable[[str], object] | None = None,
    ) -> None:
        self.redis = redis
        self.name: Any = name
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.local: Any = self._local_state() if self.thread_local else State()
        if shared and permits is not None:
            raise ValueError("a lock is either shared or has permits: leave one out")
        self.shared = shared
        self.permits = permits
        self.reentrant = reentrant
        self.auto_renew = not self.timeout if auto_renew is None else auto_renew
        if not self.timeout and not self.auto_renew:
            raise ValueError("without a timeout the lock is renewed: give a timeout, or leave out auto_renew")
        self.on_lost = on_lost
        self._encode: Callable[[Any], bytes] = _encoder(redis).encode
        self._key = self._encode(name)
        self._terms: Args = ("SHARED",) if shared else ("PERMITS", permits) if permits is not None else ()

    def _owner(self) -> object:
        """Who may enter a reentrant hold again."""
        raise NotImplementedError

    # What is held.

    @property
    def fence(self) -> int | None:
        """The fence of the hold: store it with what the lock protects, and refuse lower ones. None if the
        lock is not held."""
        hold = self._hold()
        return None if hold is None else hold.fence

    def _hold(self) -> Hold | None:
        """The hold of this token, if this object has acquired it."""
        hold: Hold | None = self.local.hold
        token = self.local.token
        return hold if hold is not None and token is not None and hold.token == self._encode(token) else None

    def _held(self, doing: str) -> bytes:
        """The token, for a command of its holder."""
        token = self.local.token
        if token is None:
            raise error(
                LockError, f"Cannot {doing} a lock that's not owned or is already unlocked.", self.name
            )
        hold = self._hold()
        # A hold belongs to the process that acquired it: a fork that ends must not release it.
        if hold is not None and hold.pid != os.getpid():
            raise self._not_owned(doing, "another process acquired it")
        return self._encode(token)

    def _not_owned(self, doing: str, why: str) -> LockError:
        return error(LockNotOwnedError, f"Cannot {doing} a lock that's no longer owned: {why}", self.name)

    def _lease(self) -> int:
        return int(self.timeout * 1000) if self.timeout else LEASE

    # Acquiring.

    def _acquiring(self, sleep: float, blocking: bool, limit: float | None, token: Any) -> Steps:
        inside = self._hold()
        if inside is not None and not inside.over and inside.pid == os.getpid():
            lost = inside.is_lost()
            if self.reentrant and inside.owner == self._owner():
                if lost:
                    raise self._not_owned("enter", f"{inside.loss}; release it first")
                inside.depth += 1
                return True
            if not lost and (self.shared or self.permits is not None):
                # A second hold would push out the first, which nobody could release then.
                raise error(
                    LockError, "Already acquired here: use another Lock, or reentrant=True", self.name
                )
        attempt = self._attempt(None if token is None else self._encode(token))
        # blocking_timeout=0 is one try, as ever.
        end = None if limit is None else now() + limit
        try:
            granted = yield from attempt.run(sleep, blocking, end)
        except GeneratorExit:
            raise
        except BaseException:
            # The server may have granted what it did not answer.
            if attempt.asked:
                yield attempt.owe()
            raise
        finally:
            attempt.close()
        if not granted:
            return False
        hold = Hold(
            attempt.token,
            attempt.lease,
            attempt.fence,
            attempt.valid_until,
            self._owner(),
            self.auto_renew,
            self.on_lost,
            functools.partial(self._ask_extend, attempt.token),
        )
        if inside is not None:
            inside.end()
        self.local.hold, self.local.token = hold, attempt.token
        if self.auto_renew or self.on_lost is not None:
            yield Watch(hold)
        return True

    # What is asked of a single server; `_quorum.py` asks a majority.

    def _attempt(self, token: bytes | None) -> Any:
        return Attempt(self._key, self.name, token, self._lease(), self._terms)

    def _ask_extend(self, token: bytes, ttl: int) -> Steps:
        return (yield from or_wrong_type(_protocol.extend(self._key, token, ttl), 0))

    def _ask_holds(self, token: bytes) -> Steps:
        return (yield from or_wrong_type(_protocol.holds(self._key, token), 0))

    def _ask_pttl(self, *token: bytes) -> Steps:
        # A key of another type is a lock of `SET NX PX`, held by a stranger.
        return (yield from or_wrong_type(_protocol.pttl(self._key, *token), -2 if token else 0))

    def _ask_release(self, token: bytes, lasts: float) -> Steps:
        try:
            return (yield from or_wrong_type(_protocol.release(self._key, token), 0))
        except (GeneratorExit, ResponseError):
            raise
        except BaseException:
            yield owe(OwedRelease(self._key, token, lasts))
            raise

    # For the holder.

    def _releasing(self) -> Steps:
        token = self._held("release")
        hold = self._hold()
        if hold is not None and not hold.over and hold.depth > 1:
            hold.depth -= 1
            if hold.is_lost():
                raise self._not_owned("release", hold.loss or "")
            return
        sent_before = hold is not None and hold.release_sent
        if hold is not None:
            hold.end()
            hold.release_sent = True
        ended = yield from self._ask_release(token, (self._lease() if hold is None else hold.lease) / 1000)
        self.local.token = self.local.hold = None
        if not ended and not sent_before:
            raise self._not_owned("release", (hold and hold.loss) or "it expired, or was taken away")

    def _extending(self, additional: float, replace: bool) -> Steps:
        token = self._held("extend")
        if self.timeout is None:
            raise error(LockError, "Cannot extend a lock with no timeout", self.name)
        ttl = int(additional * 1000)
        hold = self._hold()
        if not replace:
            left = -2
            if hold is None or not hold.is_lost():
                left = yield from self._ask_pttl(token)
            if left < 0:
                raise self._not_owned("extend", (hold and hold.loss) or "it expired, or was taken away")
            ttl += left
        return (yield from self._leasing("extend", token, ttl))

    def _reacquiring(self) -> Steps:
        token = self._held("reacquire")
        if self.timeout is None:
            raise error(LockError, "Cannot reacquire a lock with no timeout", self.name)
        return (yield from self._leasing("reacquire", token, self._lease()))

    def _leasing(self, doing: str, token: bytes, ttl: int) -> Steps:
        hold = self._hold()
        if hold is None:
            held = yield from self._ask_extend(token, ttl)
        else:
            # The clock first: a lost hold is not revived.
            held = not hold.is_lost() and (yield from hold.extending(ttl))
        if not held:
            raise self._not_owned(doing, (hold and hold.loss) or "it expired, or was taken away")
        return True

    def _asking_locked(self) -> Steps:
        return (yield from self._ask_pttl()) != -2

    def _asking_owned(self) -> Steps:
        token, hold = self.local.token, self._hold()
        if token is None or (hold is not None and (hold.pid != os.getpid() or hold.is_lost())):
            return False
        held = yield from self._ask_holds(self._encode(token))
        return held > 0 and (hold is None or not hold.is_lost())


# Keys that were found taken, and until when that is remembered. Whoever asks for one of them again enters the
# queue with the first request.
_contended: dict[bytes, float] = {}


def _note_contended(key: bytes, at: float) -> None:
    if len(_contended) >= 1000:
        _contended.clear()
    _contended[key] = at + 1.0


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
        self._key = key
        # A token that is used again must not be released late.
        self._releases = 2 if token is None else 1
        self._terms = terms
        self._notify = True

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
        if blocking and _contended.get(self._key, 0) > answered_at:
            self.wait = yield Listen()
        while True:
            pause = sleep
            terms = self._terms
            if self.wait is not None:
                self.wait.event.clear()
                terms += _protocol.queued(
                    int(KEEP * 1000), self.wait.desk.channel, self.wait.number, notify=self._notify
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
                    _note_contended(self._key, answered_at)
                if blocking and self.wait is None and (end is None or answered_at < end):
                    self.wait = yield Listen()
                    continue
                if self.wait is not None and self._notify and self.wait.listening:
                    pause = ASK
            if end is not None:
                pause = min(pause, end - now())
            if not blocking or pause <= 0:
                break
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
            return refusal.left
        raise answer if refusal is None else refusal from answer


def _encoder(client: Any) -> Any:
    if hasattr(client, "get_encoder"):
        return client.get_encoder()
    return client.connection_pool.get_encoder()


class State:
    """``local`` of a lock that threads share: what is held, by anyone."""

    token: bytes | str | None = None
    hold: Hold | None = None
