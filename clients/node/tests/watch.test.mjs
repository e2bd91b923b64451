// A loss is noticed by a report of the server, and not only by the next renewal.

import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { Lock, NotHeldError, Quorum } from "dlock";
import { times } from "../dist/waits.js";
import { clusterClient, onEachServer, TestCluster, until } from "./support.mjs";

const HOUR = 3_600_000;
const defaultTimes = { ...times };
beforeEach(() => {
  times.watch = 0;
});
afterEach(() => Object.assign(times, defaultTimes));

onEachServer((env) => {
  const watchers = async () => (await env.server.ask("PUBSUB", "NUMSUB", "__redis__:invalidate"))[1];
  const untilWatched = (count = 1) =>
    until("the hold is watched", async () => (await env.server.calls("dlock.holds")) >= count);
  beforeEach(() => env.server.ask("CONFIG", "RESETSTAT"));
  /** Waits until the signal of the hold is aborted, although no renewal is due. */
  const lostByItself = async (hold) => {
    const { signal } = hold;
    await until("the loss is reported", () => signal.aborted);
    assert(signal.reason instanceof NotHeldError);
    return signal.reason.message;
  };

  for (const [end, why] of [
    [["DLOCK.BREAK", "foo"], /an operator broke the lock/],
    [["DEL", "foo"], /its key was deleted/],
    [["SET", "foo", "text"], /its key was deleted, evicted, flushed or overwritten/],
    [["FLUSHALL"], /taken away/],
  ]) {
    test(`a loss by ${end[0]} is reported`, async () => {
      const hold = await new Lock(await env.client(), "foo", { ttl: HOUR }).acquire();
      await untilWatched();
      await env.server.ask(...end);
      assert.match(await lostByItself(hold), why);
      await env.server.ask("DEL", "foo");
    });
  }

  test("a hold is watched again after its renewal, and over new connections", async () => {
    const proxy = await env.proxy();
    const hold = await new Lock(await env.client(proxy.url), "foo", { ttl: HOUR }).acquire();
    await untilWatched();
    await hold.extend();
    await untilWatched(2);
    proxy.drop();
    await untilWatched(3);
    await until("the client reconnects", () => hold.held().catch(() => false));
    assert(!hold.signal.aborted);
    await env.server.ask("DLOCK.BREAK", "foo");
    await lostByItself(hold);
  });

  test("the loss of one hold of a key is not that of another one", async () => {
    const client = await env.client();
    const lock = new Lock(client, "foo", { ttl: HOUR, shared: true });
    const [one, two] = [await lock.acquire(), await lock.acquire()];
    await untilWatched(2);
    await env.server.ask("DLOCK.RELEASE", "foo", one.token, "ALL");
    await lostByItself(one);
    assert(await two.held());
    assert(!two.signal.aborted);
    await two.release();
  });

  test("the connections are closed after the last hold, and with the client", async () => {
    times.idle = 20;
    const client = await env.client();
    const hold = await new Lock(client, "foo").acquire();
    await until("the hold is watched", watchers);
    await hold.release();
    await until("the connections are closed", async () => (await watchers()) === 0);
    await env.server.ask("CONFIG", "RESETSTAT");
    await new Lock(client, "foo").acquire();
    await until("the hold is watched", watchers);
    await client.quit();
    await until("the connections are closed", async () => (await watchers()) === 0);
  });

  test("without the rights, and in a quorum, a hold works as before", async () => {
    await env.server.ask("ACL", "SETUSER", "weak", "on", ">secret", "~*", "&*", "+@all", "-client|tracking");
    for (const service of [
      await env.client(env.server.url.replace("//", "//weak:secret@")),
      new Quorum([await env.client()], { nodeTimeout: 10_000 }),
    ]) {
      const hold = await new Lock(service, "foo", { ttl: HOUR }).acquire();
      await hold.extend();
      assert(await hold.held());
      await env.server.ask("DLOCK.BREAK", "foo");
      await assert.rejects(hold.extend(), NotHeldError);
    }
  });
});

onEachServer((env) => {
  let cluster;
  const closes = [];
  before(async () => {
    cluster = await TestCluster.start(env.program, 3);
  });
  after(async () => {
    await Promise.all(closes.map((close) => close()));
    await cluster?.stop();
  });

  test("in a cluster, a loss is reported, also after the slot has moved", async () => {
    const { nodes } = cluster;
    const { client, close } = await clusterClient(env.clientLibrary, [nodes[0].port]);
    closes.push(close);
    const watchedAt = (node) =>
      until("the hold is watched", async () => (await node.calls("dlock.holds")) > 0);
    // A key of each of two nodes.
    for (const [key, at, to] of [
      ["b", nodes[0], nodes[0]],
      ["c", nodes[1], nodes[2]],
    ]) {
      const hold = await new Lock(client, key, { ttl: HOUR }).acquire();
      await watchedAt(at);
      if (to !== at) {
        await to.ask("CONFIG", "RESETSTAT");
        await cluster.moveSlot(key, at, to);
        await watchedAt(to);
      }
      assert(!hold.signal.aborted);
      await to.ask("DLOCK.BREAK", key);
      await until("the loss is reported", () => hold.signal.aborted);
      assert.match(hold.signal.reason.message, /an operator broke the lock/);
    }
  });
});
