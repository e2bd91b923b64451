"""Several locks, all or none, and elections, without I/O. `lock.py` and `asyncio.py` carry out the steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Callable

from redis.exceptions import AuthenticationError, LockError, RedisError, ResponseError

from . import _protocol, _reading
from ._clock import now
from ._hold import Hold
from ._lock_core import Core, Number, check_seconds
from ._members import NoQuorumError
from ._protocol import Key, Steps, error
from ._steps import Sleep

# First and longest pause before a campaign continues after an outage, in seconds.
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0


def in_order(names: Iterable[Key], encode: Callable[[Any], bytes]) -> list[Key]:
    """Returns the names in the order in which every client acquires them: by their bytes, each name once."""
    if isinstance(names, (str, bytes)):
        raise TypeError(f"several locks have a list of names, and not {names!r}")
    found = {encode(name): name for name in names}
    if not found:
        raise ValueError("no locks to acquire: give at least one name")
    return [found[key] for key in sorted(found)]


def path_keys(path: str) -> list[str]:
    """Returns the keys of a path, the root first: "{a}", "{a}/b" and "{a}/b/c". All are in one slot."""
    if not isinstance(path, str):
        raise TypeError(f"a path is text such as 'a/b/c', and not {path!r}")
    parts = path.split("/")
    if any(not part or "{" in part or "}" in part for part in parts):
        raise ValueError(f"{path!r} is no path: its parts must not be empty or have braces")
    root = "{" + parts[0] + "}"
    return ["/".join([root, *parts[1:end]]) for end in range(1, len(parts) + 1)]


class SeveralCore:
    """Several locks, which are acquired in their order."""

    def __init__(self, locks: Sequence[Core[Any]]) -> None:
        self._locks = list(locks)

    def _client(self) -> Any:
        return self._locks[0].redis

    def _acquiring(self, blocking: bool | None, limit: Number | None) -> Steps:
        """Returns None once all locks are acquired, and otherwise the lock that was not."""
        first = self._locks[0]
        limit = first.blocking_timeout if limit is None else limit
        check_seconds("blocking_timeout", limit, may_be_infinite=True)
        end = None if limit is None else now() + limit
        acquired: list[Core[Any]] = []
        holds: list[Hold] = []
        try:
            for lock in self._locks:
                left = None if end is None else max(end - now(), 0)
                hold = yield from lock._acquiring(None, blocking, left, None, tuple(holds))
                if hold is not None:
                    acquired.append(lock)
                    holds.append(hold)
                for each, held in zip(acquired, holds):
                    if held.is_lost():
                        raise each._not_owned("hold", f"{held.loss}, before all locks were acquired")
                if hold is None:
                    yield from self._release_all(acquired)
                    return lock
        except GeneratorExit:
            raise
        except BaseException:
            yield from self._release_all(acquired)
            raise
        return None

    def _release_all(self, locks: list[Core[Any]]) -> Steps:
        """Releases locks after a failure. A release that fails continues in the background."""
        for lock in reversed(locks):
            with contextlib.suppress(LockError, RedisError):
                yield from lock._releasing()

    def _releasing(self) -> Steps:
        """Releases all locks, the last one first. Raises the first error afterwards."""
        failure: Exception | None = None
        for lock in reversed(self._locks):
            try:
                yield from lock._releasing()
            except Exception as why:
                failure = failure or why
        if failure is not None:
            raise failure

    def is_lost(self) -> bool:
        """Returns whether one of the holds is lost."""
        holds = [lock._hold() for lock in self._locks]
        return any(hold is not None and hold.is_lost() for hold in holds)


def campaigning(lock: Core[Any], limit: Number | None) -> Steps:
    """Acquires the lock, through outages. Returns whether it did before the limit."""
    check_seconds("timeout", limit, may_be_infinite=True)
    end = None if limit is None else now() + limit
    pause = FIRST_PAUSE
    while True:
        left = None if end is None else max(end - now(), 0)
        try:
            if (yield from lock._acquiring(None, True, left, None)):
                return True
            # An operator can end a wait without a limit.
            if end is not None and now() >= end:
                return False
        except Exception as why:
            if not _may_pass(why) or (end is not None and now() + pause >= end):
                raise
        yield Sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _may_pass(why: Exception) -> bool:
    """Returns whether a later campaign may succeed."""
    if isinstance(why, AuthenticationError):
        return False
    kinds = NoQuorumError, _protocol.GraceError, _protocol.QueueFullError, _protocol.LateError
    return isinstance(why, (*_protocol.NO_ANSWER, *kinds)) or _protocol.is_passing(why)


def fenced(gate: Key, fence: int, command: Sequence[Any]) -> Steps:
    """Runs a command if the gate has seen no greater fence, and returns the reply."""
    if not command:
        raise ValueError('a guarded write needs a command, such as "SET", "key", "value"')
    try:
        return (yield from _protocol.send(("DLOCK.FENCED", gate, fence, *command)))  # type: ignore[arg-type]
    except ResponseError as answer:
        if _protocol.error_word(answer) != "STALEFENCE":
            raise
        stale = error(_protocol.StaleFenceError, str(answer), gate)
        assert isinstance(stale, _protocol.StaleFenceError)
        greatest = str(answer).split(" ")[1]
        stale.greatest = int(greatest) if greatest.isdigit() else 0
        raise stale from answer


# The commands for operators.


def inspect(name: Key) -> Steps:
    return _reading.inspection((yield from _protocol.send(("DLOCK.INSPECT", name))))  # type: ignore[arg-type]


def waiters(name: Key, count: int) -> Steps:
    command = ("DLOCK.WAITERS", name, "COUNT", count)
    return _reading.waiters((yield from _protocol.send(command)))  # type: ignore[arg-type]


def page(cursor: Any, match: Key | None, waited: bool) -> Steps:
    """Returns the next cursor, None at the end, and the locks of one page of LIST."""
    command: tuple[Any, ...] = ("DLOCK.LIST", cursor)
    if match is not None:
        command += "MATCH", match
    if waited:
        command += ("WAITED",)
    following, locks = yield from _protocol.send(command)
    return None if int(following) == 0 else following, _reading.listed(locks)


def log(count: int, name: Key | None) -> Steps:
    command: tuple[Any, ...] = ("DLOCK.LOG", "COUNT", count)
    if name is not None:
        command += "KEY", name
    return _reading.incidents((yield from _protocol.send(command)))


def cancel(name: Key, token: str | bytes) -> Steps:
    return (yield from _protocol.send(("DLOCK.CANCEL", name, token)))  # type: ignore[arg-type]


def break_(name: Key) -> Steps:
    return (yield from _protocol.send(("DLOCK.BREAK", name)))  # type: ignore[arg-type]
