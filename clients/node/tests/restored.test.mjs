// A member of a quorum can lose a hold: it restarts, or the client cannot reach it for a whole lease. The
// next extension restores the hold at that member. So a hold survives if all members lose it, one after the
// other. A hold that DLOCK.BREAK ended is not restored.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { Lock, NoQuorumError, NotHeldError } from "dlock";
import { allowSlowAnswers, mastersFor, onEachServer, suspend, until } from "./support.mjs";

allowSlowAnswers();

// Long, as the tests extend the holds themselves, and do not renew them.
const TTL = 60_000;

onEachServer((env) => {
  const { masters, proxies, quorumOf, untilHeldAt, untilFree } = mastersFor(env);
  let quorum;
  /** Returns the token of the first holder at a master; undefined for none. INSPECT's fourth field is `holders`,
   * and the first field of a holder is its token. */
  const holder = async (master) => (await master.ask("DLOCK.INSPECT", "foo"))?.[7][0]?.[1];

  beforeEach(async () => {
    quorum = await quorumOf(proxies, 2000);
  });

  async function acquire(options) {
    const lock = new Lock(quorum, "foo", { ttl: TTL, fenced: true, renew: false, ...options });
    const hold = await lock.acquire();
    await untilHeldAt(0, 1, 2);
    return { hold, token: await holder(masters[0]) };
  }

  /** Extends the hold, and waits for the requests that restore it. Returns whether a majority has answered. */
  async function tryExtend(hold) {
    try {
      await hold.extend(TTL);
    } catch (why) {
      assert(why instanceof NoQuorumError, why);
      return false;
    }
    // A connection answers in order. After the answer to the EXTEND, the client sends the ACQUIRE that restores the
    // hold. So the second PING is answered after the ACQUIRE.
    const connected = quorum.channels.filter((channel) => channel.isReady);
    const ping = (channel) => channel.send(["PING"], 10_000).catch(() => {});
    for (let round = 0; round < 2; round++) await Promise.all(connected.map(ping));
    return true;
  }

  /** Extends the hold until the master has it again. */
  const untilRestored = (master, { hold, token }) =>
    until("the hold is restored", async () => (await tryExtend(hold)) && (await holder(master)) === token);

  /** Extends the hold again and again while the clock of the client advances by more than a lease. Then the
   * client restores the hold on a member that it could not reach during that time. */
  async function extendForALease(hold) {
    for (let part = 0; part < 3; part++) {
      await until("the hold is extended", () => tryExtend(hold));
      suspend(TTL * 0.4);
    }
    await until("the hold is extended", () => tryExtend(hold));
  }

  for (const shared of [false, true]) {
    test(`a hold survives a rolling restart of all members without persistence: ${shared ? "shared" : "exclusive"}`, async () => {
      const held = await acquire({ shared });
      const fences = [held.hold.fence];
      // When the member at which this client waits has restarted, it grants the client the lock. The other
      // members refuse, so the client gives that grant back.
      const waiting = new Lock(quorum, "foo", { fenced: true }).using((hold) => fences.push(hold.fence));
      // The first member restarts twice, so a restored hold is restored again.
      for (const member of [0, 1, 2, 0]) {
        await masters[member].kill();
        await masters[member].start();
        await untilRestored(masters[member], held);
      }
      await until("the restored holds are extended", () => tryExtend(held.hold));
      assert.equal(fences.length, 1);
      await held.hold.release();
      await waiting;
      assert(fences[1] > fences[0], `${fences}`);
      await untilFree();
    });
  }

  test("the ACQUIRE that restores a hold waits behind earlier clients at the member", async () => {
    const held = await acquire();
    const [master] = masters;
    // The client cannot reach the restarted member before the other clients.
    proxies[0].refuse = true;
    await master.kill();
    await master.start();
    assert(await master.ask("DLOCK.ACQUIRE", "foo", "one", 60_000));
    assert.equal(await master.ask("DLOCK.ACQUIRE", "foo", "two", 60_000, "QUEUE", 60_000), null);
    proxies[0].refuse = false;
    await until(
      "the ACQUIRE that restores the hold waits",
      async () => (await tryExtend(held.hold)) && (await master.waiters()) === 2,
    );
    for (const token of ["one", "two"]) assert.equal(await master.ask("DLOCK.RELEASE", "foo", token), 1);
    await untilRestored(master, held);
    const before = await master.calls("dlock.release");
    await held.hold.release();
    // A member could read the first RELEASE before an ACQUIRE that restores the hold, so a second RELEASE follows.
    await until("two releases", async () => (await master.calls("dlock.release")) >= before + 2);
    await untilFree();
  });

  test("a hold is restored on members that were unreachable for a lease", async () => {
    const held = await acquire();
    for (const [member, proxy] of proxies.entries()) {
      proxy.refuse = true;
      proxy.drop();
      // Ends the lease at this member at once.
      await masters[member].ask("DLOCK.EXTEND", "foo", held.token, 1);
      await until("the lease has ended at the member", async () => !(await holder(masters[member])));
      await extendForALease(held.hold);
      proxy.refuse = false;
      await untilRestored(masters[member], held);
    }
    await held.hold.release();
    await untilFree();
  });

  test("a broken hold is not restored on a member that restarted before the hold began", async () => {
    await (await acquire()).hold.release();
    const [master] = masters;
    await master.kill();
    await master.start();
    let hold;
    await until("the restarted member grants the lock again", async () => {
      hold = await new Lock(quorum, "foo", { ttl: TTL, renew: false }).acquire();
      if (await holder(master)) return true;
      await hold.release();
      // While the restarted member still has this hold, it refuses the next one.
      await untilFree();
    });
    assert.equal(await master.ask("DLOCK.BREAK", "foo"), 1);
    await extendForALease(hold);
    assert.equal(await holder(master), undefined);
    await hold.release();
  });

  test("a hold that is broken on one member after the other is not restored, and is lost", async () => {
    const { hold } = await acquire();
    await masters[0].ask("DLOCK.BREAK", "foo");
    await extendForALease(hold);
    assert.equal(await holder(masters[0]), undefined);
    await masters[1].ask("DLOCK.BREAK", "foo");
    const lost = until("the hold is lost", () => tryExtend(hold).then(() => hold.signal.aborted));
    await assert.rejects(lost, NotHeldError);
  });
});
