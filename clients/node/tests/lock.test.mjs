// Locks on one server: fences, modes, renewal, loss.

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { GraceError, Lock, NoAnswerError, NotHeldError, Quorum, ResourceLockedError } from "dlock";
import { now } from "../dist/clock.js";
import { Renewal } from "../dist/renewal.js";
import { Sleep } from "../dist/steps.js";
import { times } from "../dist/waits.js";
import { onEachServer, suspend, until, untilRenewed } from "./support.mjs";

const MINUTE = 60_000;
/** Returns the rest of the lease of the lock "foo" on the server, ms. */
const pttl = (server) => server.ask("DLOCK.PTTL", "foo");

/** Blocks the event loop. */
function block(ms) {
  for (const end = performance.now() + ms; performance.now() < end; );
}

const defaultTimes = { ...times };
afterEach(() => Object.assign(times, defaultTimes));

onEachServer((env) => {
  const makeLock = async (options) => new Lock(await env.client(), "foo", options);

  test("a lock excludes other clients until its release", async () => {
    const { server } = env;
    const [one, other] = [await makeLock(), await makeLock()];
    const hold = await one.acquire();
    assert(await server.exists());
    assert.equal(await other.tryAcquire(), null);
    await assert.rejects(other.acquire({ timeout: 20 }), ResourceLockedError);
    assert(await other.locked());
    assert(await hold.held());
    await hold.release();
    await hold.release();
    assert(!(await hold.held()));
    assert(!(await other.locked()));
    assert.equal(await server.waiters(), 0);
    await (await other.tryAcquire()).release();
  });

  test("fences rise from hold to hold", async () => {
    const lock = await makeLock();
    const fences = [];
    for (let round = 0; round < 5; round++) await lock.using((hold) => fences.push(hold.fence));
    assert(fences.every((fence, at) => Number.isSafeInteger(fence) && fence > (fences[at - 1] ?? 0)));
    assert(!(await lock.locked()));
  });

  test("sharers exclude an exclusive holder", async () => {
    const [shared, writer] = [await makeLock({ shared: true }), await makeLock()];
    const holds = [await shared.tryAcquire(), await shared.tryAcquire()];
    assert.equal(await writer.tryAcquire(), null);
    for (const hold of holds) await hold.release();
    await (await writer.tryAcquire()).release();
  });

  test("permits limit the number of holders", async () => {
    const two = await makeLock({ permits: 2 });
    const holds = [await two.tryAcquire(), await two.tryAcquire(), await two.tryAcquire()];
    assert.deepEqual(holds.map(Boolean), [true, true, false]);
    await holds[0].release();
    assert(await two.tryAcquire());
    await assert.rejects(makeLock({ permits: 2, shared: true }), TypeError);
  });

  test("an invalid time is refused, and does not end the hold", async () => {
    const lock = await makeLock({ ttl: MINUTE });
    const invalidTimes = [Number.NaN, "5000", "soon", 5000n, null];
    for (const timeout of invalidTimes) await assert.rejects(lock.acquire({ timeout }), RangeError);
    for (const retryDelay of invalidTimes) await assert.rejects(makeLock({ retryDelay }), RangeError);
    assert.throws(() => new Quorum([], { nodeTimeout: "250" }), RangeError);
    await assert.rejects(makeLock({ ttl: 0.5 }), RangeError);
    const hold = await lock.acquire();
    for (const ttl of [Number.NaN, 0, -1, 1.5]) await assert.rejects(hold.extend(ttl), RangeError);
    assert(hold.validFor > 0);
    await hold.release();
  });

  test("an argument of the wrong type is refused, and the error names it", async () => {
    const client = await env.client();
    const lock = new Lock(client, "foo");
    const refusal = (name) => ({ name: "TypeError", message: new RegExp(`^${name}: `) });
    for (const key of [undefined, null, 5, {}]) assert.throws(() => new Lock(client, key), refusal("key"));
    for (const options of [null, 500, "500"]) {
      assert.throws(() => new Lock(client, "foo", options), refusal("options"));
      await assert.rejects(lock.acquire(options), refusal("options"));
      await assert.rejects(lock.tryAcquire(options), refusal("options"));
      await assert.rejects(
        lock.using(() => {}, options),
        refusal("options"),
      );
    }
    for (const signal of [5, "soon", {}]) await assert.rejects(lock.acquire({ signal }), refusal("signal"));
    assert(!(await lock.locked()));
  });

  test("using releases the lock and throws the error of the routine", async () => {
    const lock = await makeLock();
    await assert.rejects(
      lock.using(() => {
        throw new Error("mine");
      }),
      /mine/,
    );
    assert(!(await lock.locked()));
    assert.equal(await lock.using(() => 7), 7);
  });

  test("asyncDispose releases the lock, and does nothing after a release", async () => {
    const hold = await (await makeLock()).acquire();
    await hold[Symbol.asyncDispose]();
    assert(!(await env.server.exists()));
    await hold[Symbol.asyncDispose]();
  });

  test("a hold is renewed past its lease", async () => {
    const { server } = env;
    const hold = await (await makeLock({ ttl: MINUTE })).acquire();
    await server.ask("CONFIG", "RESETSTAT");
    for (let round = 0; round < 3; round++) await untilRenewed(hold, MINUTE);
    assert.equal(await server.calls("dlock.extend"), 3);
    assert(!hold.signal.aborted);
    await hold.release();
    assert(!(await server.exists()));
  });

  test("a hold without renewal ends with its lease", async () => {
    const hold = await (await makeLock({ ttl: 1000, renew: false })).acquire();
    const { signal } = hold;
    await until("the signal is aborted", () => signal.aborted);
    assert(signal.reason instanceof NotHeldError);
    assert.equal(hold.validFor, 0);
    assert(!(await hold.held()));
    await until("the server ends the hold", async () => !(await env.server.exists()));
    await assert.rejects(hold.extend(), NotHeldError);
    await assert.rejects(hold.release(), NotHeldError);
  });

  test("a release of a hold that the client has declared lost throws NotHeldError, even if the server still has the hold", async () => {
    const hold = await (await makeLock({ ttl: 60_000 })).acquire();
    suspend(60_000);
    assert(hold.signal.aborted);
    assert(await env.server.exists());
    await assert.rejects(hold.release(), NotHeldError);
    await until("the server ends the hold", async () => !(await env.server.exists()));
    await hold.release();
  });

  test("the abort event fires at the loss of the hold", async () => {
    const hold = await (await makeLock({ ttl: 1000, renew: false })).acquire();
    await new Promise((resolve) => hold.signal.addEventListener("abort", resolve));
    assert.throws(() => hold.signal.throwIfAborted(), NotHeldError);
  });

  test("extend sets the lease, also for later renewals", async () => {
    const hold = await (await makeLock({ ttl: 20_000 })).acquire();
    await hold.extend(MINUTE);
    assert((await pttl(env.server)) > 20_000);
    assert(hold.validFor > 20_000);
    await hold.extend(MINUTE / 2);
    assert(hold.validFor < MINUTE / 2 && (await pttl(env.server)) <= MINUTE / 2);
    await untilRenewed(hold, MINUTE / 2);
    await hold.release();
  });

  test("a broken hold is lost at the next renewal", async () => {
    const hold = await (await makeLock({ ttl: MINUTE })).acquire();
    const { signal } = hold;
    await env.server.ask("DLOCK.BREAK", "foo");
    // Advances the client's clock until the renewal is due.
    suspend(MINUTE / 2);
    await until("the signal is aborted", () => signal.aborted);
    assert.match(signal.reason.message, /taken away/);
    await assert.rejects(hold.extend(), NotHeldError);
    await assert.rejects(hold.release(), NotHeldError);
  });

  test("held returns false after another client has acquired the lock", async () => {
    const hold = await (await makeLock()).acquire();
    await env.server.ask("DLOCK.BREAK", "foo");
    await env.server.ask("DLOCK.ACQUIRE", "foo", "other", MINUTE);
    assert(!(await hold.held()));
    await assert.rejects(hold.release(), NotHeldError);
    assert(await env.server.exists());
  });

  test("the loss is reported before any other answer when the event loop was blocked past the lease", async () => {
    const client = await env.client();
    const hold = await new Lock(client, "foo", { ttl: MINUTE }).acquire();
    const { signal } = hold;
    let aborted = false;
    signal.addEventListener("abort", () => {
      aborted = true;
    });
    const answer = client.get("bar").then(() => aborted);
    suspend(MINUTE);
    // The client checks the hold at least once a second, so a check is due after the block.
    block(1200);
    assert(await answer, "the loss is reported before the answer to GET");
    await assert.rejects(hold.extend(), NotHeldError);
    assert(!(await hold.held()));
  });

  test("signal.aborted is true after the lease even before a timer has run", async () => {
    const { signal } = await (await makeLock({ ttl: MINUTE })).acquire();
    assert(!signal.aborted);
    suspend(MINUTE);
    assert(signal.aborted);
    // The client redefines the getter `aborted` on the hold's signal only, not for all signals.
    assert(!new AbortController().signal.aborted);
  });

  test("an answer that arrived while the event loop was blocked counts", async () => {
    const lock = await makeLock({ ttl: MINUTE });
    // Connects the client, so that it sends the next command at once.
    await lock.locked();
    times.answer = 500;
    const acquired = lock.tryAcquire();
    // node-redis writes commands in a callback of setImmediate.
    await new Promise(setImmediate);
    block(times.answer * 1.5);
    await (await acquired).release();
  });

  test("acquire waits for the end of a grace period, and tryAcquire throws GraceError", async () => {
    const { server } = env;
    await server.ask("CONFIG", "SET", "dlock.restart-grace", "5000");
    try {
      const lock = await makeLock({ ttl: 4000 });
      await lock.acquire();
      // A flush that ends a hold begins a grace period.
      await server.ask("FLUSHALL");
      const failure = await lock.tryAcquire().catch((why) => why);
      assert(failure instanceof GraceError);
      assert(failure.left > 0 && failure.left <= 5000);
      await (await lock.acquire({ timeout: 20_000 })).release();
    } finally {
      await server.ask("CONFIG", "SET", "dlock.restart-grace", "0");
    }
  });

  test("acquire notices that a grace period ended earlier than the server said", async () => {
    const { server } = env;
    await server.ask("CONFIG", "SET", "dlock.restart-grace", "600000");
    try {
      const lock = await makeLock();
      await lock.acquire();
      // A flush that ends a hold begins a grace period.
      await server.ask("FLUSHALL");
      await server.ask("CONFIG", "RESETSTAT");
      let hold;
      const waiting = lock.acquire().then((acquired) => (hold = acquired));
      await until("the client has asked", () => server.calls("dlock.acquire"));
      await server.ask("CONFIG", "SET", "dlock.restart-grace", "0");
      await until("the client acquires the lock", () => hold);
      await (await waiting).release();
    } finally {
      await server.ask("CONFIG", "SET", "dlock.restart-grace", "0");
    }
  });

  test("a release that the server refuses is repeated in the background", async () => {
    const { server } = env;
    const hold = await (await makeLock()).acquire();
    await server.ask("CONFIG", "SET", "min-replicas-to-write", "1");
    try {
      await assert.rejects(hold.release(), /NOREPLICAS/);
    } finally {
      await server.ask("CONFIG", "SET", "min-replicas-to-write", "0");
    }
    await until("the lock is released", async () => !(await server.exists()));
  });

  test("a key can be bytes", async () => {
    const key = Buffer.from([0xff, 0, 0x80]);
    const hold = await new Lock(await env.client(), key).acquire();
    assert.equal(await env.server.ask("EXISTS", key), 1);
    await hold.release();
  });

  test("tryAcquire throws the server's error for a ttl that is too long", async () => {
    await assert.rejects((await makeLock({ ttl: 172_800_000 })).tryAcquire(), /ttl/);
  });
});

