// Events of locks, and their spans and metrics of OpenTelemetry.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Lock, NotHeldError, Quorum } from "dlock";
import { instrument } from "dlock/otel";
import { onEachServer } from "./support.mjs";

test("an unknown or mistyped option of instrument is an error that suggests the right one", () => {
  assert.throws(() => instrument({ tracerProvidr: {} }), /tracerProvidr: .*did you mean tracerProvider\?/);
  for (const options of [5, null]) assert.throws(() => instrument(options), /they must be an object/);
});

/** Providers that record what they get: [name, value or attributes] for each span and measurement. */
function recorder() {
  const recorded = [];
  const bounds = {};
  const instrumentOf = (name, { advice }) => {
    bounds[name] = advice?.explicitBucketBoundaries;
    const record = (value, attributes) => recorded.push([name, value, attributes]);
    return { add: record, record };
  };
  const tracer = {
    startSpan(name, { attributes }) {
      return {
        recordException: (why) => recorded.push(["exception", why.message]),
        setStatus: () => {},
        end: () => recorded.push([name, attributes]),
      };
    },
  };
  return {
    recorded,
    bounds,
    tracerProvider: { getTracer: () => tracer },
    meterProvider: { getMeter: () => ({ createCounter: instrumentOf, createHistogram: instrumentOf }) },
  };
}

onEachServer(
  (env) => {
    test("spans and metrics are recorded until the end of the recording", async () => {
      const { recorded, bounds, ...providers } = recorder();
      const end = instrument(providers);
      assert.deepEqual([bounds["dlock.wait"].at(-1), bounds["dlock.hold"].at(-1)], [10, 300]);
      const lock = new Lock(await env.client(), "foo");
      const hold = await lock.acquire();
      assert.equal(await lock.tryAcquire(), null);
      await hold.release();
      const lost = await lock.acquire();
      await env.server.ask("DLOCK.BREAK", "foo");
      await assert.rejects(lost.extend());
      await env.server.ask("RPUSH", "foo", "x");
      await assert.rejects(lock.acquire(), /the key holds a list/);
      end();
      assert.equal(await env.server.ask("DEL", "foo"), 1);
      await (await lock.acquire()).release();
      const of = (name) => recorded.filter(([recordedName]) => recordedName === name);
      const spans = of("dlock.acquire").map(([, attributes]) => attributes);
      assert.deepEqual(
        spans.map((attributes) => [attributes["dlock.key"], attributes["dlock.fence"]]),
        [
          ["foo", hold.fence],
          ["foo", undefined],
          ["foo", lost.fence],
          ["foo", undefined],
        ],
      );
      assert.match(of("exception")[0][1], /the key holds a list/);
      assert.equal(of("dlock.acquired").length, 2);
      assert.deepEqual(
        of("dlock.not_acquired").map(([, , { reason }]) => reason),
        ["taken", "error"],
      );
      assert.deepEqual(
        [of("dlock.lost").length, of("dlock.hold").length, of("dlock.wait").length],
        [1, 1, 4],
      );
    });

    test("a loss that the release finds counts as lost, and not as a hold that was released", async () => {
      const { recorded, bounds: _, ...providers } = recorder();
      const end = instrument(providers);
      const client = await env.client();
      for (const service of [client, new Quorum([client], { nodeTimeout: 10_000 })]) {
        const hold = await new Lock(service, "foo").acquire();
        await env.server.ask("DLOCK.BREAK", "foo");
        await assert.rejects(hold.release(), NotHeldError);
      }
      end();
      const count = (name) => recorded.filter(([recordedName]) => recordedName === name).length;
      assert.deepEqual([count("dlock.lost"), count("dlock.hold")], [2, 0]);
    });
  },
  { only: ["ioredis"] },
);
