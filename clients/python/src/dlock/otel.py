"""Records the locks of this process with OpenTelemetry (`pip install './clients/python[otel]'`, from a
clone): a span for each acquisition, with the time waited and the fence, and metrics.

    dlock.otel.instrument()

The metrics are `dlock.acquired`, `dlock.not_acquired` and `dlock.lost` (counters), and `dlock.wait` and
`dlock.hold` (histograms in s). The names of the locks are attributes of spans only, as there may be many."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from opentelemetry import metrics, trace
from redis.exceptions import ConnectionError, TimeoutError

from . import _observer
from ._arguments import checking
from ._members import NoQuorumError
from ._protocol import DeadlockError, GraceError, QueueFullError

SCOPE = "dlock"
# The reasons of `dlock.not_acquired`: a few values, as they are an attribute of a metric.
REASONS = (
    (DeadlockError, "deadlock"),
    (GraceError, "grace"),
    (QueueFullError, "queue full"),
    (NoQuorumError, "no quorum"),
    ((ConnectionError, TimeoutError), "no answer"),
    (asyncio.CancelledError, "cancelled"),
)


@checking("dlock.otel.instrument")
def instrument(
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> None:
    """Begins to record every lock of this process. The default providers are the global ones."""
    _observer.observer = Recorder(
        trace.get_tracer(SCOPE, tracer_provider=tracer_provider),
        metrics.get_meter(SCOPE, meter_provider=meter_provider),
    )


def uninstrument() -> None:
    """Ends the recording."""
    _observer.observer = None


# The bounds of the histograms, in seconds. The default ones of OpenTelemetry are for ms.
BOUNDS = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10]


class Recorder:
    """The `Observer` that `instrument` sets."""

    def __init__(self, tracer: trace.Tracer, meter: metrics.Meter) -> None:
        self._tracer = tracer
        self._acquired = meter.create_counter("dlock.acquired", description="locks acquired")
        self._failed = meter.create_counter("dlock.not_acquired", description="acquisitions that failed")
        self._lost = meter.create_counter("dlock.lost", description="holds lost")
        self._wait = meter.create_histogram(
            "dlock.wait", "s", "time of an acquisition", explicit_bucket_boundaries_advisory=BOUNDS
        )
        self._hold = meter.create_histogram(
            "dlock.hold",
            "s",
            "time of a hold until its release",
            explicit_bucket_boundaries_advisory=[*BOUNDS, 30, 60, 300],
        )

    def acquired(self, key: bytes, waited: float, fence: int | None) -> None:
        span = self._span(key, waited)
        if fence is not None:
            span.set_attribute("dlock.fence", fence)
        span.end()
        self._acquired.add(1)
        self._wait.record(waited)

    def not_acquired(self, key: bytes, waited: float, why: BaseException | None) -> None:
        span = self._span(key, waited)
        if why is not None:
            span.record_exception(why)
            span.set_status(trace.StatusCode.ERROR, str(why))
        span.end()
        named = (name for kind, name in REASONS if isinstance(why, kind))
        reason = "taken" if why is None else next(named, "error")
        self._failed.add(1, {"reason": reason})
        self._wait.record(waited)

    def released(self, held: float) -> None:
        self._hold.record(held)

    def lost(self) -> None:
        self._lost.add(1)

    def _span(self, key: bytes, waited: float) -> Any:
        return self._tracer.start_span(
            "dlock.acquire",
            kind=trace.SpanKind.CLIENT,
            start_time=time.time_ns() - int(waited * 1e9),
            attributes={"dlock.key": key.decode("utf-8", "replace"), "dlock.waited": waited},
        )
