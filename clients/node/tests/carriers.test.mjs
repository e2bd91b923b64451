// All capabilities over each client library, and over those of its settings that change keys or replies.

import assert from "node:assert/strict";
import { after, test } from "node:test";
import { fenced, Leader, Lock, lockAll, lockPath, Operator, ResourceLockedError } from "dlock";
import { Redis } from "ioredis";
import { Redis as Valkey } from "iovalkey";
import { createClient } from "redis";
import { onEachServer, until } from "./support.mjs";

async function nodeRedis(url, options) {
  const client = createClient({ url, ...options });
  client.on("error", () => {});
  await client.connect();
  return { client, close: () => (client.destroy ? client.destroy() : client.disconnect()) };
}

function likeIoredis(client) {
  client.on("error", () => {});
  return { client, close: () => client.disconnect() };
}

const carriers = {
  ioredis: (url) => likeIoredis(new Redis(url)),
  "ioredis with keyPrefix": (url) => likeIoredis(new Redis(url, { keyPrefix: "app:" })),
  "ioredis with stringNumbers": (url) => likeIoredis(new Redis(url, { stringNumbers: true })),
  "ioredis with enableAutoPipelining": (url) => likeIoredis(new Redis(url, { enableAutoPipelining: true })),
  iovalkey: (url) => likeIoredis(new Valkey(url)),
  "iovalkey with keyPrefix": (url) => likeIoredis(new Valkey(url, { keyPrefix: "app:" })),
  "node-redis": (url) => nodeRedis(url),
  "node-redis with RESP3": (url) => nodeRedis(url, { RESP: 3 }),
};

onEachServer(
  (env) => {
    const closes = [];
    after(() => Promise.all(closes.map((close) => close())));

    for (const [name, make] of Object.entries(carriers)) {
      test(`every capability works over ${name}`, async () => {
        const { client, close } = await make(env.server.url);
        closes.push(close);
        const prefix = name.includes("keyPrefix") ? "app:" : "";
        const operator = new Operator(client);
        const options = { label: name, delay: 1, ephemeral: true, maxHold: 3_600_000, atLeast: 1 };
        const hold = await new Lock(client, "foo", options).acquire();
        assert(await env.server.exists(`${prefix}foo`));
        const [holder] = (await operator.inspect("foo")).holders;
        assert.deepEqual([holder.label, holder.ephemeral, holder.fence], [name, true, hold.fence]);
        await assert.rejects(new Lock(client, "foo").acquire({ timeout: 5 }), (why) => {
          assert(why instanceof ResourceLockedError, why);
          assert.equal(why.holder.label, name);
          return true;
        });
        const waiting = new Lock(client, "foo").acquire();
        const waiters = await until("a client waits", async () => {
          const all = await operator.waiters("foo");
          return all.length > 0 && all;
        });
        assert.equal(waiters[0].client, -1);
        const listed = [];
        for await (const lock of operator.list()) listed.push(lock.key);
        assert.deepEqual(listed, [`${prefix}foo`]);
        assert.equal(await hold.guard("SET", "{foo}:total", 1), "OK");
        await hold.release();
        const next = await waiting;
        assert(next.fence > hold.fence);
        assert.equal(await fenced(client, "{foo}:gate", next.fence, "SET", "{foo}:total", 2), "OK");
        await next.downgrade();
        await next.upgrade();
        const adopted = await new Lock(client, "foo").adopt(await next.forget());
        assert.equal(adopted.fence, next.fence);
        assert.equal(await operator.break("foo"), 1);
        await assert.rejects(adopted.extend(), /an operator broke the lock/);
        assert.equal((await operator.log({ key: "foo", count: 1 }))[0].what, "broken");
        assert(await new Lock(client, "foo").waitUntilFree());
        const holds = await lockAll(client, ["b", "a"]).acquire();
        assert.equal(holds.fences.length, 2);
        await holds.release();
        await lockPath(client, "x/y").using((path) => assert.equal(path.holds[0].key, "{x}"));
        const term = await new Leader(client, "job").campaign();
        assert.equal((await new Leader(client, "job").current()).fence, term.fence);
        await term.release();
      });
    }
  },
  { only: ["ioredis"] },
);
