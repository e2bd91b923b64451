// A server may read an ACQUIRE from a broken connection after the RELEASE for it. So the client repeats the
// RELEASE until the lease of that ACQUIRE would have ended.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Hold, Lock, NoAnswerError, NoQuorumError } from "dlock";
import { now } from "../dist/clock.js";
import { ANSWERS_TO_RELEASE, Owed } from "../dist/owed.js";
import { allowSlowAnswers, mastersFor, onEachServer, until } from "./support.mjs";

allowSlowAnswers();

// No lease ends during a test.
const TEN_MINUTES = 600_000;
// More RELEASEs for one token than a client sends if all its ACQUIREs were answered.
const MANY_RELEASES = 5;

onEachServer(
  (env) => {
    const { masters, proxies, quorumOf } = mastersFor(env);

    /** Calls `acquire` while the connections of these members stall, and then breaks these connections. Returns
     * the hold, or the error. */
    async function acquireOverStalled(members, acquire) {
      for (const { proxy } of members) proxy.stall();
      const accepted = members.map(({ proxy }) => proxy.accepted);
      const asked = members.map(({ proxy }) => proxy.requestCount("DLOCK.ACQUIRE"));
      const outcome = acquire().catch((why) => why);
      await until("ACQUIRE is sent", () =>
        members.every(({ proxy }, i) => proxy.requestCount("DLOCK.ACQUIRE") > asked[i]),
      );
      for (const { proxy } of members) proxy.breakStalled();
      await until("the reconnect", () => members.every(({ proxy }, i) => proxy.accepted > accepted[i]));
      return outcome;
    }

    /** Waits for several releases, delivers the ACQUIRE, and waits until the lock is free. `before`: number of
     * releases that the master had executed before the test. */
    async function deliverLateAndAwaitRelease({ master, proxy }, before) {
      await until("the release is repeated", async () => {
        return (await master.calls("dlock.release")) >= before + MANY_RELEASES;
      });
      const acquires = await master.calls("dlock.acquire");
      await proxy.deliver();
      assert((await master.calls("dlock.acquire")) > acquires, "the ACQUIRE has arrived");
      await until("the lock is free", async () => !(await master.exists()));
    }

    const membersAt = (...indices) => indices.map((i) => ({ master: masters[i], proxy: proxies[i] }));
    const releaseCounts = (members) =>
      Promise.all(members.map(({ master }) => master.calls("dlock.release")));

    for (const [name, indices, isAcquired] of [
      [
        "after a failed acquisition, a hold from an ACQUIRE that arrives late at a majority is released",
        [0, 1],
        false,
      ],
      ["a released hold is also released at a member where its ACQUIRE arrives late", [0], true],
    ]) {
      test(name, async () => {
        const quorum = await quorumOf(proxies);
        // The first acquisition from a quorum also asks the members for their run ids. Only ACQUIREs shall
        // stall, so the client asks for the run ids here.
        await (await new Lock(quorum, "other").acquire()).release();
        await until("no member has the other lock", async () =>
          (await Promise.all(masters.map((master) => master.exists("other")))).every((held) => !held),
        );
        // The time limit of an answer, ms.
        quorum.limit = 2000;
        const members = membersAt(...indices);
        const before = await releaseCounts(members);
        const lock = new Lock(quorum, "foo", { ttl: TEN_MINUTES, renew: false });
        const outcome = await acquireOverStalled(members, () => lock.tryAcquire());
        if (outcome instanceof Hold) await outcome.release();
        else assert(!isAcquired && outcome instanceof NoQuorumError, outcome);
        await Promise.all(members.map((member, i) => deliverLateAndAwaitRelease(member, before[i])));
      });
    }

    test("a hold from an ACQUIRE that arrives late at a single server is released", async () => {
      const [member] = membersAt(0);
      const [before] = await releaseCounts([member]);
      const lock = new Lock(await env.client(proxies[0].url), "foo", { ttl: TEN_MINUTES, renew: false });
      assert.equal(await lock.locked(), false, "the client is connected");
      // When the connection breaks, the command fails in node-redis, and ioredis sends it again.
      const outcome = await acquireOverStalled([member], () => lock.acquire());
      if (outcome instanceof Hold) await outcome.release();
      else assert(outcome instanceof NoAnswerError, outcome);
      await deliverLateAndAwaitRelease(member, before);
    });
  },
  { isParallel: true },
);

/** Sends the request of `owed` and answers each try until the request is confirmed, at most `maxTries` times.
 * Returns the number of tries. */
function answeredTries(owed, maxTries) {
  for (let tries = 0; tries < maxTries; tries++) {
    if (owed.finished()) return tries;
    const sending = owed.wake();
    sending.next();
    // The reply: one hold was released.
    sending.next(1);
  }
  return maxTries;
}

test("an answer to a repeated RELEASE does not count until each ACQUIRE of its token has been answered", () => {
  let acquiresAreAnswered = false;
  // Yields a command, and returns the reply.
  const release = function* () {
    return yield [];
  };
  const owed = new Owed(release, TEN_MINUTES, ANSWERS_TO_RELEASE, () => acquiresAreAnswered);
  assert.equal(answeredTries(owed, 20), 20);
  assert(owed.wakeAt() - now() > 2000, "the pauses grow");
  acquiresAreAnswered = true;
  assert.equal(answeredTries(owed, 20), ANSWERS_TO_RELEASE);
});
