"""Builds commands, and reads replies and errors. This module sends nothing itself: its generators (`Steps`)
yield each command, and receive the reply."""

from __future__ import annotations

import base64
import dataclasses
import os
import re
from collections.abc import Generator, Sequence
from typing import Any, Union

from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    ClusterError,
    ConnectionError,
    InvalidResponse,
    LockError,
    MasterDownError,
    NoPermissionError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    SlotNotCoveredError,
    TimeoutError,
    TryAgainError,
)

from ._clock import now
from ._owners import Owner
from ._reading import Holder, read_bytes, read_pairs

Key = Union[str, bytes, memoryview]
Args = tuple[Union[Key, int], ...]
Steps = Generator[Any, Any, Any]

# Errors after which the server may or may not have executed the command.
NO_ANSWER = (ConnectionError, TimeoutError)

# The errors of a cluster client for a slot that is being moved, or that has no master: the nodes name each
# other, or none. The request was not executed, and a later one finds the node.
NO_NODE = (ClusterError, SlotNotCoveredError)

# Reply to an ACQUIRE of a key that holds a lock of another library.
FOREIGN = "held by a lock of another library"

# Error words that mean "no answer now": the server refuses every request of this kind for a while.
PASSING_WORDS = {"BUSY", "NOREPLICAS", "OOM", "MISCONF", "LOADING", "READONLY", "UNBLOCKED"}
PASSING_WORDS |= {"CLUSTERDOWN", "MASTERDOWN"}
# Error words that mean that the server is no master any more.
NO_MASTER_WORDS = {"READONLY", "UNBLOCKED"}

# The first words of the errors, except ERR, that redis-py raises as a plain ResponseError. redis-py removes
# the word ERR, so `is_misuse` takes every other plain ResponseError for an ERR.
OTHER_WORDS = {"WRONGTYPE", "GRACE", "DEADLOCK", "QUEUEFULL", "FENCEAHEAD"} | PASSING_WORDS

# The words of the errors for which redis-py has a class. It removes the word from their text. Its class for
# OOM has another name in some versions, and the text of that error says enough.
CLASS_WORDS = {
    BusyLoadingError: "LOADING",
    ReadOnlyError: "READONLY",
    MasterDownError: "MASTERDOWN",
    ClusterDownError: "CLUSTERDOWN",
    NoPermissionError: "NOPERM",
}

# These commands always have an integer or null as reply.
INTEGER_COMMANDS = {
    "DLOCK.ACQUIRE",
    "DLOCK.CANCEL",
    "DLOCK.CONFIRM",
    "DLOCK.EXTEND",
    "DLOCK.HOLDS",
    "DLOCK.PTTL",
    "DLOCK.RELEASE",
}

# The integers that these commands return are fences.
FENCE_COMMANDS = {"DLOCK.ACQUIRE", "DLOCK.CONFIRM"}

# The value of a lock of redis-py, valkey-py or node-redlock: a string of 32 hex digits.
FOREIGN_TOKEN = re.compile(rb"[0-9a-f]{32}\Z")

# The greatest number of permits.
MOST_PERMITS = 2**31 - 1

# Greatest fence, and so the greatest number in the message of a grant.
GREATEST_FENCE = 2**53 - 1
# A decimal number without a sign or leading zeros.
NUMBER = re.compile(rb"[1-9][0-9]{0,15}\Z")
# The outcomes of a wait in the server's messages, apart from `granted`.
OUTCOMES = {b"timeout": "timeout", b"cancelled": "cancelled", b"refused": "refused"}

# Between the owners of a cycle in the error DEADLOCK.
ARROW = " -> "

# Number of tries to find out the type of a key, which can change between two commands.
TYPE_TRIES = 3


class DeadlockError(LockError):
    """Waiting would close a cycle of owners that wait for each other. Release what you hold, then retry."""


class GraceError(LockError):
    """The server may have forgotten holds, and grants no new lock yet. Retry in ``left`` seconds."""

    left: float = 0.0


