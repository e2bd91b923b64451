"""The clock that leases are measured on, and how much of a lease counts."""

from __future__ import annotations

import time

# CLOCK_BOOTTIME continues while the machine is suspended, so that a laptop does not believe after an hour of
# sleep that it still holds a lock. On macOS, CLOCK_MONOTONIC does the same and `time.monotonic` does not.
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def now() -> float:
    """Returns the current time in seconds since an unspecified origin."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


def trusted(ttl: float) -> float:
    """Returns the part of a lease, in seconds, that the client relies on: the lease less a hundredth, for
    clocks whose rates differ, and less 2 ms for their resolution."""
    return ttl - ttl / 100 - 0.002
