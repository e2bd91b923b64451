"""The commands, what they answer, and the errors. Sends nothing."""

from __future__ import annotations

import base64
import os
from typing import Any, Union

from redis.exceptions import LockError, RedisError, ResponseError

Args = tuple[Union[str, bytes, int], ...]
Key = Union[str, bytes, memoryview]

# The words of errors that redis-py has no class for, and that do not call a request invalid.
OTHER_WORDS = {"WRONGTYPE", "GRACE", "DEADLOCK", "QUEUEFULL", "FENCEAHEAD"}
OTHER_WORDS |= {"BUSY", "MISCONF", "MASTERDOWN", "NOREPLICAS"}


class DeadlockError(LockError):
    """Waiting would close a cycle of tokens that wait for each other. Release what you hold, then retry."""


class GraceError(LockError):
    """The server may have forgotten holds, and grants nothing new yet. Retry in ``left`` seconds."""

    left: float = 0.0


class QueueFullError(LockError):
    """Too many clients wait already. Retry later."""


class LateError(LockError):
    """The lock was granted, but each answer took longer than its lease: the timeout is too short."""


def error(kind: type[LockError], text: str, name: Key) -> LockError:
    """A lock error that names its lock; redis-py 5.0 has no argument for it."""
    made = kind(text)
    made.lock_name = name  # type: ignore[assignment]
    return made


def refusal(answer: ResponseError, name: Key) -> LockError | None:
    """What an error word of ACQUIRE means; None for one that is not about locks."""
    text = str(answer)
    word, _, rest = text.partition(" ")
    if word == "GRACE":
        grace = error(GraceError, text, name)
        assert isinstance(grace, GraceError)
        ms = rest.split(" ", 1)[0]
        grace.left = int(ms) / 1000 if ms.isdigit() else 1.0
        return grace
    kinds: dict[str, type[LockError]] = {"DEADLOCK": DeadlockError, "QUEUEFULL": QueueFullError}
    return error(kinds[word], text, name) if word in kinds else None


def word(answer: Any) -> str:
    return str(answer).split(" ", 1)[0] if isinstance(answer, RedisError) else ""


def is_misuse(answer: Any) -> bool:
    """Whether it calls the request invalid: with the word `ERR`, which redis-py takes away."""
    return type(answer) is ResponseError and word(answer) not in OTHER_WORDS


def fresh_token() -> bytes:
    """A token that nobody has used. From the operating system: after a fork, two processes never draw the
    same. 27 characters, as DLOCK.TOKEN makes them."""
    return base64.urlsafe_b64encode(os.urandom(20))[:27]


def acquire(key: bytes, token: bytes, ttl: int, terms: Args) -> Args:
    return ("DLOCK.ACQUIRE", key, token, ttl, *terms)


def queued(keep: int, channel: str, message: str, *, notify: bool) -> Args:
    """ACQUIRE's terms for a position in the wait queue, kept for ``keep`` ms."""
    return ("QUEUE", keep, "NOTIFY", channel, message) if notify else ("QUEUE", keep)


def extend(key: bytes, token: bytes, ttl: int) -> Args:
    return ("DLOCK.EXTEND", key, token, ttl)


def confirm(key: bytes, token: bytes, fence: int, ttl: int) -> Args:
    return ("DLOCK.CONFIRM", key, token, fence, ttl)


class Counted(str):
    """The name of a command that knows how often redis-py has packed it to be sent: what has no answer it
    may send again by itself, and tells nobody."""

    sent = 0

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        self.sent += 1
        return super().encode(encoding, errors)


def release(key: bytes, token: bytes, name: str = "DLOCK.RELEASE") -> Args:
    """Ends every count, and removes the token from the queue."""
    return (name, key, token, "ALL")


def holds(key: bytes, token: bytes) -> Args:
    return ("DLOCK.HOLDS", key, token)


def pttl(key: bytes, *token: bytes) -> Args:
    return ("DLOCK.PTTL", key, *token)


def cancel(key: bytes, token: bytes) -> Args:
    """Removes the token from the queue, and ends no hold."""
    return ("DLOCK.CANCEL", key, token)


def waiters(key: bytes) -> Args:
    return ("DLOCK.WAITERS", key, "COUNT", 1)


def inspect(key: bytes, count: int) -> Args:
    return ("DLOCK.INSPECT", key, "COUNT", count)


def holders(answer: Any, count: int) -> dict[bytes, int] | None:
    """The tokens in an answer to INSPECT, with the ms since each grant; None if it does not say, or there may
    be more."""
    if answer is None:
        return {}
    listed = _pairs(answer).get("holders")
    if not isinstance(listed, list) or len(listed) >= count:
        return None
    pairs = [_pairs(holder) for holder in listed]
    return {_bytes(holder.get("token")): holder.get("held", 0) for holder in pairs}


def _pairs(answer: Any) -> dict[str, Any]:
    """A map, which RESP2 spells as a list."""
    if isinstance(answer, list):
        answer = dict(zip(answer[::2], answer[1::2]))
    return (
        {_bytes(name).decode(): value for name, value in answer.items()} if isinstance(answer, dict) else {}
    )


def _bytes(text: Any) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode()
