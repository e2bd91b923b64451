"""Several locks, all or none, and elections, without I/O. `lock.py` and `asyncio.py` carry out the steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Callable, Generic, TypeVar

from redis.exceptions import AuthenticationError, LockError, LockNotOwnedError, RedisError

from . import _protocol
from ._clients import encoder
from ._clock import now
from ._hold import Hold, logger
from ._lock_core import NOT_ENTERED, Core, Depth, LossEvent, Number, check_seconds
from ._members import NoQuorumError
from ._protocol import Key, Steps
from ._steps import Sleep

# First and longest pause before a campaign continues after an outage, in seconds.
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
# Pause between two looks of `Leader.observe`, in seconds.
OBSERVE_PAUSE = 1.0

L = TypeVar("L", bound=Core[Any])
# Returns a lock of a client, with a name and options.
Make = Callable[[Any, Any, dict[str, Any]], L]


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


def locks_of_names(make: Make[L], client: Any, names: Iterable[Key], options: dict[str, Any]) -> list[L]:
    return [make(client, name, options) for name in in_order(names, encoder(client).encode)]


def locks_of_path(make: Make[L], client: Any, path: str, options: dict[str, Any]) -> list[L]:
    *ancestors, leaf = path_keys(path)
    if options.get("permits") is not None:
        raise ValueError("a path has no permits: it is exclusive or shared")
    # `at_least` and `delay` would close the ancestors for other paths, too.
    shared = {**options, "shared": True, "at_least": None, "delay": None}
    return [*(make(client, key, shared) for key in ancestors), make(client, leaf, options)]


class SeveralCore(Generic[L]):
    """Several locks, which are acquired in their order."""

    def __init__(self, locks: Sequence[L]) -> None:
        #: The locks, in the order in which they are acquired. Each has its own `fence`.
        self.locks = list(locks)

    def _client(self) -> Any:
        return self.locks[0].redis

    def _acquiring(self, blocking: bool | None, limit: Number | None) -> Steps:
        """Returns None once all locks are acquired, and otherwise the lock that was not."""
        first = self.locks[0]
        limit = first.blocking_timeout if limit is None else limit
        check_seconds("blocking_timeout", limit, may_be_infinite=True)
        end = None if limit is None else now() + limit
        before = self._depths()
        acquired: list[Core[Any]] = []
        holds: list[Hold] = []
        try:
            for lock in self.locks:
                left = None if end is None else max(end - now(), 0)
                hold = yield from lock._acquiring(None, blocking, left, None, tuple(holds))
                if hold is None:
                    break
                acquired.append(lock)
                holds.append(hold)
                for each, held in zip(acquired, holds):
                    if held.is_lost():
                        raise each._not_owned("hold", f"{held.loss}, before all locks were acquired")
            else:
                return None
        except GeneratorExit:
            raise
        except BaseException:
            yield from self._releasing_since(before)
            raise
        yield from self._releasing_since(before)
        return lock

    def _depths(self) -> list[Depth]:
        return [lock._depth() for lock in self.locks]

    def _releasing_since(self, before: list[Depth]) -> Steps:
        """Releases what the caller has acquired with this object since then, and has not released, because
        the acquisition has failed."""
        late = [lock for lock, depth in zip(self.locks, before) if lock._has_acquired_since(depth)]
        failures = yield from _each_released(late, lambda lock: lock._abandoning(lock.local.hold))
        if failures:
            raise failures[0]

    def _releasing(self) -> Steps:
        """Releases all locks, the last one first. Raises the first error that is no `LockError` afterwards,
        such as a cancellation, or else the first loss, or else the first error."""
        failures = yield from _each_released(self.locks, lambda lock: lock._releasing())
        if failures:
            raise max(failures, key=_weight)

    def is_lost(self) -> bool:
        """Returns whether one of the holds is lost."""
        holds = [lock._hold() for lock in self.locks]
        return any(hold is not None and hold.is_lost() for hold in holds)


def _each_released(locks: Sequence[Core[Any]], releasing: Callable[[Any], Steps]) -> Steps:
    """Releases locks, the last one first, by the steps that ``releasing`` returns for each. Returns the
    exceptions. None of them ends the other releases, not even a cancellation, or an exception that a signal
    handler has raised between two releases."""
    failures: list[BaseException] = []
    left = [(lock, lock._depth()) for lock in locks]
    while left:
        try:
            while left:
                yield from releasing(left[-1][0])
                left.pop()
        except GeneratorExit:
            raise
        except BaseException as why:
            failures.append(why)
            if left:
                lock, depth = left.pop()
                if depth[0] is not None and depth == lock._depth() and lock._has_acquired_since(NOT_ENTERED):
                    # The release has not begun. It has a second try, and no third one.
                    left.append((lock, NOT_ENTERED))
    return failures


def check_one_leader(options: dict[str, Any]) -> None:
    """Raises ValueError for the options of a lock that several processes can hold together."""
    for option in "shared", "permits":
        if options.get(option):
            raise ValueError(f"a Leader has no {option}: several processes would lead at once")


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


def ending_term(lock: Core[Any], lost: LossEvent) -> Steps:
    """Releases the lock at the end of a term. Returns whether the lead was lost before."""
    was_lost = lost.is_set()
    try:
        yield from lock._releasing()
    except LockNotOwnedError:
        return True
    except (LockError, RedisError) as why:
        logger.warning("the leader has resigned, which the server has not confirmed yet: %s", why)
    return was_lost


def _weight(why: BaseException) -> int:
    if not isinstance(why, (LockError, RedisError)):
        return 2
    return int(isinstance(why, LockNotOwnedError))


def _may_pass(why: Exception) -> bool:
    """Returns whether a later campaign may succeed."""
    if isinstance(why, AuthenticationError):
        return False
    kinds = NoQuorumError, _protocol.GraceError, _protocol.QueueFullError, _protocol.LateError
    return isinstance(why, (*_protocol.NO_ANSWER, *kinds)) or _protocol.is_passing(why)
