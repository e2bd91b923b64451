"""The lock itself, as steps: each method yields what it wants done (a command as a tuple, or a class of
`_attempt.py`) and is sent the outcome. `lock.py` carries the steps out with threads, `asyncio.py` with
tasks."""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
from collections.abc import Iterator
from typing import Any, Callable, Union

from redis.exceptions import LockError, LockNotOwnedError

from . import _protocol
from ._attempt import Attempt, Watch, owe
from ._clients import encoder
from ._hold import Hold, OwedRelease, Steps, logger, now, or_wrong_type
from ._protocol import Args, Key, error

# The lease of a lock without a timeout, ms. It is renewed until the release or the end of the process.
LEASE = 30_000

Number = Union[int, float]


class Core:
    """What `Lock` and `asyncio.Lock` share."""

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
        self.local: Any = LocalState() if self.thread_local else State()
        if shared and permits is not None:
            raise ValueError("a lock is either shared or has permits: leave one out")
        self.shared = shared
        self.permits = permits
        self.reentrant = reentrant
        self.auto_renew = not self.timeout if auto_renew is None else auto_renew
        if not self.timeout and not self.auto_renew:
            raise ValueError("without a timeout the lock is renewed: give a timeout, or leave out auto_renew")
        if inspect.iscoroutinefunction(on_lost):
            raise TypeError("on_lost is called, not awaited: give a plain function")
        self.on_lost = on_lost
        # The last one that was acquired, by whichever thread.
        self._latest: Hold | None = None
        self._encode: Callable[[Any], bytes] = encoder(redis).encode
        self._key = self._encode(name)
        self._terms: Args = ("SHARED",) if shared else ("PERMITS", permits) if permits is not None else ()

    def register_scripts(self) -> None:
        """There are none."""

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

    def _hold_of_thread(self) -> Hold | None:
        """The hold, for whoever asks whether it is lost: "no" must not be the answer in the wrong thread."""
        hold, latest = self._hold(), self._latest
        if hold is None and self.thread_local and latest is not None and not latest.over:
            text = "Another thread has acquired it: read `lost` there, and pass it on"
            raise error(LockError, text, self.name)
        return hold

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

    def _acquiring(
        self, sleep: Number | None, blocking: bool | None, limit: Number | None, token: Any
    ) -> Steps:
        """With the lock's own terms where there are none."""
        sleep = self.sleep if sleep is None else sleep
        blocking = self.blocking if blocking is None else blocking
        limit = self.blocking_timeout if limit is None else limit
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
            self._extension(attempt),
        )
        hold.members_asked = attempt.members_asked
        if inside is not None and not inside.is_lost():
            if inside.token == hold.token:
                inside.end()
            else:
                # Whoever had it by this object has it no more.
                inside.lose("taken away")
        self.local.hold, self.local.token, self._latest = hold, attempt.token, hold
        if self.auto_renew or self.on_lost is not None:
            try:
                yield Watch(hold)
            except BaseException:
                # No thread can be started, and whoever called does not know that it has the lock.
                yield from self._releasing()
                raise
        return True

    def _not_acquired(self) -> LockError:
        return error(LockError, "Unable to acquire lock within the time specified", self.name)

    @contextlib.contextmanager
    def _leaving(self) -> Iterator[None]:
        """Around the release at the end of a ``with``."""
        try:
            yield
        except LockError:
            if self.raise_on_release_error:
                raise
            logger.warning("Lock was unlocked or no longer owned when exiting context manager.")

    # What is asked of a single server; `_quorum.py` asks a majority.

    def _attempt(self, token: bytes | None) -> Any:
        return Attempt(self._key, self.name, token, self._lease(), self._terms)

    def _extension(self, attempt: Any) -> Callable[[Hold, int], Steps]:
        return lambda hold, ttl: self._ask_extend(hold.token, ttl)

    def _ask_extend(self, token: bytes, ttl: int) -> Steps:
        return (yield from or_wrong_type(_protocol.extend(self._key, token, ttl), 0))

    def _ask_holds(self, token: bytes) -> Steps:
        return (yield from or_wrong_type(_protocol.holds(self._key, token), 0))

    def _ask_pttl(self, *token: bytes) -> Steps:
        # A key of another type is a lock of `SET NX PX`, held by a stranger.
        return (yield from or_wrong_type(_protocol.pttl(self._key, *token), -2 if token else 0))

    def _ask_release(self, token: bytes, lasts: float) -> Steps:
        """Whether it ended the hold; None where one without an answer may have done so."""
        name = _protocol.Counted("DLOCK.RELEASE")
        try:
            ended = yield from or_wrong_type(_protocol.release(self._key, token, name), 0)
        except GeneratorExit:
            raise
        except BaseException:
            # A server that refuses to write keeps the hold.
            yield owe(OwedRelease(self._key, token, lasts))
            raise
        return True if ended else None if name.sent > 1 else False

    # For the holder.

    def _releasing(self, given: Any = None) -> Steps:
        """Of the token that is `given`, or the lock's own."""
        token = self._held("release") if given is None else self._encode(given)
        hold: Hold | None = self.local.hold
        if hold is not None and hold.token != token:
            hold = None
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
        # Another task, or thread, that shares this object may have acquired it since.
        if given is None and self._hold() is hold:
            self.local.token = self.local.hold = None
        loss = None if hold is None else hold.loss
        # Without an answer it is no loss, if it was none before.
        if not ended and (loss is not None or not (sent_before or ended is None)):
            raise self._not_owned("release", loss or "it expired, or was taken away")

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


class State:
    """``local`` of a lock that threads share: what is held, by anyone."""

    token: bytes | str | None = None
    hold: Hold | None = None


class LocalState(threading.local, State):
    """``local`` of a lock whose threads each see what they have acquired themselves."""


class Told:
    """Whether a hold is lost."""

    def __init__(self, hold: Hold | None) -> None:
        self._hold = hold

    def is_set(self) -> bool:
        return self._hold is not None and self._hold.is_lost()
