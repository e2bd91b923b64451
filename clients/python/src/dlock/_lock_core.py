"""The logic of a lock, without I/O. Methods that return `Steps` are generators: they yield each command as a
tuple, or an object of `_steps.py`, and receive its outcome. `_threads.py` carries out these steps for
`lock.py`, and `_tasks.py` for `asyncio.py`."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import math
import numbers
import os
import random
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Generic, Optional, TypeVar, Union

from redis.exceptions import (
    ConnectionError,
    LockError,
    LockNotOwnedError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from . import _observer, _protocol, _reading
from ._clients import accepts_delay, encoder, finds_master, is_cluster, note_delay
from ._clock import now, validity
from ._hold import Hold, OwedRelease, UnansweredLeases, logger
from ._owners import LONGEST_TEXT, Caller, named
from ._protocol import Args, Key, Options, Steps, error
from ._single_attempt import SingleAttempt, time_until_expired
from ._steps import SINGLE, AtKey, Close, Over, Owe, SeparateClient, Sleep, TurnLimit, Watch, WatchLoss, over
from ._waits import KEEP

# The lease of a lock without a timeout, in ms. A background thread or task renews it until the release or the
# end of the process.
LEASE = 30_000

# The shortest lease of a server, in seconds.
LEAST_LEASE = 0.001

# Longest pause between two looks at a lock by `wait_until_free`, in seconds.
FREE_PAUSE = 0.5
# Number of the incidents of a lock that are searched for the reason of a loss.
INCIDENTS = 20
# The text for a loss whose reason is unknown.
TAKEN_AWAY = "it expired, or was taken away"
# The incidents of LOG that end a hold, with their texts.
ENDS = {
    "expired": "it expired",
    "broken": "an operator broke it (DLOCK.BREAK)",
    "disconnected": "its connection ended",
    "vanished": "its key was deleted, evicted, flushed or overwritten",
}

Number = Union[int, float]
C = TypeVar("C")
# What a caller has by a lock object: the hold, if any, and how often it is entered.
Depth = tuple[Optional[Hold], int]
NOT_ENTERED: Depth = (None, 0)


def observed(acquiring: Callable[..., Steps]) -> Callable[..., Steps]:
    """Makes the observer, if there is one, record the outcome of the acquisition."""

    def recorded(observer: _observer.Observer, key: bytes, steps: Steps) -> Steps:
        begun = now()
        try:
            hold = yield from steps
        except BaseException as why:
            observer.not_acquired(key, now() - begun, why)
            raise
        if hold is None:
            observer.not_acquired(key, now() - begun, None)
        # A reentrant hold that was entered again is no new acquisition.
        elif hold.depth == 1:
            observer.acquired(key, now() - begun, hold.fence)
            hold.is_observed = True
            if hold.loss is not None:
                hold.report_end(None)
        return hold

    @functools.wraps(acquiring)
    def steps(self: Any, *args: Any) -> Steps:
        observer = _observer.observer
        inner = acquiring(self, *args)
        return inner if observer is None else recorded(observer, self._key, inner)

    return steps


class Core(Generic[C]):
    """The common base class of the locks for threads and for asyncio."""

    # The error if too few servers have answered. A single server raises the error of the connection.
    _no_majority: tuple[type[Exception], ...] = ()

    def __init__(
        self,
        redis: C,
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
        owner: str | bytes | None = None,
        label: str | bytes | None = None,
        delay: Number | None = None,
        ephemeral: bool = False,
        at_least: Number | None = None,
        max_hold: Number | None = None,
        durable: tuple[int, Number] | None = None,
    ) -> None:
        self._check(redis)
        for option, flag in (
            ("shared", shared),
            ("reentrant", reentrant),
            ("auto_renew", auto_renew),
            ("ephemeral", ephemeral),
        ):
            check_flag(option, flag)
        for option, seconds in ("at_least", at_least), ("delay", delay), ("max_hold", max_hold):
            check_seconds(option, seconds)
            if seconds is not None and seconds < 0:
                raise ValueError(f"{option} is a number of seconds from 0 on, and not {seconds!r}")
        if max_hold == 0:
            raise ValueError("max_hold is a number of seconds above 0, and not 0")
        if durable is not None:
            _check_durable(durable)
        check_seconds("timeout", timeout)
        # As with redis-py, 0 is no timeout.
        if timeout and timeout < LEAST_LEASE:
            raise ValueError(f"timeout is a number of seconds from {LEAST_LEASE} on, and not {timeout!r}")
        check_seconds("sleep", sleep)
        check_seconds("blocking_timeout", blocking_timeout, may_be_infinite=True)
        self.redis: Any = redis
        self.name: Any = name
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.local: Any = LocalState() if self.thread_local else State()
        self.shared = shared
        self.permits = permits
        self.reentrant = reentrant
        self.auto_renew = not self.timeout if auto_renew is None else auto_renew
        if not self.timeout and not self.auto_renew:
            raise ValueError("without a timeout the lock is renewed: give a timeout, or leave out auto_renew")
        if on_lost is not None:
            _check_on_lost(on_lost)
        self.on_lost = on_lost
        self.at_least = at_least
        self.max_hold = max_hold
        self.durable = durable
        # The last hold of this object, in any thread.
        self._latest: Hold | None = None
        self._key = self._encode(name)
        text = b"" if label is None else self._encode_option("label", label)
        # The owner that the user named. None for the owner of the thread or task, and for no owner.
        name_of_owner = b"" if owner is None else self._encode_option("owner", owner)
        self._named_owner = named(name_of_owner) if name_of_owner else None
        self._has_default_label = label is None
        self._options = options_of_lock(
            shared, permits, text, math.ceil(delay * 1000) if delay else 0, bool(ephemeral)
        )
        # Whether each thread or task is an owner. If threads share the hold (`thread_local` is False), a
        # cycle of waits need not be a deadlock: while the thread that acquired the lock waits, another thread
        # may release the lock. So the requests name no owner then.
        self._callers_are_owners = owner is None and self.thread_local
        # The holds of the `with` blocks that have not ended.
        self._entered: list[Hold] = []
        # By thread or task: its lost hold, which the hold of another one has replaced in this object. None
        # while there is none.
        self._replaced: weakref.WeakKeyDictionary[Caller, Hold] | None = None

    def _refuse_script(self, script: object) -> None:
        raise AttributeError(
            "dlock uses no Lua scripts. To set a lease instead of adding to it: replace_ttl=True"
        )

    # Attributes of `redis.lock.Lock`. Programs assign scripts of their own to them, to change what a method
    # does: celery-redbeat makes `extend` set the lease.
    lua_release = lua_extend = lua_reacquire = property(lambda self: None, _refuse_script)

    def register_scripts(self) -> None:
        """Does nothing: dlock has no scripts. `redis.lock.Lock` has this method."""

    def _check(self, redis: Any) -> None:
        """Raises TypeError unless ``redis`` is a client of the right kind."""
        raise NotImplementedError

    def _caller(self) -> Caller:
        """Returns the current thread or task."""
        raise NotImplementedError

    def _encode(self, value: Any) -> bytes:
        """Returns a name, token or label as the client sends it."""
        if type(value) is bytes:
            return value
        return bytes(value if isinstance(value, bytearray) else encoder(self.redis).encode(value))

    def _encode_option(self, option: str, text: Any) -> bytes:
        """Returns a label or the name of an owner as the client sends it."""
        if not isinstance(text, (str, bytes)):
            raise TypeError(f"{option} is a text, and not {text!r}")
        encoded = self._encode(text)
        if len(encoded) > LONGEST_TEXT:
            raise ValueError(f"{option} has at most {LONGEST_TEXT} bytes, and not {len(encoded)}")
        return encoded

    # The hold.

    @property
    def fence(self) -> int | None:
        """The fence of the hold: store it with the data that the lock protects, and reject writes with a
        lower one. None if the lock is not held."""
        hold = self._hold()
        return None if hold is None else hold.fence

    def _hold(self) -> Hold | None:
        """Returns the hold of this thread or task. If that of another one has replaced it, the lost hold,
        until this thread or task acquires the lock again or releases it."""
        lost = self._replaced.get(self._caller()) if self._replaced else None
        return self._present_hold() if lost is None else lost

    def _present_hold(self) -> Hold | None:
        """Returns the hold of this thread's token. None if this object has not acquired that token."""
        hold: Hold | None = self.local.hold
        token = self.local.token
        if hold is None or hold.token is token:
            return hold
        # The program may have set the token.
        return hold if token is not None and hold.token == self._encode(token) else None

    def _depth(self) -> Depth:
        """Returns the hold that this thread or task has by this object, and how often it is entered."""
        hold: Hold | None = self.local.hold
        return NOT_ENTERED if hold is None else (hold, hold.depth)

    def _has_acquired_since(self, earlier: Depth) -> bool:
        """Returns whether the caller has acquired the lock with this object since `_depth` returned
        ``earlier``, and has not released it."""
        hold, depth = self._depth()
        if hold is None or hold.over or hold.caller is not self._caller():
            return False
        return hold is not earlier[0] or depth > earlier[1]

    def _hold_for_lost(self) -> Hold | None:
        """Returns the hold that the property `lost` watches: the hold of this thread. Raises `LockError` if
        only another thread has acquired the lock with this object, because `lost` would never be set in this
        thread."""
        hold, latest = self._hold(), self._latest
        if hold is None and self.thread_local and latest is not None and not latest.over:
            text = "Another thread has acquired the lock: read `lost` in that thread, and pass the event on"
            raise error(LockError, text, self.name)
        return hold

    def _held_token(self, action: str) -> bytes:
        """Returns the token of the hold. Raises `LockError` if this thread holds nothing with this object.
        The message names the `action`, such as "release"."""
        hold, token = self._hold(), self.local.token
        if hold is not None and hold is not self.local.hold:
            raise self._not_owned(action, hold.loss or "")
        if token is None:
            raise error(
                LockError, f"Cannot {action} a lock that's not owned or is already unlocked.", self.name
            )
        # A forked child has a copy of its parent's hold, and must not release it.
        if hold is not None and hold.pid != os.getpid():
            raise self._not_owned(action, "another process acquired it")
        return self._encode(token)

    def _not_owned(self, action: str, why: str) -> LockError:
        return error(LockNotOwnedError, f"Cannot {action} a lock that's no longer owned: {why}", self.name)

    def _lease(self) -> int:
        """Returns the lease in ms."""
        return int(self.timeout * 1000) if self.timeout else LEASE

    # Acquiring.

    @observed
    def _acquiring(
        self,
        sleep: Number | None,
        blocking: bool | None,
        blocking_timeout: Number | None,
        token: Any,
        needed: Sequence[Hold] = (),
    ) -> Steps:
        """Acquires the lock. Returns the hold; None if it was not granted. If an argument is None, the
        attribute of the lock object is used instead. If the token is None, a fresh one is used. The wait ends
        with an error if one of the `needed` holds is lost, but not over a quorum."""
        sleep = self.sleep if sleep is None else sleep
        blocking = self.blocking if blocking is None else blocking
        blocking_timeout = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        check_seconds("sleep", sleep)
        check_seconds("blocking_timeout", blocking_timeout, may_be_infinite=True)
        caller = self._caller()
        owner = caller.owner() if self._callers_are_owners else self._named_owner
        entered = self._enter(caller)
        if entered is not None:
            return entered
        options = self._options.of_caller(owner, caller.label if self._has_default_label else b"")
        attempt = self._attempt(None if token is None else self._encode(token), options)
        attempt.needed = needed
        attempt.check_delay = self._check_delay if self.at_least else None
        blocking = _waits(blocking, blocking_timeout)
        end = None if blocking_timeout is None else now() + blocking_timeout
        connection = hold = None
        try:
            steps = attempt.run(sleep, blocking, end)
            if self._options.ephemeral:
                connection = yield SeparateClient(0, self._key)
                steps = over(connection, steps)
            if not (yield from steps):
                attempt.close()
                if connection is not None:
                    yield Close(connection)
                return None
            hold = Hold(
                self._key,
                attempt.token,
                attempt.lease,
                attempt.fence,
                attempt.valid_until,
                caller,
                owner,
                self.auto_renew,
                self.on_lost,
                self._extension(attempt),
                attempt.unanswered,
                attempt.is_claimed,
                None if attempt.is_claimed else attempt.claim,
            )
            hold.connection = connection
            if connection is not None and is_cluster(self.redis):
                connection.stays = True
            attempt.note_hold(hold)
            hold.members_asked = attempt.members_asked
            hold.members_to_release_again = attempt.members_to_release_again
            attempt.close()
            self._install(hold)
        except GeneratorExit:
            attempt.close()
            raise
        except BaseException:
            # Again, as an exception of a signal handler may have ended the first call.
            attempt.close()
            if hold is not None:
                hold.end()
            # The server may have granted the lock, although this client has not received the answer.
            if attempt.request_sent:
                yield from attempt.take_back()
            if connection is not None:
                yield Close(connection)
            raise
        try:
            if self.durable is not None:
                yield from self._make_durable(hold, *self.durable)
            if hold.needs_background():
                yield from self._watching(hold)
        except GeneratorExit:
            raise
        except BaseException:
            # For example, no thread could be started. The caller gets an error and no hold, so the lock is
            # released.
            yield from self._abandoning(hold)
            raise
        return hold

    def _enter(self, caller: Caller) -> Hold | None:
        """Enters the hold of this object again if it is reentrant, and returns it. None if there is no such
        hold. Raises `LockError` if another hold must not replace it."""
        hold = self._present_hold()
        if hold is None or hold.over or hold.pid != os.getpid():
            return None
        lost = hold.is_lost()
        if self.reentrant and hold.caller is caller:
            if lost:
                raise self._not_owned("enter", f"{hold.loss}; release it first")
            hold.depth += 1
            return hold
        if not lost and (self.shared or self.permits is not None):
            # A second hold would replace the first one, which could then never be released.
            raise error(LockError, "Already acquired here: use another Lock, or reentrant=True", self.name)
        return None

    def _watching(self, hold: Hold) -> Steps:
        """Lets the background renew the hold, and watch it for its loss."""
        yield Watch(hold)
        if self.on_lost is not None:
            with contextlib.suppress(RuntimeError):  # no thread can be started
                yield WatchLoss(hold)

    def _install(self, hold: Hold) -> None:
        """Makes `hold` the hold of this object, in place of the earlier one."""
        if self.max_hold:
            hold.ends_at = hold.received_at + self.max_hold
        hold.is_shared = self.shared
        hold.ask_why = self._ask_why
        earlier: Hold | None = self.local.hold
        self._loss_of_replaced(hold.caller)
        if earlier is not None and not earlier.over and earlier.pid == os.getpid():
            if earlier.token == hold.token:
                earlier.end()
                earlier.report_end(now() - earlier.received_at)
            else:
                # The server has granted the lock to another token, so the earlier hold must have ended.
                earlier.lose("taken away")
                if earlier.caller is not hold.caller:
                    replaced = self._replaced or weakref.WeakKeyDictionary()
                    # A copy without the caller, which would never be forgotten otherwise.
                    lost = copy.copy(earlier)
                    lost.caller = hold.caller
                    replaced[earlier.caller] = lost
                    self._replaced = replaced
        self.local.hold, self.local.token, self._latest = hold, hold.token, hold

    def _make_durable(self, hold: Hold, replicas: int, limit: float) -> Steps:
        """Waits until enough replicas have the grant, or the append only file if ``replicas`` is 0. Otherwise
        raises `NotDurableError`. WAIT is about the last write of its connection. So an EXTEND is sent over
        that connection first: a replica that has it has the grant."""
        connection, copies, failure = None, 0, None
        ms = math.ceil(limit * 1000)
        try:
            connection = yield SeparateClient(limit, self._key)
            sent = now()
            if (yield Over(connection, _protocol.extend(self._key, hold.token, hold.lease))):
                hold.note_extended(sent)
                wait: Args = ("WAIT", replicas, ms) if replicas else ("WAITAOF", 1, 0, ms)
                answer = yield Over(connection, wait)
                copies = answer if replicas else answer[0]
        except RedisError as why:
            failure = why
        finally:
            if connection is not None:
                yield Close(connection)
        if failure is None and copies >= max(replicas, 1) and not hold.is_lost():
            return
        text = f"{copies} of {max(replicas, 1)} copies of the grant exist after {limit:g} s"
        if failure is not None:
            text = f"It is unknown whether copies of the grant exist: {failure}"
        raise error(_protocol.NotDurableError, text, self.name) from failure

    def _not_acquired(self) -> Steps:
        """Returns the error of a ``with`` that has not acquired the lock, which says why."""
        holder, closed = None, 0.0
        yield TurnLimit(now())
        # The answer is a courtesy: without it, the error says less.
        with contextlib.suppress(RedisError):
            holder, closed = yield from self._ask_obstacle()
        reasons = [] if holder is None else [str(holder)]
        if closed:
            reasons.append(f"closed for another {_reading.in_seconds(closed)}")
        text = "Unable to acquire lock within the time specified" + (": " if reasons else "")
        failure = error(_protocol.NotAcquiredError, text + "; ".join(reasons), self.name)
        assert isinstance(failure, _protocol.NotAcquiredError)
        failure.holder = holder
        return failure

    def _loss_of_replaced(self, caller: Caller) -> str | None:
        """Returns why the caller has lost a hold that another caller has replaced in this object, once."""
        lost = self._replaced.pop(caller, None) if self._replaced else None
        return None if lost is None else lost.loss

    def _entering(self) -> None:
        """Called once a ``with`` has acquired the lock."""
        if self.local.hold is not None:
            self._entered.append(self.local.hold)

    @contextlib.contextmanager
    def _leaving(self, error_of_block: BaseException | None) -> Iterator[None]:
        """Context manager for the release at the end of a ``with``. Logs a `LockError` of the release, or
        raises it if `raise_on_release_error` is set. An error of the block passes: then every error of the
        release is logged."""
        try:
            yield
        except Exception as why:
            if error_of_block is not None:
                logger.warning("the release after an error of the block failed: %s", why)
            elif self.raise_on_release_error or not isinstance(why, LockError):
                raise
            else:
                logger.warning("Lock was unlocked or no longer owned when exiting context manager.")

    def _check_entered(self) -> None:
        """Raises an error if the block has lost its hold, and another thread or task has acquired the lock
        with this object meanwhile. The block releases only what it has acquired."""
        hold = self._entered_hold()
        if hold is not None and hold is not self.local.hold:
            self._loss_of_replaced(hold.caller)
            raise self._not_owned("release", hold.loss or "it was released")

    def _entered_hold(self) -> Hold | None:
        """Returns the hold of the ``with`` that ends now. It normally ends in the thread or task that began
        it. If the block has released and acquired the lock again, its present hold takes the place of the
        first one."""
        if not self._entered:
            return None
        caller, current = self._caller(), self.local.hold
        own = [index for index, hold in enumerate(self._entered) if hold.caller is caller]
        hold = self._entered.pop(own[-1] if own else -1)
        replaces = current is not None and hold.over and current.caller is hold.caller
        return current if replaces else hold

    def _delay(self, hold: Hold | None) -> Callable[[], int | None]:
        """Returns the function that returns the DELAY of a RELEASE sent now, in ms. None if it needs none."""
        # A hold that was lost, or that its caller never had, keeps nothing closed.
        if hold is None or hold.loss is not None or hold.is_unused or not self.at_least:
            return lambda: None
        end = hold.received_at + self.at_least
        return lambda: max(0, math.ceil((end - now()) * 1000)) or None

    def _longest_delay(self) -> int:
        """Returns the longest DELAY of the releases of this lock, in ms."""
        return math.ceil((self.at_least or 0) * 1000)

    def _probe(self, delay: int) -> Args:
        """Returns a RELEASE that shows whether the server accepts a DELAY. Its token is a fresh one, so it
        ends no hold."""
        return _protocol.release(self._key, _protocol.fresh_token(), delay=delay)

    def _delay_refused(self, knows_delay: bool, answer: Exception) -> LockError:
        """Returns the error for a server that refuses the DELAY of the releases of this lock."""
        text = "at_least needs the module dlock 0.1.0 or later on the server: an older one knows no DELAY"
        if knows_delay:
            text = f"at_least={self.at_least:g} is longer than the server's dlock.max-ttl allows: {answer}"
        return error(LockError, text, self.name)

    # Requests to a single server. `QuorumCore` overrides these methods.

    def _check_delay(self) -> Steps:
        """Raises `LockError` if the server does not accept the DELAY of the releases of this lock. Asks each
        server once, and again for a longer delay."""
        longest = self._longest_delay()
        if accepts_delay(self.redis, longest):
            return
        try:
            yield from _protocol.send_or_default(self._probe(longest), if_wrong_type=0)
        except ResponseError as answer:
            if not _protocol.is_misuse(answer):
                raise
            knows_delay = True
            try:
                yield from _protocol.send(self._probe(0))
            except ResponseError as why:
                knows_delay = not _protocol.is_misuse(why)
            raise self._delay_refused(knows_delay, answer) from answer
        note_delay(self.redis, longest)

    def _require_delay(self) -> Steps:
        """Raises `LockError` unless the server, or a majority of a quorum, accepts the DELAY of the releases
        of this lock."""
        return self._check_delay()

    def _attempt(self, token: bytes | None, options: Options) -> Any:
        found_server = finds_master(self.redis)
        return SingleAttempt(self._key, self.name, token, self._lease(), options, found_server=found_server)

    def _extension(self, attempt: Any) -> Callable[[Hold, int], Steps]:
        def extend(hold: Hold, ttl: int) -> Steps:
            steps = self._ask_extend(hold.token, ttl, hold.unanswered)
            if hold.connection is None or not is_cluster(self.redis):
                return (yield from steps)
            try:
                # A hold that is renewed where its slot has moved would not end with its connection.
                return (yield from over(hold.connection, steps))
            except ResponseError as answer:
                if _protocol.has_moved(answer):
                    return 0
                raise

        return extend

    def _ask_extend(self, token: bytes, ttl: int, unanswered: UnansweredLeases) -> Steps:
        def command(name: str) -> Args:
            return _protocol.extend(self._key, token, ttl, name)

        try:
            return (yield from unanswered.send(SINGLE, "DLOCK.EXTEND", command, ttl))
        except ResponseError as answer:
            if _protocol.error_word(answer) == "WRONGTYPE":
                return 0
            raise

    def _ask_holds(self, token: bytes) -> Steps:
        return (yield from _protocol.send_or_default(_protocol.holds(self._key, token), if_wrong_type=0))

    def _ask_pttl(self, token: bytes) -> Steps:
        """Returns the remaining lease of the token, in ms; -2 if the token has no hold."""
        return (yield from _protocol.send_or_default(_protocol.pttl(self._key, token), if_wrong_type=-2))

    def _ask_obstacle(self) -> Steps:
        """Returns the first `Holder` that the server shows, or None, and the seconds for which the lock stays
        closed."""
        seen = _reading.inspection((yield from _protocol.send(_protocol.inspect(self._key, 1))))
        if seen is None:
            return None, 0.0
        return (seen.holders[0] if seen.holders else None), seen.delay

    def _ask_holder(self) -> Steps:
        """Returns the first `Holder` that the server shows, or None."""
        return (yield from self._ask_obstacle())[0]

    def _ask_why(self, token: bytes, hold: Hold | None) -> Steps:
        """Returns why the server has ended the hold of a token, from its LOG. ``hold``: None if this object
        has not acquired the token."""
        command = _protocol.log(self._key, INCIDENTS)
        try:
            # The clients of clusters find no key in this command.
            reply = yield AtKey(self._key, command) if is_cluster(self.redis) else command
            return why_lost(reply, token, None if hold is None else hold.fence)
        except (RedisError, RedisClusterException):
            return TAKEN_AWAY  # the user may not read the log

    def _ask_free(self) -> Steps:
        """Returns whether the lock has no holder, no waiter and no delay."""
        reply = yield from _protocol.send_raising_for_data(_protocol.inspect(self._key, 1), self.name)
        return reply is None

    def _ask_locked(self) -> Steps:
        """Returns whether the lock is held. Raises `LockError` if the key holds data."""
        return (yield from _protocol.is_locked(self._key, self.name))

    def _ask_release(self, token: bytes, hold: Hold | None, expires_after: float) -> Steps:
        """Returns whether the release ended the hold. Returns None if it found no hold, but redis-py has sent
        the RELEASE more than once: a copy without an answer may have ended the hold. After an error, the
        RELEASE is repeated in the background for up to `expires_after` seconds. ``hold``: None if this object
        has not acquired the token."""

        def owed_release() -> OwedRelease:
            return self._owed_release(token, hold, expires_after)

        name, delay = _protocol.CountedName("DLOCK.RELEASE"), self._delay(hold)
        try:
            if hold is not None:
                hold.release_sent = True
            ended = yield from _protocol.send_or_default(
                _protocol.release(self._key, token, name, delay()), if_wrong_type=0
            )
        except GeneratorExit:
            raise
        except BaseException as why:
            # The server may still have the hold, even after an error reply: a server that refuses writes
            # executes no RELEASE.
            owed = owed_release()
            if isinstance(why, Exception):
                owed.note_failure(why)
            # Waits until the server has answered the repeated RELEASE, or for a limited time.
            yield Owe({SINGLE: owed}, lambda: owed.removed is not None)
            if owed.removed is not None and _protocol.error_word(why) in _protocol.NO_MASTER_WORDS:
                # The former master has done nothing, and the new one has answered.
                return owed.removed > 0
            raise
        if hold is not None and SINGLE in hold.members_to_release_again:
            # The unanswered ACQUIRE may create the hold again.
            yield Owe({SINGLE: owed_release()}, lambda: True)
        if ended:
            return True
        return None if name.times_sent > 1 else False

    def _owed_release(self, token: bytes, hold: Hold | None, expires_after: float) -> OwedRelease:
        """Returns a RELEASE that the background repeats until it is answered. If the server may execute an
        unanswered ACQUIRE after it, it is repeated until the hold or queue position of that ACQUIRE has
        expired."""
        again = set() if hold is None else hold.members_to_release_again
        if SINGLE in again:
            expires_after = time_until_expired(expires_after)
        delay = self._delay(hold)
        return OwedRelease(self._key, token, expires_after, repeats=lambda: SINGLE in again, delay=delay)

    def _owe_release(self, token: bytes, hold: Hold | None, expires_after: float) -> Steps:
        """Lets the background release a hold, and waits for the first answer, but not for long."""
        owed = self._owed_release(token, hold, expires_after)
        step = Owe({SINGLE: owed}, lambda: owed.is_tried)
        if hold is not None:
            hold.release_sent = True
        yield step

    # Methods for the holder.

    def _releasing(self, given: Any = None) -> Steps:
        """Releases the hold of the token `given`. If `given` is None, releases the hold of this object."""
        if given is None and self._replaced is not None:
            loss = self._loss_of_replaced(self._caller())
            if loss is not None:
                raise self._not_owned("release", loss)
        token = self._held_token("release") if given is None else self._encode(given)
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
            longest = hold.longest_lease()
        else:
            assigned = self.local.assigned
            is_assigned = assigned is not None and assigned[0] == token
            longest = max(self._lease(), assigned[1].longest if is_assigned else 0)
        loss, held, found_none = None, 0.0, False
        try:
            if hold is not None:
                hold.end()
                loss, held = hold.loss, now() - hold.received_at
            if loss is None:
                ended = yield from self._ask_release(token, hold, longest / 1000)
                # An earlier, unanswered RELEASE may have ended the hold.
                found_none = ended is False and not sent_before
            else:
                with contextlib.suppress(RuntimeError):  # no thread can be started
                    yield from self._owe_release(token, hold, longest / 1000)
        except GeneratorExit:
            raise
        except BaseException:
            if hold is not None and not hold.release_sent:
                # A signal handler has raised before the first request.
                hold.end()
                with contextlib.suppress(LockError, RedisError):
                    yield from self._ask_release(token, hold, longest / 1000)
            raise
        finally:
            if hold is not None:
                hold.report_end(None if found_none else held)
                if hold.connection is not None:
                    yield Close(hold.connection)
        # If another task or thread has acquired the lock with this object meanwhile, the newer hold stays.
        if given is None and self._present_hold() is hold:
            self.local.token = self.local.hold = None
        if self._latest is hold:
            # Objects that refer to each other stay in memory until Python's garbage collector finds them.
            self._latest = None
        if loss is not None:
            # The owner may have seen the loss, even if the server still had the hold.
            raise self._not_owned("release", loss)
        if found_none:
            raise self._not_owned("release", (yield from self._ask_why(token, hold)))

    def _abandoning(self, hold: Hold) -> Steps:
        """Releases a hold that the caller of an acquisition never had, because the acquisition has failed. A
        release that fails continues in the background."""
        # A reentrant hold that was entered again stays with its owner, and so does its `at_least`.
        hold.is_unused = hold.depth == 1
        with contextlib.suppress(LockError, RedisError):
            yield from self._releasing()

    def _extending(self, additional: float, replace: bool) -> Steps:
        token = self._held_token("extend")
        if self.timeout is None:
            raise error(LockError, "Cannot extend a lock with no timeout", self.name)
        check_seconds("additional_time", additional)
        ttl = int(additional * 1000)
        hold = self._hold()
        if not replace:
            left = -2
            if hold is None or not hold.is_lost():
                left = yield from self._ask_pttl(token)
            if left < 0:
                why = (hold and hold.loss) or (yield from self._ask_why(token, hold))
                if hold is not None:
                    hold.lose(why)
                raise self._not_owned("extend", why)
            ttl += left
        return (yield from self._setting_lease("extend", token, ttl))

    def _reacquiring(self) -> Steps:
        token = self._held_token("reacquire")
        if self.timeout is None:
            raise error(LockError, "Cannot reacquire a lock with no timeout", self.name)
        return (yield from self._setting_lease("reacquire", token, self._lease()))

    def _setting_lease(self, action: str, token: bytes, ttl: int) -> Steps:
        hold = self._hold()
        if hold is None:
            # The program has set `local.token` to a token that another object acquired.
            if self.local.assigned is None or self.local.assigned[0] != token:
                self.local.assigned = token, UnansweredLeases()
            unanswered = self.local.assigned[1]
            held = yield from self._ask_extend(token, ttl, unanswered)
            if held:
                # Raises an error if an unanswered request may still set a shorter lease.
                unanswered.ensure_certain(ttl)
        else:
            # A hold past its validity must not be extended, even if the server still has it.
            held = not hold.is_lost() and (yield from hold.extend(ttl))
        if not held:
            raise self._not_owned(action, (hold and hold.loss) or (yield from self._ask_why(token, hold)))
        return True

    def _guarding(self, command: tuple[Any, ...]) -> Steps:
        if not command:
            raise ValueError('a guarded write needs a command, such as "SET", "key", "value"')
        token, hold = self._held_token("write with"), self._hold()
        if hold is not None and hold.is_lost():
            raise self._not_owned("write with", hold.loss or "")
        try:
            return (yield from _protocol.send(_protocol.guard(self._key, token, command)))
        except ResponseError as answer:
            if _protocol.error_word(answer) != "NOTHELD":
                raise
            why = yield from self._ask_why(token, hold)
            if hold is not None:
                hold.lose(why)
            raise self._not_owned("write with", why) from answer

    def _converting(
        self, action: str, shared: bool, blocking: bool | None, blocking_timeout: Number | None
    ) -> Steps:
        """Gives the hold another mode. Returns whether it has it."""
        blocking = self.blocking if blocking is None else blocking
        blocking_timeout = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        check_seconds("blocking_timeout", blocking_timeout, may_be_infinite=True)
        self._held_token(action)
        hold = self._hold()
        if hold is None or hold.is_lost():
            raise self._not_owned(action, (hold and hold.loss) or "this object has not acquired it")
        if self.permits is not None:
            raise error(LockError, f"Cannot {action} a hold of a semaphore: release it first", self.name)
        if hold.depth > 1:
            raise error(LockError, f"Cannot {action} a hold that was entered {hold.depth} times", self.name)
        if hold.is_shared == shared:
            return True
        options = self._options.in_mode(shared, hold.owner)
        attempt = SingleAttempt(
            self._key, self.name, hold.token, hold.lease, options, found_server=True, converts=True
        )
        blocking = _waits(blocking, blocking_timeout)
        end = None if blocking_timeout is None else now() + blocking_timeout
        try:
            steps = attempt.run(self.sleep, blocking, end)
            if not (yield from steps if hold.connection is None else over(hold.connection, steps)):
                return False
        except GeneratorExit:
            raise
        except BaseException:
            if attempt.request_sent:
                yield from attempt.take_back()
            raise
        finally:
            attempt.close()
        if attempt.fence != hold.fence:
            # The hold had ended, and the token has another one now.
            hold.lose(TAKEN_AWAY)
            yield from _protocol.send_or_default(_protocol.release(self._key, hold.token), if_wrong_type=0)
        if hold.is_lost():
            raise self._not_owned(action, hold.loss or "")
        hold.is_shared = shared
        return True

    def _waiting_until_free(self, limit: Number | None) -> Steps:
        check_seconds("timeout", limit, may_be_infinite=True)
        end = math.inf if limit is None else now() + limit
        silent_since: float | None = None
        found_server = finds_master(self.redis)
        while True:
            asked = now()
            try:
                if (yield from self._ask_free()):
                    return True
                silent_since, found_server = None, True
            except Exception as why:
                if _protocol.is_passing(why):
                    silent_since, found_server = None, True
                elif not isinstance(why, (*_protocol.NO_ANSWER, *self._no_majority)):
                    raise
                else:
                    # The same limits as for `acquire`.
                    silent_since = asked if silent_since is None else silent_since
                    found_server |= not isinstance(why, ConnectionError)
                    if not found_server or now() - silent_since > KEEP:
                        raise
                if now() >= end:
                    raise
            if now() >= end:
                return False
            yield Sleep(min(random.uniform(0.5, 1) * FREE_PAUSE, end - now()))

    def _adopting(self, token: str | bytes) -> Steps:
        for option, value in ("ephemeral", self._options.ephemeral), ("durable", self.durable):
            if value:
                raise ValueError(f"adopt: the hold is there already, so leave out {option}")
        encoded, caller = self._encode(token), self._caller()
        earlier = self._present_hold()
        if earlier is not None and earlier.is_held():
            raise error(LockError, "Already acquired here: use another Lock", self.name)
        if self.at_least:
            yield from self._require_delay()
        lease, unanswered, sent = self._lease(), UnansweredLeases(), now()
        if not (yield from self._ask_extend(encoded, lease, unanswered)):
            raise self._not_owned("adopt", (yield from self._ask_why(encoded, None)))
        unanswered.ensure_certain(lease)
        fence = yield from self._ask_fence(encoded, lease, unanswered)
        if fence == 0:
            raise self._not_owned("adopt", (yield from self._ask_why(encoded, None)))
        hold = Hold(
            self._key,
            encoded,
            lease,
            fence,
            max(sent, unanswered.sent_at) + validity(lease / 1000),
            caller,
            None,
            self.auto_renew,
            self.on_lost,
            lambda hold, ttl: self._ask_extend(hold.token, ttl, hold.unanswered),
            unanswered,
        )
        self._install(hold)
        hold.is_observed = True
        if hold.needs_background():
            yield from self._watching(hold)

    def _ask_fence(self, token: bytes, lease: int, unanswered: UnansweredLeases) -> Steps:
        """Returns the fence of a hold; 0 if the token has none. A fence of 1 raises nothing."""

        def command(name: str) -> Args:
            return _protocol.confirm(self._key, token, 1, lease, name)

        return (yield from unanswered.send(SINGLE, "DLOCK.CONFIRM", command, lease)) or 0

    @property
    def token(self) -> bytes | None:
        """The token of the hold, by which another process can `adopt` it. It is a secret: any
        client that has it can release the lock. None if the lock is not held."""
        hold = self._hold()
        return None if hold is None else hold.token

    def forget(self) -> bytes:
        """Ends the renewal of the hold without releasing it, and returns its token: another process can
        `adopt` it until the lease ends. Raises `LockError` if the lock is not held."""
        token, hold = self._held_token("forget"), self._hold()
        if hold is not None:
            if hold.is_lost():
                raise self._not_owned("forget", hold.loss or "")
            if hold.connection is not None:
                raise error(
                    LockError, "Cannot forget an ephemeral hold: it ends with its connection", self.name
                )
            hold.end()
            hold.report_end(now() - hold.received_at)
        self.local.token = self.local.hold = None
        return token

    def _asking_locked(self) -> Steps:
        return (yield from self._ask_locked())

    def _asking_owned(self) -> Steps:
        token, hold = self.local.token, self._hold()
        if token is None or (hold is not None and (hold.pid != os.getpid() or hold.is_lost())):
            return False
        held = yield from self._ask_holds(self._encode(token))
        return held > 0 and (hold is None or not hold.is_lost())


