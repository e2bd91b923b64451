"""The clock that measures leases, and the part of a lease that the client relies on."""

from __future__ import annotations

import functools
import time
from typing import Callable

# CLOCK_BOOTTIME advances while the machine is suspended, so a client notices after a resume that its lease
# has ended. On macOS, CLOCK_MONOTONIC does so, too, unlike `time.monotonic`.
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))

# Returns the current time in seconds since an unspecified origin.
now: Callable[[], float] = time.monotonic if _CLOCK is None else functools.partial(time.clock_gettime, _CLOCK)

# In seconds: see `on_grid`.
GRID = 0.1


def on_grid(start: float, pause: float) -> float:
    """Returns the time after a pause. If it is long, returns the multiple of `GRID` before that: the requests
    of many waits and renewals form pipelines."""
    end = start + pause
    return end if pause < 10 * GRID else end - end % GRID


def validity(ttl: float) -> float:
    """Returns the part of a lease of `ttl` seconds that the client relies on: 1 % less, as the rates of two
    clocks differ, and 2 ms less for the resolution of the clocks."""
    return ttl - ttl / 100 - 0.002
