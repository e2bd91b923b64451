// Locks over clients with unusual options, and values that are refused as clients.

import assert from "node:assert/strict";
import { once } from "node:events";
import net from "node:net";
import { test } from "node:test";
import { Leader, Lock, NoAnswerError, Operator, Quorum } from "dlock";
import Redlock from "dlock/redlock";
import { Cluster, Redis } from "ioredis";
import * as nodeRedis from "redis";
import { linkTo } from "../dist/links.js";
import { times } from "../dist/waits.js";
import { FOREIGN_TOKEN, onEachServer, untilRenewed } from "./support.mjs";

onEachServer((env) => {
  test("a lock works over an ioredis client with stringNumbers", {
    skip: env.clientLibrary !== "ioredis",
  }, async () => {
    const client = new Redis(env.server.port, { stringNumbers: true });
    try {
      for (const service of [client, new Quorum([client], { nodeTimeout: 10_000 })]) {
        const lock = new Lock(service, "foo", { ttl: 60_000 });
        assert(!(await lock.locked()));
        const hold = await lock.acquire();
        if (service === client) assert(Number.isSafeInteger(hold.fence));
        await untilRenewed(hold, 60_000);
        await hold.release();
      }
    } finally {
      client.disconnect();
    }
  });

  for (const enableAutoPipelining of [false, true]) {
    const title = `with a keyPrefix${enableAutoPipelining ? " and auto pipelining" : ""}, a lock throws if the prefixed key holds a list, and is taken if it holds a lock of redis-py`;
    test(title, { skip: env.clientLibrary !== "ioredis" }, async () => {
      const client = new Redis(env.server.port, { keyPrefix: "p:", enableAutoPipelining });
      try {
        for (const service of [client, new Quorum([client], { nodeTimeout: 10_000 })]) {
          const lock = new Lock(service, "foo");
          await env.server.ask("RPUSH", "p:foo", "x");
          await assert.rejects(lock.tryAcquire(), /WRONGTYPE foo: the key holds a list/);
          await assert.rejects(lock.acquire(), /WRONGTYPE foo: the key holds a list/);
          await assert.rejects(lock.locked(), /WRONGTYPE foo: the key holds a list/);
          await env.server.ask("SET", "p:foo", FOREIGN_TOKEN);
          assert.equal(await lock.tryAcquire(), null);
          assert(await lock.locked());
          await env.server.ask("DEL", "p:foo");
          await lock.using(async () => assert(await env.server.exists("p:foo")));
        }
      } finally {
        client.disconnect();
      }
    });
  }

  const isNodeRedis = env.clientLibrary === "node-redis";

  /** Returns a client that may never connect. */
  function unconnected(url) {
    const client = isNodeRedis ? nodeRedis.createClient({ url }) : new Redis(url);
    client.on("error", () => {});
    if (isNodeRedis) client.connect().catch(() => {});
    return { client, close: () => (client.destroy ?? client.disconnect).call(client) };
  }

  test("a wrong user or password is an error at once, with the words of the server", async () => {
    const { client, close } = unconnected(env.server.url.replace("//", "//stranger:wrong@"));
    try {
      const lock = new Lock(client, "foo");
      for (const ask of [
        () => lock.tryAcquire(),
        () => lock.acquire(),
        () => lock.using(() => {}),
        () => new Leader(client, "foo").campaign(),
        () => new Operator(client).inspect("foo"),
      ]) {
        await assert.rejects(ask(), /WRONGPASS invalid username-password pair/);
      }
      const quorum = new Quorum([client], { nodeTimeout: 10_000 });
      await assert.rejects(new Lock(quorum, "foo").tryAcquire(), /^NoQuorumError: .*WRONGPASS invalid/);
    } finally {
      close();
    }
  });

  test("without a server, the error has the last error of the connection", async () => {
    const listener = net.createServer().listen(0, "127.0.0.1");
    await once(listener, "listening");
    const { port } = listener.address();
    await new Promise((resolve) => listener.close(resolve));
    const { client, close } = unconnected(`redis://127.0.0.1:${port}`);
    const { answer } = times;
    times.answer = 500;
    try {
      await assert.rejects(new Lock(client, "foo").tryAcquire(), (why) => {
        assert(why instanceof NoAnswerError);
        assert.match(why.message, /no answer within 500 ms; the last error of .*: connect ECONNREFUSED/);
        assert.equal(why.cause.code, "ECONNREFUSED");
        return true;
      });
    } finally {
      times.answer = answer;
      close();
    }
  });

  test("a lock works over a node-redis client that maps numbers to strings", {
    skip: !isNodeRedis,
  }, async () => {
    // node-redis 4 ignores this option, and has no RESP_TYPES.
    const commandOptions = { typeMapping: { [nodeRedis.RESP_TYPES?.NUMBER]: String } };
    const client = nodeRedis.createClient({ url: env.server.url, commandOptions });
    await client.connect();
    try {
      const lock = new Lock(client, "foo");
      assert(!(await lock.locked()));
      const hold = await lock.acquire();
      assert(Number.isSafeInteger(hold.fence));
      await hold.release();
      assert(!(await lock.locked()));
    } finally {
      await client.quit();
    }
  });
});