class NotAcquiredError(LockError):
    """Another client still has the lock at the end of the wait. Raised by ``with``; `acquire` returns False.
    The message says who has the lock, since when, with its label and address; or for how long the lock is
    closed."""

    # The first holder that the server shows. None if there is none any more, or the user may not ask.
    holder: Holder | None = None


class NotDurableError(LockError):
    """Too few replicas, or no append only file, had the grant in time (see ``durable``). The lock is
    released."""


class StaleFenceError(LockError):
    """The gate has seen a greater fence, so the command did not run."""

    # The greatest fence that the gate has seen.
    greatest: int = 0


class QueueFullError(LockError):
    """The wait queue of the server is full. Retry later."""


class LateError(LockError):
    """Each grant of the server, or of a majority of a quorum, arrived after the end of the lease: the timeout
    is too short. Raised after several such grants, or after one in a quorum if the caller gave the token."""


class NotALockError(LockError):
    """The key holds data instead of a lock."""


def error(kind: type[LockError], text: str, name: Key) -> LockError:
    """Returns a lock error with the name of the lock, for which redis-py 5.0 has no argument."""
    made = kind(text)
    made.lock_name = name  # type: ignore[assignment]
    return made


def refusal(answer: Exception, name: Key) -> LockError | None:
    """Returns the lock error for an error reply to ACQUIRE. None if no class of lock errors stands for the
    first word of the reply."""
    text = str(answer)
    word, _, rest = text.partition(" ")
    if word == "GRACE":
        grace = error(GraceError, text, name)
        assert isinstance(grace, GraceError)
        ms = rest.split(" ", 1)[0]
        grace.left = int(ms) / 1000 if ms.isdigit() else 1.0
        return grace
    if word == "DEADLOCK":
        hint = "release your locks, then retry"
        if is_own_deadlock(answer):
            hint = "this owner would wait for itself: release the lock first"
        return error(DeadlockError, f"{text}, at the lock {name!r}: {hint}", name)
    return error(QueueFullError, text, name) if word == "QUEUEFULL" else None


