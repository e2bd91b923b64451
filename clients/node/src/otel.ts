/** Records the locks of this process with OpenTelemetry: a span for each acquisition, with the time waited and the
 * fence, and metrics. Needs the package `@opentelemetry/api`.
 *
 *     import { instrument } from "dlock/otel";
 *     instrument();
 *
 * The metrics are `dlock.acquired`, `dlock.not_acquired` and `dlock.lost` (counters), and `dlock.wait` and `dlock.hold`
 * (histograms in s). The names of the locks are attributes of spans only, as there may be many. */

import { subscribe, unsubscribe } from "node:diagnostics_channel";
import {
  type Attributes,
  type MeterProvider,
  metrics,
  type Span,
  SpanKind,
  SpanStatusCode,
  type TracerProvider,
  trace,
} from "@opentelemetry/api";
import { DeadlockError, GraceError, NoAnswerError, NoQuorumError, QueueFullError } from "./errors.js";
import type { Acquired, Ended, NotAcquired } from "./events.js";
import { checkNames } from "./options.js";

const SCOPE = "dlock";

// The bounds of the histograms, in s. The default ones of OpenTelemetry are for ms.
const BOUNDS = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10];

// The reasons of `dlock.not_acquired`: a few values, as they are an attribute of a metric.
const REASONS = [
  [DeadlockError, "deadlock"],
  [GraceError, "grace"],
  [QueueFullError, "queue full"],
  [NoQuorumError, "no quorum"],
  [NoAnswerError, "no answer"],
] as const;

function reasonOf(error: unknown): string {
  if (error === undefined) return "taken";
  const name = (error as Error | undefined)?.name;
  if (name === "AbortError" || name === "TimeoutError") return "cancelled";
  return REASONS.find(([kind]) => error instanceof kind)?.[1] ?? "error";
}

/** Begins to record every lock of this process. The default providers are the global ones. Returns a function that ends
 * the recording. */
export function instrument(
  options: { tracerProvider?: TracerProvider | undefined; meterProvider?: MeterProvider | undefined } = {},
): () => void {
  checkNames(options, ["tracerProvider", "meterProvider"]);
  const { tracerProvider = trace.getTracerProvider(), meterProvider = metrics.getMeterProvider() } = options;
  const tracer = tracerProvider.getTracer(SCOPE);
  const meter = meterProvider.getMeter(SCOPE);
  const acquired = meter.createCounter("dlock.acquired", { description: "locks acquired" });
  const failed = meter.createCounter("dlock.not_acquired", { description: "acquisitions that failed" });
  const lost = meter.createCounter("dlock.lost", { description: "holds lost" });
  const wait = meter.createHistogram("dlock.wait", {
    unit: "s",
    description: "time of an acquisition",
    advice: { explicitBucketBoundaries: BOUNDS },
  });
  const hold = meter.createHistogram("dlock.hold", {
    unit: "s",
    description: "time of a hold until its release",
    advice: { explicitBucketBoundaries: [...BOUNDS, 30, 60, 300] },
  });

  /** Starts the span of an acquisition that has ended now. */
  const span = (key: string, waited: number, more: Attributes): Span =>
    tracer.startSpan("dlock.acquire", {
      kind: SpanKind.CLIENT,
      startTime: Date.now() - waited,
      attributes: { "dlock.key": key, "dlock.waited": waited / 1000, ...more },
    });

  const recorders: Record<string, (message: unknown) => void> = {
    "dlock.acquired": (message) => {
      const { key, fence, waited } = message as Acquired;
      span(key, waited, fence === null ? {} : { "dlock.fence": fence }).end();
      acquired.add(1);
      wait.record(waited / 1000);
    },
    "dlock.not_acquired": (message) => {
      const { key, waited, error } = message as NotAcquired;
      const ended = span(key, waited, {});
      if (error instanceof Error) {
        ended.recordException(error);
        ended.setStatus({ code: SpanStatusCode.ERROR, message: error.message });
      }
      ended.end();
      failed.add(1, { reason: reasonOf(error) });
      wait.record(waited / 1000);
    },
    "dlock.released": (message) => hold.record((message as Ended).held / 1000),
    "dlock.lost": () => lost.add(1),
  };
  for (const [name, recorder] of Object.entries(recorders)) subscribe(name, recorder);
  return () => {
    for (const [name, recorder] of Object.entries(recorders)) unsubscribe(name, recorder);
  };
}
