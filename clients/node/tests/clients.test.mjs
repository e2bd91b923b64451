// What is passed as a client: what its options change, and what is refused.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Lock, Quorum } from "dlock";
import { Redis } from "ioredis";
import * as nodeRedis from "redis";
import { onEach, until } from "./support.mjs";

onEach((bench) => {
  test("numbers may come as strings", { skip: bench.kind !== "ioredis" }, async () => {
    const client = new Redis(bench.server.port, { stringNumbers: true });
    try {
      for (const where of [client, new Quorum([client])]) {
        const one = new Lock(where, "foo", { ttl: 1500 });
        assert(!(await one.locked()));
        const hold = await one.acquire();
        if (where === client) assert(Number.isSafeInteger(hold.fence));
        await until("the lease goes down", () => hold.validFor < 1000);
        await until("it is renewed", () => hold.validFor > 1000);
        await hold.release();
      }
    } finally {
      client.disconnect();
    }
  });

  test("numbers may be mapped to strings", { skip: bench.kind !== "node-redis" }, async () => {
    // node-redis 4 has no types to map.
    const commandOptions = { typeMapping: { [nodeRedis.RESP_TYPES?.NUMBER]: String } };
    const client = nodeRedis.createClient({ url: bench.server.url, commandOptions });
    await client.connect();
    try {
      const one = new Lock(client, "foo");
      assert(!(await one.locked()));
      const hold = await one.acquire();
      assert(Number.isSafeInteger(hold.fence));
      await hold.release();
      assert(!(await one.locked()));
    } finally {
      await client.quit();
    }
  });
});

const rootNodes = [{ host: "127.0.0.1", port: 1 }];
const refused = {
  "what is none": () => ({}),
  // From node-redis 5 on.
  "a pool": () => nodeRedis.createClientPool?.() ?? {},
  Sentinel: () => nodeRedis.createSentinel?.({ name: "mymaster", sentinelRootNodes: rootNodes }) ?? {},
  "a cluster of node-redis": () => nodeRedis.createCluster({ rootNodes }),
  // Newer clusters say, as a client does, whether they are ready.
  "a cluster that is ready": () => ({ isOpen: true, isReady: true, slots: [] }),
  "a client that calls back": () => ({ isOpen: true, isReady: true, options: { legacyMode: true } }),
};
for (const [what, make] of Object.entries(refused)) {
  test(`${what} is refused, and what to pass is said`, () => {
    assert.throws(() => new Lock(make(), "foo"), {
      name: "TypeError",
      message: /createClient: no command blocks it|legacyMode: false/,
    });
  });
}
