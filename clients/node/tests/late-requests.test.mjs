// An ACQUIRE without an answer that arrives after its RELEASE: the client releases it again, until the lease
// of that ACQUIRE would have ended.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Hold, Lock, NoAnswerError, NoQuorumError } from "dlock";
import { now } from "../dist/clock.js";
import { Owed } from "../dist/owed.js";
import { mastersFor, onEach, until } from "./support.mjs";

// No lease ends during a test.
const MINUTES = 600_000;
// More releases than a client sends to a server that has answered each ACQUIRE.
const RELEASES = 5;

onEach(
  (bench) => {
    const { masters, proxies, quorumOf } = mastersFor(bench);

    /** Calls `acquire` while the connections at these places stall, and replaces these connections. Returns the
     * hold, or the error. */
    async function acquireOverStalled(places, acquire) {
      for (const { proxy } of places) proxy.stall();
      const accepted = places.map(({ proxy }) => proxy.accepted);
      const asked = places.map(({ proxy }) => proxy.asked("DLOCK.ACQUIRE"));
      const outcome = acquire().catch((why) => why);
      await until("ACQUIRE is sent", () =>
        places.every(({ proxy }, i) => proxy.asked("DLOCK.ACQUIRE") > asked[i]),
      );
      for (const { proxy } of places) proxy.breakStalled();
      await until("the reconnect", () => places.every(({ proxy }, i) => proxy.accepted > accepted[i]));
      return outcome;
    }

    /** Delivers the ACQUIRE after several releases, and waits until the lock is free. */
    async function isFreedAfterTheLateArrival({ master, proxy }, before) {
      await until("the release is repeated", async () => {
        return (await master.calls("dlock.release")) >= before + RELEASES;
      });
      const acquires = await master.calls("dlock.acquire");
      await proxy.deliver();
      assert((await master.calls("dlock.acquire")) > acquires, "the ACQUIRE has arrived");
      await until("the lock is free", async () => !(await master.exists()));
    }

    const placesOf = (...at) => at.map((i) => ({ master: masters[i], proxy: proxies[i] }));
    const releases = (places) => Promise.all(places.map(({ master }) => master.calls("dlock.release")));

    for (const [name, at, isAcquired] of [
      ["a failed acquisition releases an ACQUIRE that arrives late at a majority", [0, 1], false],
      ["the release of a hold also ends an ACQUIRE that arrives late at one member", [0], true],
    ]) {
      test(name, async () => {
        const quorum = await quorumOf(proxies);
        await (await new Lock(quorum, "other").acquire()).release();
        await until("no member has the other lock", async () =>
          (await Promise.all(masters.map((master) => master.exists("other")))).every((held) => !held),
        );
        Object.assign(quorum, { limit: 2000 });
        const places = placesOf(...at);
        const before = await releases(places);
        const lock = new Lock(quorum, "foo", { ttl: MINUTES, renew: false });
        const outcome = await acquireOverStalled(places, () => lock.tryAcquire());
        if (outcome instanceof Hold) await outcome.release();
        else assert(!isAcquired && outcome instanceof NoQuorumError, outcome);
        await Promise.all(places.map((place, i) => isFreedAfterTheLateArrival(place, before[i])));
      });
    }

    test("an ACQUIRE that arrives late at a single server is released", async () => {
      const [place] = placesOf(0);
      const [before] = await releases([place]);
      const lock = new Lock(await bench.client(proxies[0].url), "foo", { ttl: MINUTES, renew: false });
      assert.equal(await lock.locked(), false, "the client is connected");
      // node-redis fails when the connection breaks, and ioredis sends the command again.
      const outcome = await acquireOverStalled([place], () => lock.acquire());
      if (outcome instanceof Hold) await outcome.release();
      else assert(outcome instanceof NoAnswerError, outcome);
      await isFreedAfterTheLateArrival(place, before);
    });
  },
  { isParallel: true },
);

/** Sends the owed request until it is finished, or `most` times, and returns the number of tries. */
function tries(owed, most) {
  for (let count = 0; count < most; count++) {
    if (owed.finished()) return count;
    const sending = owed.wake();
    sending.next();
    sending.next(1);
  }
  return most;
}

test("an owed request counts only the answers that arrive after those to earlier requests", () => {
  let isSettled = false;
  const request = function* () {
    return yield [];
  };
  const owed = new Owed(request, MINUTES, 2, () => isSettled);
  assert.equal(tries(owed, 20), 20);
  assert(owed.wakeAt() - now() > 2000, "the pauses grow");
  isSettled = true;
  assert.equal(tries(owed, 20), 2);
});
