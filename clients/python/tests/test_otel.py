"""Spans and metrics of OpenTelemetry: the extra "otel"."""

from __future__ import annotations

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import dlock
import dlock.otel


@pytest.fixture
def recorded():
    """Records the locks of the test. Yields the exporter of the spans, and the reader of the metrics."""
    spans, reader, tracers = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    dlock.otel.instrument(tracer_provider=tracers, meter_provider=MeterProvider(metric_readers=[reader]))
    yield spans, reader
    dlock.otel.uninstrument()


def test_spans_and_metrics_are_recorded(r, get_lock, recorded):
    spans, reader = recorded
    lock, other = get_lock(timeout=60), get_lock(timeout=60)
    lock.acquire()
    fence = lock.fence
    assert other.acquire(blocking=False) is False
    lock.release()
    lock.acquire()
    r.execute_command("DLOCK.BREAK", "foo")
    with pytest.raises(dlock.LockNotOwnedError):
        lock.extend(1)
    r.set("foo", "data")
    with pytest.raises(dlock.LockError):
        other.acquire()

    found = spans.get_finished_spans()
    assert [span.name for span in found] == ["dlock.acquire"] * 4
    assert found[0].attributes["dlock.key"] == "foo" and found[0].attributes["dlock.fence"] == fence
    assert found[0].attributes["dlock.waited"] >= 0
    assert found[1].status.is_unset and not found[3].status.is_ok
    metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    points = {metric.name: list(metric.data.data_points) for metric in metrics}
    assert points["dlock.acquired"][0].value == 2
    reasons = {point.attributes["reason"]: point.value for point in points["dlock.not_acquired"]}
    assert reasons == {"taken": 1, "error": 1}
    assert points["dlock.lost"][0].value == 1
    assert points["dlock.hold"][0].count == 1
    assert points["dlock.wait"][0].count == 4