def _waits(blocking: bool, blocking_timeout: Number | None) -> bool:
    """Returns whether an acquisition waits. A `blocking_timeout` of 0 is one try, as in redis-py."""
    return blocking and (blocking_timeout is None or blocking_timeout > 0)


def check_flag(name: str, value: Any) -> None:
    """Raises TypeError unless the argument is None, True or False."""
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, and not {value!r}")


def check_seconds(name: str, value: Any, *, may_be_infinite: bool = False) -> None:
    """Raises TypeError or ValueError unless the argument is None or a number of seconds."""
    if value is None or (type(value) in (int, float) and math.isfinite(value)):
        return
    text = f"{name} is a number of seconds, and not {value!r}"
    if value is not None and not isinstance(value, numbers.Real):
        raise TypeError(text)
    if value is not None and (math.isnan(value) or (math.isinf(value) and not may_be_infinite)):
        raise ValueError(text)


def why_lost(reply: Any, token: bytes, fence: int | None) -> str:
    """Returns why the hold of a token has ended, from a reply to LOG. ``fence``: None if unknown."""

    def is_about(incident: _reading.Incident) -> bool:
        if incident.token:
            # LOG shows only the first 8 bytes of a token, and "..." for the rest.
            return incident.token[:8] == token[:8]
        # It is about all holds of the key at that time, in whole ms. A fence is the time of its grant in us.
        return fence is not None and incident.time * 1_000_000 >= fence - 1000

    for incident in _reading.incidents(reply) if isinstance(reply, list) else ():
        if incident.what in ENDS and is_about(incident):
            after = f" after {_reading.in_seconds(incident.held)}" if incident.held else ""
            return ENDS[incident.what] + after
    return TAKEN_AWAY