test("extensions at the same time are sent one after the other", () => {
  const renewal = new Renewal("foo", MINUTE, now() + MINUTE, false, function* () {
    return yield "EXTEND";
  });
  const [longer, shorter] = [renewal.extending(MINUTE), renewal.extending(100)];
  assert.equal(longer.next().value, "EXTEND");
  assert(shorter.next().value instanceof Sleep);
  assert.equal(longer.next(true).value, true);
  assert.equal(shorter.next().value, "EXTEND");
  // Without an answer, the server may have set the shorter lease.
  assert.throws(() => shorter.throw(new NoAnswerError("no answer")), NoAnswerError);
  assert(renewal.validUntil <= now() + 100);
});

test("a hold with renewal is lost a tenth of its lease before its validity ends", () => {
  const extend = function* () {
    return yield "EXTEND";
  };
  const start = now();
  const fresh = new Renewal("foo", 10 * MINUTE, start + 10 * MINUTE, true, extend);
  assert(fresh.wakeAt() < start + 200_001, "the renewal is due after a third of the lease");
  // A tenth of the lease is left.
  const withRenewal = new Renewal("foo", 10 * MINUTE, start + MINUTE, true, extend);
  assert.equal(withRenewal.wake(), undefined);
  assert.match(withRenewal.loss.message, /not renewed in time/);
  const withoutRenewal = new Renewal("foo", 10 * MINUTE, start + MINUTE, false, extend);
  assert(!withoutRenewal.isLost());
  assert(withoutRenewal.wakeAt() > start + 59_999, "not lost before the lease ends");
});
