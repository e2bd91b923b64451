// A hold of a quorum outlives members that forget it, one after the other. A member where it was broken does
// not get it again.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { Lock } from "dlock";
import { mastersFor, onEach, until } from "./support.mjs";

// The hold is renewed after each third of it.
const TTL = 5000;

onEach(
  (bench) => {
    const { masters, proxies, quorumOf, isHeldAt } = mastersFor(bench);
    let quorum;
    /** The token of the first holder there, or undefined. */
    const holder = async (master) => (await master.ask("DLOCK.INSPECT", "foo"))?.[7][0]?.[1];

    beforeEach(async () => {
      quorum = await quorumOf(proxies, 2000);
    });

    async function acquire(options) {
      const hold = await new Lock(quorum, "foo", { ttl: TTL, fenced: true, ...options }).acquire();
      await isHeldAt(0, 1, 2);
      return { hold, token: await holder(masters[0]) };
    }

    async function untilHeldAgain(master, { hold, token }) {
      await until("it is held there again", async () => (await holder(master)) === token);
      assert(!hold.signal.aborted);
    }

    /** Waits until the hold was renewed for this many leases. */
    async function untilRenewed(hold, leases) {
      const end = performance.now() + hold.validFor + leases * TTL;
      await until("it is renewed", () => performance.now() + hold.validFor > end);
    }

    for (const shared of [false, true]) {
      test(`a hold outlives a rolling restart of all members without persistence: ${shared ? "shared" : "exclusive"}`, async () => {
        const held = await acquire({ shared });
        const fences = [held.hold.fence];
        // The waiter is granted the lock at the restarted member of its queue, and releases it.
        const waits = new Lock(quorum, "foo", { fenced: true }).using((hold) => fences.push(hold.fence));
        // One more than needed: in the end, only members that restarted have the hold.
        for (const struck of [0, 1, 2, 0]) {
          await masters[struck].kill();
          await masters[struck].start();
          await untilHeldAgain(masters[struck], held);
        }
        await untilRenewed(held.hold, 0.5);
        assert.equal(fences.length, 1);
        await held.hold.release();
        await waits;
        assert(fences[1] > fences[0], `${fences}`);
        await isHeldAt();
      });
    }

    test("a restored hold waits behind earlier clients at the member", async () => {
      const held = await acquire();
      const [master] = masters;
      proxies[0].refuse = true;
      await master.kill();
      await master.start();
      assert(await master.ask("DLOCK.ACQUIRE", "foo", "one", 60_000));
      assert.equal(await master.ask("DLOCK.ACQUIRE", "foo", "two", 60_000, "QUEUE", 60_000), null);
      proxies[0].refuse = false;
      await until("the restored hold waits", async () => (await master.waiters()) === 2);
      for (const token of ["one", "two"]) assert.equal(await master.ask("DLOCK.RELEASE", "foo", token), 1);
      await untilHeldAgain(master, held);
      const before = await master.calls("dlock.release");
      await held.hold.release();
      await until("it is released twice", async () => (await master.calls("dlock.release")) === before + 2);
      await isHeldAt();
    });

    test("a hold is restored on members that were unreachable for a lease", async () => {
      const held = await acquire();
      for (const [member, proxy] of proxies.entries()) {
        proxy.refuse = true;
        proxy.drop();
        await until("its lease is over there", async () => !(await holder(masters[member])));
        proxy.refuse = false;
        await untilHeldAgain(masters[member], held);
      }
      await held.hold.release();
      await isHeldAt();
    });

    test("a broken hold is not restored on a member that restarted before the hold began", async () => {
      await (await acquire()).hold.release();
      const [master] = masters;
      await master.kill();
      await master.start();
      let hold;
      await until("it votes again", async () => {
        hold = await new Lock(quorum, "foo", { ttl: TTL }).acquire();
        if (await holder(master)) return true;
        await hold.release();
      });
      assert.equal(await master.ask("DLOCK.BREAK", "foo"), 1);
      await untilRenewed(hold, 1);
      assert.equal(await holder(master), undefined);
      await hold.release();
    });

    test("a hold that is broken on one member after the other is not restored, and is lost", async () => {
      const { hold } = await acquire();
      await masters[0].ask("DLOCK.BREAK", "foo");
      // Longer than the lease at the member.
      await untilRenewed(hold, 2);
      assert.equal(await holder(masters[0]), undefined);
      assert(!hold.signal.aborted);
      await masters[1].ask("DLOCK.BREAK", "foo");
      await until("the hold is lost", () => hold.signal.aborted);
    });
  },
  { isParallel: true },
);
