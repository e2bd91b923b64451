"""The replies that describe locks to people: of INSPECT, WAITERS, LIST and LOG. The fields have the names of
the wire; times are in seconds."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, TypeVar

T = TypeVar("T")


def in_seconds(time: float) -> str:
    """Returns a time for people: three digits, or all digits of the whole seconds. The server counts
    milliseconds."""
    if time < 0.001:
        return "less than 0.001 s"
    return f"{time:.3g} s" if time < 999.5 else f"{time:.0f} s"


@dataclasses.dataclass(frozen=True)
class Holder:
    """A holder of a lock."""

    token: bytes
    #: Number of acquisitions that are not released.
    count: int
    fence: int
    #: Rest of the lease.
    pttl: float
    #: Time since the grant.
    held: float
    label: str
    ephemeral: bool
    #: CLIENT ID of the connection of the grant; 0 if it is closed.
    client: int
    #: Address of that connection; empty if it is closed.
    addr: str

    def __str__(self) -> str:
        """Describes the holder to people, without its token."""
        label = f' by "{self.label}"' if self.label else ""
        address = f" at {self.addr}" if self.addr else ""
        return f"held{label}{address} for {in_seconds(self.held)}"


@dataclasses.dataclass(frozen=True)
class Inspection:
    """A lock as its server sees it."""

    #: "exclusive", "shared", "permits", "string" (a lock of SET NX), or "free" without a holder.
    mode: str
    #: Limit of the last grant; 0 in another mode than "permits".
    permits: int
    #: Greatest fence of the holders; 0 without one.
    fence: int
    #: At most 1000 of the holders. `holders_count` is the number of all.
    holders: list[Holder]
    holders_count: int
    #: Length of the wait queue.
    waiters: int
    #: Time for which the lock stays closed.
    delay: float


@dataclasses.dataclass(frozen=True)
class Waiter:
    """A client in the wait queue."""

    #: CLIENT ID of its connection; -1 if it waits without one.
    client: int
    token: bytes
    mode: str
    #: Time since it joined.
    waited: float
    #: Rest of its wait; infinite without a limit.
    left: float
    label: str


@dataclasses.dataclass(frozen=True)
class Listed:
    """A lock of the server that is held, waited for, or in a delay."""

    key: bytes
    mode: str
    #: Numbers of holders and waiters.
    holders: int
    waiters: int
    #: Rest of the longest lease; None without a holder.
    pttl: float | None
    #: Time since the first grant.
    held: float
    delay: float
    #: Of the first holder; empty or 0 without one.
    token: bytes
    fence: int
    label: str
    addr: str


@dataclasses.dataclass(frozen=True)
class Incident:
    """An entry of DLOCK.LOG."""

    id: int
    #: Unix time.
    time: float
    #: What happened, such as "expired", "broken" or "deadlock".
    what: str
    db: int
    key: bytes
    label: str
    #: The first 8 bytes of the token.
    token: bytes
    client: int
    address: str
    fence: int
    #: Length of the hold or of the wait; the other one is None.
    held: float | None
    waited: float | None

    def __str__(self) -> str:
        address = f", by {self.address}" if self.address else ""
        return f"{self.what} after {in_seconds(self.held or 0)}{address}"


def inspection(reply: Any) -> Inspection | None:
    """Reads a reply to INSPECT. None if the lock has no holder, no waiter and no delay."""
    if reply is None:
        return None
    found = read_pairs(reply)
    holders = found.get("holders")
    return _read(
        Inspection,
        found,
        holders=[_read(Holder, read_pairs(each)) for each in holders] if isinstance(holders, list) else [],
        holders_count=_number(found.get("holders-count")),
    )


def waiters(reply: Any) -> list[Waiter]:
    """Reads a reply to WAITERS."""
    return [
        _read(Waiter, found, left=math.inf if _number(found.get("left")) < 0 else _seconds(found.get("left")))
        for found in map(read_pairs, reply or ())
    ]


def listed(reply: Any) -> list[Listed]:
    """Reads the locks in a reply to LIST."""
    return [
        _read(Listed, found, pttl=None if _number(found.get("pttl")) < 0 else _seconds(found.get("pttl")))
        for found in map(read_pairs, reply or ())
    ]


def incidents(reply: Any) -> list[Incident]:
    """Reads a reply to LOG."""
    return [
        _read(
            Incident,
            found,
            held=_seconds(found["held"]) if "held" in found else None,
            waited=_seconds(found["waited"]) if "waited" in found else None,
        )
        for found in map(read_pairs, reply or ())
    ]


def _read(kind: type[T], found: dict[str, Any], **others: Any) -> T:
    """Returns an object of the class ``kind`` with the values of a map of the wire: each field has the value
    of its name, read as its type says. ``others``: the fields that are read in another way."""
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name not in others:
            others[field.name] = READERS[str(field.type)](found.get(field.name))
    return kind(**others)


def read_pairs(answer: Any) -> dict[str, Any]:
    """Returns a map of a reply. RESP2 sends it as a list of alternating names and values."""
    if isinstance(answer, list):
        answer = dict(zip(answer[::2], answer[1::2]))
    if not isinstance(answer, dict):
        return {}
    return {read_bytes(name).decode(): value for name, value in answer.items()}


def read_bytes(text: Any) -> bytes:
    return text if isinstance(text, bytes) else b"" if text is None else str(text).encode()


def _text(value: Any) -> str:
    return read_bytes(value).decode("utf-8", "replace")


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _seconds(value: Any) -> float:
    return _number(value) / 1000


# The function that reads the value of a field, by the type of the field. A missing value is 0 or empty.
READERS: dict[str, Callable[[Any], Any]] = {
    "bool": lambda value: bool(_number(value)),
    "bytes": read_bytes,
    "float": _seconds,
    "int": _number,
    "str": _text,
}
