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


def points_of(reader):
    """Returns the data points of each metric."""
    metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    return {metric.name: list(metric.data.data_points) for metric in metrics}


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
    points = points_of(reader)
    assert points["dlock.acquired"][0].value == 2
    reasons = {point.attributes["reason"]: point.value for point in points["dlock.not_acquired"]}
    assert reasons == {"taken": 1, "error": 1}
    assert points["dlock.lost"][0].value == 1
    assert points["dlock.hold"][0].count == 1
    assert points["dlock.wait"][0].count == 4
    assert list(points["dlock.wait"][0].explicit_bounds)[::13] == [0.005, 10]
    assert points["dlock.hold"][0].explicit_bounds[-1] == 300


def test_a_loss_that_the_release_finds_is_counted_as_a_loss(r, get_lock, recorded):
    _, reader = recorded
    lock = get_lock(timeout=60)
    lock.acquire()
    r.execute_command("DLOCK.BREAK", "foo")
    with pytest.raises(dlock.LockNotOwnedError):
        lock.release()
    points = points_of(reader)
    assert points["dlock.lost"][0].value == 1
    assert "dlock.hold" not in points


def test_a_hold_that_was_lost_before_its_release_is_counted_once(r, get_lock, recorded):
    _, reader = recorded
    lock = get_lock(timeout=60)
    lock.acquire()
    r.execute_command("DLOCK.BREAK", "foo")
    assert not lock.owned()
    with pytest.raises(dlock.LockNotOwnedError):
        lock.extend(1)
    with pytest.raises(dlock.LockNotOwnedError):
        lock.release()
    points = points_of(reader)
    assert points["dlock.lost"][0].value == 1
    assert "dlock.hold" not in points


def test_the_entries_of_a_reentrant_hold_are_one_acquisition(r, recorded):
    spans, reader = recorded
    lock = dlock.Lock(r, "foo", timeout=60, reentrant=True)
    for _ in range(3):
        lock.acquire()
    for _ in range(3):
        lock.release()
    points = points_of(reader)
    assert points["dlock.acquired"][0].value == points["dlock.hold"][0].count == 1
    assert points["dlock.wait"][0].count == len(spans.get_finished_spans()) == 1


def test_a_grant_that_is_not_durable_is_no_hold(r, get_lock, recorded):
    _, reader = recorded
    with pytest.raises(dlock.NotDurableError):
        get_lock(durable=(1, 0.05)).acquire()
    points = points_of(reader)
    assert points["dlock.not_acquired"][0].value == 1
    assert "dlock.acquired" not in points and "dlock.hold" not in points


def test_an_adopted_hold_is_counted_again(r, get_lock, recorded):
    """The process that forgets a hold has held it, and so has the one that adopts it."""
    _, reader = recorded
    first, second = get_lock(timeout=60), get_lock(timeout=60)
    first.acquire()
    second.adopt(first.forget())
    second.release()
    points = points_of(reader)
    assert points["dlock.acquired"][0].value == 1
    assert points["dlock.hold"][0].count == 2