def is_own_deadlock(answer: Any) -> bool:
    """Returns whether the error says that the owner would wait for itself: `DEADLOCK a -> a`. An owner's name
    may contain the arrow, too."""
    cycle = str(answer).partition(" ")[2]
    name = cycle[: (len(cycle) - len(ARROW)) // 2]
    return error_word(answer) == "DEADLOCK" and cycle == name + ARROW + name


def error_word(answer: Any) -> str:
    """Returns the first word of an error, and an empty string for any other answer."""
    if not isinstance(answer, RedisError):
        return ""
    if type(answer).__name__ == "OutOfMemoryError":
        return "OOM"
    return CLASS_WORDS.get(type(answer)) or str(answer).split(" ", 1)[0]


def is_passing(answer: Any) -> bool:
    """Returns whether the error means "no answer now": the server has done nothing, and a later request may
    succeed."""
    return error_word(answer) in PASSING_WORDS or isinstance(answer, NO_NODE)


def is_redirect(answer: Any) -> bool:
    """Returns whether the node of a cluster answers that another one has, or will have, the slot."""
    return isinstance(answer, (AskError, TryAgainError, ClusterDownError))


def has_moved(answer: Any) -> bool:
    """Returns whether the node of a cluster answers that another one has the key."""
    return isinstance(answer, AskError)


def is_misuse(answer: Any) -> bool:
    """Returns whether the answer is an error with the word `ERR`: the request is invalid. redis-py removes
    that word."""
    return type(answer) is ResponseError and error_word(answer) not in OTHER_WORDS


def fresh_token() -> bytes:
    """Returns a token of 27 characters, as DLOCK.TOKEN does. The bytes come from the operating system, so two
    processes never draw the same after a fork."""
    return base64.urlsafe_b64encode(os.urandom(20))[:27]


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of ACQUIRE."""

    shared: bool = False
    permits: int | None = None
    # None for a request that names no owner.
    owner: Owner | None = None
    # Text for operators. Empty for none.
    label: bytes = b""
    # Time in ms for which the lock is granted to no client after a hold that expired. 0 for none.
    delay: int = 0
    # Whether the hold also ends with its connection.
    ephemeral: bool = False
    # Time in ms for which the server retains a queue position. None for a request without one.
    queue: int | None = None
    # Channel and message of the notification. None for a position without one.
    notify: tuple[str, bytes] | None = None

    def __post_init__(self) -> None:
        if self.shared and self.permits is not None:
            raise ValueError("a lock is either shared or has permits: leave one out")
        if self.permits is not None:
            text = f"permits is a whole number from 1 to {MOST_PERMITS}, and not {self.permits!r}"
            if type(self.permits) is not int:
                raise TypeError(text)
            if not 1 <= self.permits <= MOST_PERMITS:
                raise ValueError(text)

    def words(self) -> Args:
        words: Args = ("SHARED",) if self.shared else ()
        if self.permits is not None:
            words += "PERMITS", self.permits
        if self.queue is not None:
            words += "QUEUE", self.queue
        if self.notify is not None:
            words += "NOTIFY", *self.notify
        if self.ephemeral:
            words += ("EPHEMERAL",)
        if self.delay:
            words += "DELAY", self.delay
        if self.label:
            words += "LABEL", self.label
        if self.owner is not None:
            words += "OWNER", self.owner.name
        return words

    def waiting(self, queue: int, notify: tuple[str, bytes] | None = None) -> Options:
        """Returns the options of a request that also asks for a position in the wait queue."""
        return self._changed(queue=queue, notify=notify)

    def owned_by(self, owner: Owner | None) -> Options:
        return self._changed(owner=owner)

    def of_caller(self, owner: Owner | None, label: bytes) -> Options:
        """Returns the options of the requests of a thread or task. ``label``: its default label."""
        return self._changed(owner=owner, label=self.label or label)

    def in_mode(self, shared: bool, owner: Owner | None) -> Options:
        return self._changed(shared=shared, owner=owner)

    def _changed(self, **fields: Any) -> Options:
        """Does the same as `dataclasses.replace`, in a fifth of its time: each acquisition pays for it."""
        changed = object.__new__(Options)
        changed.__dict__.update(self.__dict__, **fields)
        return changed

    def may_wait_without_owner(self, answer: Any, key: bytes, end: float | None) -> bool:
        """Returns whether a wait continues without the owner after this error. It does if the owner would
        wait for itself, but holds no lock with this key in this process: the server still has a hold or
        position that the process has given up. If the wait ends at some time (`end`), it continues in any
        case: it times out, as with redis-py."""
        owner = self.owner
        return owner is not None and is_own_deadlock(answer) and (end is not None or not owner.holds(key))


def acquire(key: bytes, token: bytes, ttl: int, options: Options, name: str = "DLOCK.ACQUIRE") -> Args:
    return (name, key, token, ttl, *options.words())


class CountedName(str):
    """A command name that counts how often redis-py packs it for sending: redis-py may resend a command after
    a lost reply, and does not report it. Pass it as ``name`` to a function of this module."""

    times_sent = 0

    def __init__(self, name: str) -> None:
        # The time before which no copy was sent: that of the first packing. The call may have waited for its
        # turn at the pool, and for a connection.
        self.sent_at = now()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        if not self.times_sent:
            self.sent_at = now()
        self.times_sent += 1
        return super().encode(encoding, errors)


def extend(key: bytes, token: bytes, ttl: int, name: str = "DLOCK.EXTEND") -> Args:
    return (name, key, token, ttl)


def confirm(key: bytes, token: bytes, fence: int, ttl: int, name: str = "DLOCK.CONFIRM") -> Args:
    return (name, key, token, fence, ttl)


def release(key: bytes, token: bytes, name: str = "DLOCK.RELEASE", delay: int | None = None) -> Args:
    """Ends the hold even if it was entered several times, and removes the token from the queue. If it ends
    the hold, the lock is granted to no client for ``delay`` ms. None omits the option, which servers before
    0.1.0 do not have."""
    return (name, key, token, "ALL") if delay is None else (name, key, token, "ALL", "DELAY", delay)


def holds(key: bytes, token: bytes) -> Args:
    return ("DLOCK.HOLDS", key, token)


def pttl(key: bytes, *token: bytes) -> Args:
    return ("DLOCK.PTTL", key, *token)


def cancel(key: Key, token: str | bytes) -> Args:
    """Removes the token from the queue, and ends no hold."""
    return ("DLOCK.CANCEL", key, token)


def guard(key: bytes, token: bytes, command: Sequence[Any]) -> Args:
    """Runs a command if the token holds the lock."""
    return ("DLOCK.GUARD", key, token, *command)


def log(key: Key | None, count: int) -> Args:
    """Asks for the last incidents of a lock, or of all locks if the key is None."""
    return ("DLOCK.LOG", "COUNT", count, *(() if key is None else ("KEY", key)))


def waiters(key: Key, count: int) -> Args:
    return ("DLOCK.WAITERS", key, "COUNT", count)


def inspect(key: Key, count: int) -> Args:
    """Asks for the state of a lock, with ``count`` of its holders at most."""
    return ("DLOCK.INSPECT", key, "COUNT", count)


def set_library_name(name: str) -> Args:
    return ("CLIENT", "SETINFO", "LIB-NAME", name)


# Commands as steps.


class Reconnect:
    """The step that closes the idle connections of the client. The next request connects anew, through the
    address: after a failover, the address leads to another server."""


def send(command: Args) -> Steps:
    """Sends a command, and returns the reply. Raises `InvalidResponse` if the reply to one of
    `INTEGER_COMMANDS` is neither an integer nor null: the client is a mock, or a pipeline, which returns
    itself instead of a reply. Raises it, too, if a fence is none: the server is not one with dlock."""
    try:
        reply = yield command
    except ResponseError as answer:
        if error_word(answer) in NO_MASTER_WORDS:
            yield Reconnect()
        if str(answer).lower().startswith("unknown command"):
            raise ResponseError(f"{answer}: load the module dlock into this server") from answer
        raise
    if command[0] in INTEGER_COMMANDS and reply is not None and type(reply) is not int:
        text = f"{command[0]} returned {reply!r}, which is neither an integer nor null"
        raise InvalidResponse(text)
    if command[0] in FENCE_COMMANDS and reply is not None and not 1 <= reply <= GREATEST_FENCE:
        raise InvalidResponse(f"{command[0]} returned {reply!r}, which is no fence")
    return reply


def send_or_default(command: Args, *, if_wrong_type: int) -> Steps:
    """Does the same as `send`, but returns ``if_wrong_type`` if the key holds something other than a
    lock of dlock."""
    try:
        return (yield from send(command))
    except ResponseError as answer:
        if error_word(answer) == "WRONGTYPE":
            return if_wrong_type
        raise


def send_raising_for_data(command: Args, name: Key) -> Steps:
    """Does the same as `send`, but finds out what the key holds if it is no lock of dlock. Returns `FOREIGN`
    if it is a lock of another library. Raises `NotALockError` with the type if it is data. Returns None if
    the key's type changes at each try."""
    for _ in range(TYPE_TRIES):
        try:
            return (yield from send(command))
        except ResponseError as answer:
            if error_word(answer) != "WRONGTYPE":
                raise
            failure = answer
        try:
            kind = read_bytes((yield ("TYPE", command[1]))).decode("ascii", "replace")
            if kind == "string":
                try:
                    value = yield ("GET", command[1])
                except UnicodeDecodeError:
                    # The value is data that a client with `decode_responses` cannot decode.
                    value = b""
                if value is None:
                    continue
                if FOREIGN_TOKEN.match(read_bytes(value)):
                    return FOREIGN
            # The key has changed since the command: it is free now, or holds a lock of dlock.
            elif kind in ("none", "dlock-key"):
                continue
        except NoPermissionError as why:
            text = f"WRONGTYPE the key holds no lock of dlock, and this user may not read its value: {why}."
            text += " Allow the user +type +get, which show whether another library's lock is there"
            raise error(NotALockError, text, name) from failure
        except ResponseError as answer:
            if error_word(answer) != "WRONGTYPE":
                raise
            # The value is no longer a string.
            continue
        text = f"WRONGTYPE the key holds a {kind}, and no lock: choose another name, the same for all clients"
        if kind == "string":
            text += ". If it is a lock of SET NX, set dlock.honour-strings to wait for it"
        raise error(NotALockError, text, name) from failure
    return None


def read_message(payload: bytes) -> tuple[bytes, str, int, bytes]:
    """Reads a message about a wait, by the grammar in docs/writing-a-client.md. Returns the id of the call
    that it is about, the outcome, and the fence and the secret of a grant. The outcome is "granted",
    "timeout", "cancelled", "refused" or "wake". After "wake" the client asks again. The id is empty if the
    payload has none."""
    call, _, rest = payload.partition(b" ")
    if len(call) == len(payload):
        return b"", "wake", 0, b""
    first, *others = rest.split(b" ")
    if first == b"granted" and others and NUMBER.match(others[0]) and int(others[0]) <= GREATEST_FENCE:
        return call, "granted", int(others[0]), others[1] if len(others) > 1 else b""
    return call, OUTCOMES.get(first, "wake"), 0, b""


def fenced(gate: Key, fence: int | None, command: Sequence[Any]) -> Steps:
    """Runs a command if the gate has seen no greater fence, and returns the reply."""
    if not command:
        raise ValueError('a guarded write needs a command, such as "SET", "key", "value"')
    if fence is None:
        text = "the fence is None: the lock is not held, or is a Redlock without fenced=True"
        raise error(LockError, text, gate)
    try:
        return (yield from send(("DLOCK.FENCED", gate, fence, *command)))
    except ResponseError as answer:
        if error_word(answer) != "STALEFENCE":
            raise
        stale = error(StaleFenceError, str(answer), gate)
        assert isinstance(stale, StaleFenceError)
        greatest = str(answer).split(" ")[1]
        stale.greatest = int(greatest) if greatest.isdigit() else 0
        raise stale from answer


def is_locked(key: bytes, name: Key) -> Steps:
    """Returns whether any client holds the lock. Raises `NotALockError` if the key holds data."""
    try:
        left = yield from send_raising_for_data(pttl(key), name)
    except NotALockError as why:
        # If `dlock.honour-strings` is set, any string is a lock, and INSPECT shows it.
        try:
            return (yield from send(inspect(key, 1))) is not None
        except ResponseError:
            raise why from why.__cause__
    # PTTL returns -2 if the lock is free.
    return left is FOREIGN or left != -2


def holders(answer: Any, count: int) -> dict[bytes, int] | None:
    """Returns the tokens in an answer to INSPECT, with the ms since each grant. None if the answer does not
    list the holders, or lists `count` of them, and so may not contain all."""
    if answer is None:
        return {}
    listed = read_pairs(answer).get("holders")
    if not isinstance(listed, list) or len(listed) >= count:
        return None
    pairs = [read_pairs(holder) for holder in listed]
    return {read_bytes(holder.get("token")): holder.get("held", 0) for holder in pairs}


def is_closed(answer: Any) -> bool:
    """Returns whether an answer to INSPECT shows that a DELAY keeps the lock closed."""
    return bool(read_pairs(answer).get("delay", 0) > 0)


def run_id(info: Any) -> str | None:
    """Returns the run id in a reply to INFO. None if there is none."""
    found = re.search(rb"^run_id:(\w+)", read_bytes(info), re.MULTILINE)
    return found[1].decode() if found else None