const lazy = () => new Redis({ lazyConnect: true });
const notClients = {
  undefined: () => undefined,
  null: () => null,
  "a URL": () => "redis://127.0.0.1:6379",
  "a number": () => 6379,
  "an object of another class": () => ({}),
  "a URL object": () => new URL("redis://127.0.0.1:6379"),
  "a pipeline": () => lazy().pipeline(),
  "a transaction of ioredis": () => lazy().multi(),
  "a transaction of node-redis": () => nodeRedis.createClient().multi(),
  // Pools exist from node-redis 5 on.
  "a pool": () => nodeRedis.createClientPool?.() ?? {},
  "a cluster of an older node-redis": () => ({ isOpen: true, isReady: true, slots: [] }),
};
for (const [what, make] of Object.entries(notClients)) {
  test(`${what} is refused as a client, and the error says what to pass`, () => {
    const refusal = { name: "TypeError", message: /pass a client of ioredis 5 .*createClient/ };
    assert.throws(() => new Lock(make(), "foo"), refusal);
    assert.throws(() => new Quorum([make()]), refusal);
    // `new Redlock([undefined])` reports an empty list instead.
    if (make() !== undefined) assert.throws(() => new Redlock([make()]), refusal);
  });
}

test("a client in legacyMode is refused, and the error says what to pass", () => {
  const client = { isOpen: true, isReady: true, options: { legacyMode: true }, sendCommand() {} };
  assert.throws(() => new Lock(client, "foo"), { name: "TypeError", message: /legacyMode: false/ });
});

test("a list of clients is refused as a client, and one client as a list", () => {
  const client = lazy();
  assert.throws(() => new Lock([client], "foo"), { name: "TypeError", message: /new Quorum\(clients\)/ });
  for (const clients of [client, null, undefined, "redis://127.0.0.1:6379"]) {
    assert.throws(() => new Quorum(clients), { name: "TypeError", message: /list of clients/ });
    assert.throws(() => new Redlock(clients), { name: "TypeError", message: /list of clients/ });
  }
});

test("tryAcquire throws if the reply is neither an integer nor null", async () => {
  const withoutCall = { status: "ready", options: {}, on() {}, once() {}, duplicate() {} };
  for (const reply of ["OK", [], {}, true, 1.5, undefined]) {
    const client = { ...withoutCall, call: async () => reply };
    await assert.rejects(new Lock(client, "foo").tryAcquire(), {
      name: "LockError",
      message: /answers with an integer/,
    });
  }
});

test("a server without the module causes an error that says to load it", async () => {
  const call = async (name) => {
    if (name === "INFO") return "run_id:0123";
    throw new Error(`ERR unknown command '${name}', with args beginning with: 'foo'`);
  };
  const client = { status: "ready", options: {}, on() {}, once() {}, duplicate() {}, call };
  for (const service of [client, new Quorum([client])]) {
    const lock = new Lock(service, "foo");
    for (const ask of [() => lock.acquire(), () => lock.tryAcquire(), () => lock.locked()]) {
      await assert.rejects(ask, {
        name: "LockError",
        message: /^ERR unknown command.*load the dlock module/,
      });
    }
  }
});

test("holder, current and observe throw if the server does not answer", async () => {
  const client = {
    status: "ready",
    options: {},
    on() {},
    once() {},
    duplicate() {},
    call: async () => {
      throw new Error("Connection is closed.");
    },
  };
  const [lock, leader] = [new Lock(client, "foo"), new Leader(client, "foo")];
  for (const ask of [() => lock.holder(), () => leader.current(), () => leader.observe().next()]) {
    await assert.rejects(ask, NoAnswerError);
  }
});

test("holder and current return undefined if the server does not show a holder", async () => {
  for (const text of ["NOPERM no permissions to run the 'dlock.inspect' command", "WRONGTYPE a string"]) {
    const call = async (name) => {
      if (name === "INFO") return "run_id:0123";
      throw new Error(text);
    };
    const client = { status: "ready", options: {}, on() {}, once() {}, duplicate() {}, call };
    for (const service of [client, new Quorum([client])]) {
      assert.equal(await new Lock(service, "foo").holder(), undefined);
      assert.equal(await new Leader(service, "foo").current(), undefined);
    }
  }
});

test("messages name a server by its address, and a cluster or Sentinel by the addresses that were given", () => {
  const lazy = { lazyConnect: true };
  const addresses = [
    new Redis({ ...lazy, host: "10.0.0.1", port: 7000 }),
    new Redis({ ...lazy, path: "/run/redis" }),
    new Redis({ ...lazy, name: "main", sentinels: [{ host: "10.0.0.2" }, { host: "10.0.0.3", port: 5 }] }),
    new Cluster([{ host: "10.0.0.4", port: 7000 }, "redis://10.0.0.5:7001", 7002], lazy),
    nodeRedis.createClient({ socket: { host: "10.0.0.6", port: 7000 } }),
  ].map((client) => linkTo(client).address);
  assert.deepEqual(addresses, [
    "10.0.0.1:7000",
    "/run/redis",
    "main of the Sentinels 10.0.0.2:26379, 10.0.0.3:5",
    "the cluster of 10.0.0.4:7000, redis://10.0.0.5:7001, 7002",
    "10.0.0.6:7000",
  ]);
});
