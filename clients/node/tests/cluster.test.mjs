// Cluster clients of both libraries over three nodes.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Lock, Operator } from "dlock";
import { clusterClient, FOREIGN_TOKEN, onEachServer, suspend, TestCluster, until } from "./support.mjs";

// One key of each node, in the order of the nodes.
const keys = ["b", "c", "a"];

onEachServer((env) => {
  const onlyIoredis = { skip: env.clientLibrary !== "ioredis" };
  let servers;
  let nodes;
  const closes = [];

  async function connect(options = {}) {
    const { client, close } = await clusterClient(env.clientLibrary, [nodes[0].port], options);
    closes.push(close);
    return client;
  }

  before(async () => {
    // With these options, the other nodes serve their slots while one node hangs.
    const options = ["--cluster-require-full-coverage", "no", "--cluster-node-timeout", "60000"];
    servers = await TestCluster.start(env.program, keys.length, options);
    nodes = servers.nodes;
  });
  after(async () => {
    await Promise.all(closes.map((close) => close()));
    await servers?.stop();
  });

  test("each lock is requested at the node of its key, without a redirection", async () => {
    const redirections = async () => {
      const stats = await Promise.all(nodes.map((node) => node.ask("INFO", "errorstats")));
      return stats.map((stat) => /errorstat_MOVED:count=(\d+)/.exec(stat)?.[1]);
    };
    const before = await redirections();
    const prefixed = env.clientLibrary === "ioredis" ? { keyPrefix: "{x}" } : {};
    for (const client of [await connect(prefixed), await connect()]) {
      for (const key of keys) {
        const [one, other] = [new Lock(client, key), new Lock(client, key)];
        const hold = await one.acquire();
        assert(await other.locked());
        assert.equal(await other.tryAcquire(), null);
        const waiting = other.acquire();
        await hold.extend(20_000);
        await hold.release();
        await (await waiting).release();
      }
    }
    assert.deepEqual(await redirections(), before);
  });

  test("a client lists the locks of all masters, also before it has found them", async () => {
    const holds = await Promise.all(
      keys.map(async (key) => new Lock(await connect(), `list:{${key}}`).acquire()),
    );
    const listed = [];
    for await (const { key } of new Operator(await connect()).list({ match: "list:*" }))
      listed.push(String(key));
    assert.deepEqual(listed.sort(), keys.map((key) => `list:{${key}}`).sort());
    await Promise.all(holds.map((hold) => hold.release()));
  });

  test(
    "with a key prefix, data at the key causes an error that names its type, and a lock of redis-py is recognised",
    onlyIoredis,
    async () => {
      const withoutPrefix = await connect();
      const lock = new Lock(await connect({ keyPrefix: "{x}" }), "data");
      await withoutPrefix.rpush("{x}data", "x");
      for (const ask of [() => lock.acquire(), () => lock.locked()]) {
        await assert.rejects(ask, /WRONGTYPE data: the key holds a list/);
      }
      await withoutPrefix.set("{x}data", FOREIGN_TOKEN);
      assert(await lock.locked());
      await withoutPrefix.del("{x}data");
    },
  );

  test(
    "a client with auto pipelining acquires and releases locks of several nodes at once",
    onlyIoredis,
    async () => {
      const client = await connect({ enableAutoPipelining: true });
      for (let round = 0; round < 5; round++) {
        const locks = Array.from({ length: 30 }, (_, at) => new Lock(client, `${round} ${at}`));
        const holds = await Promise.all(locks.map((lock) => lock.acquire()));
        await Promise.all(holds.map((hold) => hold.release()));
      }
    },
  );

  test("holds at other nodes are renewed while one node hangs", async () => {
    const client = await connect();
    const holds = await Promise.all(keys.map((key) => new Lock(client, key, { ttl: 60_000 }).acquire()));
    nodes[2].freeze();
    try {
      for (let round = 0; round < 2; round++) {
        // At half of the leases of 60 s, the renewals are due.
        suspend(30_000);
        for (const hold of holds.slice(0, 2))
          await until("the hold is renewed", () => hold.validFor > 30_000);
      }
      await until("the hold at the node that hangs is lost", () => holds[2].signal.aborted);
      const lock = new Lock(client, keys[0]);
      assert.equal(await lock.tryAcquire(), null);
      for (const hold of holds.slice(0, 2)) await hold.release();
    } finally {
      nodes[2].thaw();
    }
  });

  test("release does not report a loss when RELEASE is sent again", async () => {
    // `natMap` makes the client connect to the second node through the proxy. ioredis counts each try of a
    // command as a redirection, and connecting again may take many tries.
    const proxy = await env.proxy(nodes[1].port);
    const { port } = new URL(proxy.url);
    const natMap = { [`127.0.0.1:${nodes[1].port}`]: { host: "127.0.0.1", port: Number(port) } };
    const isIoredis = env.clientLibrary === "ioredis";
    const client = await connect(isIoredis ? { natMap, maxRedirections: 1000 } : { nodeAddressMap: natMap });
    const hold = await new Lock(client, keys[1], { ttl: 60_000 }).acquire();
    Object.assign(proxy, { match: "RELEASE", cutReplies: 1 });
    await hold.release();
    assert.equal(proxy.lost, 1);
    assert.equal(await nodes[1].exists(keys[1]), false);
  });
});