@functools.lru_cache(maxsize=1000, typed=True)
def options_of_lock(shared: bool, permits: int | None, label: bytes, delay: int, ephemeral: bool) -> Options:
    """Returns the options of a lock. They are checked once: locks with the same options share one object."""
    return Options(shared, permits, label=label, delay=delay, ephemeral=ephemeral)


def _check_on_lost(on_lost: Any) -> None:
    if not callable(on_lost):
        raise TypeError(f"on_lost is a function, and not {on_lost!r}")
    if inspect.iscoroutinefunction(on_lost):
        raise TypeError("on_lost is called, not awaited: give a plain function")


def _check_durable(durable: Any) -> None:
    is_pair = isinstance(durable, tuple) and len(durable) == 2
    if not is_pair or type(durable[0]) is not int or durable[0] < 0:
        text = "durable is a pair: the number of replicas (0: the append only file), and a limit in seconds"
        raise ValueError(f"{text}, and not {durable!r}")
    check_seconds("the limit of durable", durable[1])
    if not durable[1] or durable[1] < 0:
        raise ValueError(f"the limit of durable is a number of seconds above 0, and not {durable[1]!r}")


class State:
    """Value of ``local`` with `thread_local=False`: all threads share the hold."""

    token: bytes | str | None = None
    hold: Hold | None = None
    # The last token that this object extended after the program had set `token` to it, with its unanswered
    # leases.
    assigned: tuple[bytes, UnansweredLeases] | None = None


class LocalState(threading.local, State):
    """Value of ``local`` with `thread_local=True`: each thread has its own hold."""


class LossEvent:
    """The part of `Lost` that threads and asyncio share."""

    def __init__(self, hold: Hold | None) -> None:
        self._hold = hold

    def is_set(self) -> bool:
        """Returns whether the hold is lost."""
        return self._hold is not None and self._hold.is_lost()
