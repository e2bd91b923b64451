// A hold of a quorum outlives masters that forget it one after the other, but nobody who ends it.

import assert from "node:assert/strict";
import { after, beforeEach, test } from "node:test";
import { Lock, Quorum } from "dlock";
import { onEach, Server, until } from "./support.mjs";

// It is renewed after each third of it.
const TTL = 2000;

onEach((bench) => {
  const masters = [];
  let proxies;
  let quorum;
  /** The token of the first holder there, or undefined. */
  const holder = async (master) => (await master.ask("DLOCK.INSPECT", "foo"))?.[7][0]?.[1];
  const nothingIsHeld = () =>
    until("nothing is held", async () => !(await Promise.all(masters.map(holder))).some(Boolean));

  beforeEach(async () => {
    while (masters.length < 3) masters.push(await Server.start(bench.program));
    for (const master of masters) await master.clear();
    proxies = await Promise.all(masters.map((master) => bench.proxy(master.port)));
    // A busy machine makes nobody silent.
    const clients = await Promise.all(proxies.map((proxy) => bench.client(proxy.url)));
    quorum = new Quorum(clients, { nodeTimeout: 1000 });
  });
  after(() => Promise.all(masters.map((master) => master.stop())));

  async function acquire(options) {
    const hold = await new Lock(quorum, "foo", { ttl: TTL, fenced: true, ...options }).acquire();
    await until("all hold it", async () => (await Promise.all(masters.map(holder))).every(Boolean));
    return { hold, token: await holder(masters[0]) };
  }

  async function untilHeldAgain(master, { hold, token }) {
    await until("it is held there again", async () => (await holder(master)) === token);
    assert(!hold.signal.aborted);
  }

  /** Waits until it was renewed for so many leases. */
  async function untilRenewed(hold, leases) {
    const end = performance.now() + hold.validFor + leases * TTL;
    await until("it is renewed", () => performance.now() + hold.validFor > end);
  }

  for (const shared of [false, true]) {
    test(`a rolling restart of all masters without persistence, shared: ${shared}`, async () => {
      const held = await acquire({ shared });
      const fences = [held.hold.fence];
      // It is granted what the hold had on the restarted master whose queue it is in, and gives it back.
      const waits = new Lock(quorum, "foo", { fenced: true }).using((hold) => fences.push(hold.fence));
      // One more than needed: the hold rests on nothing but what was granted anew.
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
      await nothingIsHeld();
    });
  }

  test("it waits behind those who came first", async () => {
    const held = await acquire();
    const [master] = masters;
    proxies[0].refuse = true;
    await master.kill();
    await master.start();
    assert(await master.ask("DLOCK.ACQUIRE", "foo", "one", 60_000));
    assert.equal(await master.ask("DLOCK.ACQUIRE", "foo", "two", 60_000, "QUEUE", 60_000), null);
    proxies[0].refuse = false;
    await until("it waits, too", async () => (await master.waiters()) === 2);
    for (const token of ["one", "two"]) assert.equal(await master.ask("DLOCK.RELEASE", "foo", token), 1);
    await untilHeldAgain(master, held);
    const released = async () =>
      Number(/dlock\.release:calls=(\d+)/i.exec(await master.ask("INFO", "commandstats"))[1]);
    const before = await released();
    await held.hold.release();
    await until("it is released twice", async () => (await released()) === before + 2);
    await nothingIsHeld();
  });

  test("masters that were away for a lease", async () => {
    const held = await acquire();
    for (const [member, proxy] of proxies.entries()) {
      proxy.refuse = true;
      proxy.drop();
      await until("its lease is over there", async () => !(await holder(masters[member])));
      proxy.refuse = false;
      await untilHeldAgain(masters[member], held);
    }
    await held.hold.release();
    await nothingIsHeld();
  });

  test("what is broken on a master that was restarted before the hold began stays broken", async () => {
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

  test("what is broken on one master after the other stays broken", async () => {
    const { hold } = await acquire();
    await masters[0].ask("DLOCK.BREAK", "foo");
    // Longer than its lease would have lasted there.
    await untilRenewed(hold, 2);
    assert.equal(await holder(masters[0]), undefined);
    assert(!hold.signal.aborted);
    await masters[1].ask("DLOCK.BREAK", "foo");
    await until("it is lost", () => hold.signal.aborted);
  });
});
