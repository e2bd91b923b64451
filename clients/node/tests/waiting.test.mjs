// Waits in the queue of a server: their order, timeouts, aborts and faults, and the subscriber (the connection
// on which a client receives the messages that end its waits).

import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { afterEach, test } from "node:test";
import { Lock, NoAnswerError, Quorum, ResourceLockedError } from "dlock";
import Redlock from "dlock/redlock";
import { Channel } from "../dist/channel.js";
import { times } from "../dist/waits.js";
import { FOREIGN_TOKEN, onEachServer, Port, pause, until, untilRenewed } from "./support.mjs";

// `times` are the pauses and time limits of the client. A queue position expires `times.keep` ms after the last
// request for it.
const defaultTimes = { ...times };
afterEach(() => Object.assign(times, defaultTimes));

onEachServer((env) => {
  const holdByOther = () => env.server.ask("DLOCK.ACQUIRE", "foo", "holder", 60_000);
  const releaseByOther = () => env.server.ask("DLOCK.RELEASE", "foo", "holder");
  const makeLock = async (options) => new Lock(await env.client(), "foo", options);
  const untilWaiters = (count) =>
    until(`${count} clients wait`, async () => (await env.server.waiters()) === count);

  /** Returns the number of connections with this client name, and of those that are subscribed. */
  async function connections(name) {
    const lines = (await env.server.ask("CLIENT", "LIST")).split("\n");
    const own = lines.filter((line) => line.includes(` name=${name} `));
    return [own.length, own.filter((line) => !line.includes(" sub=0 ")).length];
  }

  /** Waits until `connections` returns these numbers. A client may subscribe after its wait has begun. */
  const untilConnections = (name, ...counts) =>
    until(`${name} has ${counts} connections`, async () => `${await connections(name)}` === `${counts}`);

  test("waiters are served first come, first served", async () => {
    await holdByOther();
    const lock = await makeLock();
    const order = [];
    const done = [];
    for (let number = 0; number < 8; number++) {
      done.push(lock.using(() => order.push(number)));
      await untilWaiters(number + 1);
    }
    await releaseByOther();
    await Promise.all(done);
    assert.deepEqual(order, [...done.keys()]);
    assert(!(await env.server.exists()));
  });

  test("50 waits of a client use two connections", async () => {
    await holdByOther();
    const client = await env.client(undefined, "counted");
    const done = Array.from({ length: 50 }, () => new Lock(client, "foo").using(() => {}));
    await untilWaiters(50);
    await untilConnections("counted", 2, 1);
    await releaseByOther();
    await Promise.all(done);
  });

  test("the subscriber is closed after the last wait, and when its client is closed", async () => {
    times.idle = 50;
    await holdByOther();
    const client = await env.client(undefined, "ends");
    const waiting = new Lock(client, "foo").acquire();
    await untilWaiters(1);
    await untilConnections("ends", 2, 1);
    await releaseByOther();
    await (await waiting).release();
    await untilConnections("ends", 1, 0);
    times.idle = defaultTimes.idle;
    await holdByOther();
    const again = new Lock(client, "foo").acquire();
    await untilWaiters(1);
    await releaseByOther();
    await (await again).release();
    await client.quit();
    await untilConnections("ends", 0, 0);
  });

  test("a wait that times out leaves the queue", async () => {
    await holdByOther();
    const lock = await makeLock();
    await assert.rejects(lock.acquire({ timeout: 100 }), ResourceLockedError);
    assert.equal(await env.server.waiters(), 0);
    await assert.rejects(lock.acquire({ timeout: 0 }), ResourceLockedError);
  });

  test("an aborted wait leaves the queue", async () => {
    await holdByOther();
    const lock = await makeLock();
    const controller = new AbortController();
    const reason = new Error("enough");
    const waiting = assert.rejects(lock.acquire({ signal: controller.signal }), reason);
    await untilWaiters(1);
    controller.abort(reason);
    await waiting;
    await untilWaiters(0);
    await assert.rejects(lock.tryAcquire({ signal: controller.signal }), reason);
    await assert.rejects(lock.acquire({ signal: AbortSignal.timeout(50) }), { name: "TimeoutError" });
    await untilWaiters(0);
  });

  test("20 waits share one signal without a warning of Node", async () => {
    await holdByOther();
    const lock = await makeLock();
    const controller = new AbortController();
    const warned = [];
    const note = (warning) => warned.push(warning);
    process.on("warning", note);
    const { signal } = controller;
    const waiting = Array.from({ length: 20 }, () => assert.rejects(lock.acquire({ signal }), /enough/));
    await untilWaiters(20);
    assert.equal(getEventListeners(signal, "abort").length, 1);
    controller.abort(new Error("enough"));
    await Promise.all(waiting);
    await untilWaiters(0);
    process.off("warning", note);
    assert.deepEqual(warned, []);
    assert.equal(getEventListeners(signal, "abort").length, 0);
  });

  test("with a retryDelay of 0, a wait lasts until a lock of redis-py is released", async () => {
    await env.server.ask("SET", "foo", FOREIGN_TOKEN);
    let hold;
    const waiting = (await makeLock({ retryDelay: 0 })).acquire().then((acquired) => (hold = acquired));
    await until("the client has asked again", async () => (await env.server.calls("dlock.acquire")) > 3);
    assert.equal(hold, undefined);
    await env.server.ask("DEL", "foo");
    await (await waiting).release();
  });

  test("a wait that an operator ends throws ResourceLockedError", async () => {
    await holdByOther();
    const waiting = assert.rejects((await makeLock()).acquire(), ResourceLockedError);
    await untilWaiters(1);
    const [waiter] = await env.server.ask("DLOCK.WAITERS", "foo");
    await env.server.ask("DLOCK.CANCEL", "foo", waiter[waiter.indexOf("token") + 1]);
    await waiting;
    assert.equal(await env.server.waiters(), 0);
  });

  test("a message wakes the waiter", async () => {
    // Only a message can make the waiter ask again: both pauses between its requests outlast the test.
    times.ask = 1_000_000;
    await holdByOther();
    const waiting = (await makeLock({ retryDelay: 1_000_000 })).acquire();
    await untilWaiters(1);
    await releaseByOther();
    await (await waiting).release();
  });

  test("a wait gets the lock although its message is lost", async () => {
    times.ask = 100;
    await holdByOther();
    const client = await env.client(undefined, "deaf");
    const waiting = new Lock(client, "foo").acquire();
    await untilWaiters(1);
    const lines = (await env.server.ask("CLIENT", "LIST")).split("\n");
    const subscriber = lines.find((line) => line.includes(" name=deaf ") && !line.includes(" sub=0 "));
    await env.server.ask("CLIENT", "KILL", "ID", /id=(\d+)/.exec(subscriber)[1]);
    await releaseByOther();
    await (await waiting).release();
  });

  test("a subscriber that receives nothing reconnects", async () => {
    // The queue position outlasts the test, and the subscriber sends a PING after 100 ms without a message.
    Object.assign(times, { silence: 100, keep: 600_000 });
    await holdByOther();
    const proxy = await env.proxy();
    const waiting = new Lock(await env.client(proxy.url), "foo").acquire();
    await untilWaiters(1);
    const { accepted } = proxy;
    proxy.silent = true;
    await until("the subscriber reconnects", () => proxy.accepted > accepted);
    proxy.silent = false;
    await releaseByOther();
    await (await waiting).release();
  });

  test("a client that is closed while its subscriber subscribes again leaves no unhandled error", async () => {
    await holdByOther();
    const proxy = await env.proxy();
    const subscriptions = () => proxy.requests.match(/\r\nsubscribe\r\n/gi).length;
    const client = await env.client(proxy.url);
    const outcome = new Lock(client, "foo").acquire().catch((why) => why);
    await untilWaiters(1);
    const before = subscriptions();
    // The client is closed before the reply to SUBSCRIBE arrives.
    proxy.delay = 1000;
    proxy.drop();
    await until("the subscriber subscribes again", () => subscriptions() > before);
    client.disconnect();
    assert((await outcome) instanceof NoAnswerError);
  });

  test("waits keep their order over broken connections", async () => {
    times.keep = 600_000;
    await holdByOther();
    const proxy = await env.proxy();
    const lock = new Lock(await env.client(proxy.url), "foo");
    const order = [];
    const first = lock.using(() => order.push("first"));
    await untilWaiters(1);
    const second = lock.using(() => order.push("second"));
    await untilWaiters(2);
    for (let round = 0; round < 3; round++) {
      const { accepted } = proxy;
      proxy.drop();
      await until("the client reconnects", () => proxy.accepted > accepted);
      assert.equal(await env.server.waiters(), 2);
    }
    proxy.refuse = true;
    proxy.drop();
    await pause(300);
    proxy.refuse = false;
    await releaseByOther();
    await Promise.all([first, second]);
    assert.deepEqual(order, ["first", "second"]);
  });

  test("a wait outlasts a restart of the server", async () => {
    times.keep = 60_000;
    const server = await env.ownServer();
    await server.ask("DLOCK.ACQUIRE", "foo", "holder", 60_000);
    const waiting = new Lock(await env.client(server.url), "foo").acquire();
    await until("a client waits", () => server.waiters());
    await server.kill();
    await server.start();
    await (await waiting).release();
  });

  test("a wait outlasts the loading of the server's data", async () => {
    times.keep = 60_000;
    // The server answers LOADING for about a second.
    const slowLoading = ["--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024"];
    const server = await env.ownServer();
    await server.ask("DLOCK.ACQUIRE", "foo", "holder", 60_000);
    for (let key = 0; key < 500; key++) server.ask("SET", `key${key}`, "x".repeat(100));
    const client = await env.client(server.url);
    let failure;
    const waiting = new Lock(client, "foo").acquire().catch((why) => (failure = why));
    await until("a client waits", () => server.waiters());
    await server.ask("SAVE");
    await server.kill();
    await server.start(slowLoading);
    assert.equal(failure, undefined);
    await until("a client waits", () => server.waiters());
    await server.ask("DLOCK.RELEASE", "foo", "holder");
    await (await waiting).release();
  });

  /** By error word: makes the server refuse each ACQUIRE with it. Returns the function that ends this. */
  const refusals = {
    NOREPLICAS: (server) => configure(server, "min-replicas-to-write", "1", "0"),
    OOM: (server) => configure(server, "maxmemory", "1", "0"),
    READONLY: async (server) => {
      const port = await Port.claim();
      await server.ask("REPLICAOF", "127.0.0.1", port.number);
      return async () => {
        await server.ask("REPLICAOF", "NO", "ONE");
        port.close();
      };
    },
    BUSY: async (server) => {
      await server.ask("CONFIG", "SET", "busy-reply-threshold", "1");
      const running = server.ask("EVAL", "while true do end", "0").catch(() => {});
      const isBusy = () =>
        server.other.call("PING").then(
          () => false,
          (why) => why.message.startsWith("BUSY"),
        );
      await until("the server is busy", isBusy);
      return async () => {
        await server.other.call("SCRIPT", "KILL");
        await running;
      };
    },
  };

  async function configure(server, option, value, before) {
    await server.ask("CONFIG", "SET", option, value);
    return () => server.ask("CONFIG", "SET", option, before);
  }

  for (const [word, refuse] of Object.entries(refusals)) {
    test(`a wait outlasts ${word}, and throws it at the end of its timeout`, async () => {
      const server = await env.ownServer();
      const proxy = await env.proxy(server.port);
      const lock = new Lock(await env.client(proxy.url), "foo", { retryDelay: 5 });
      const redlock = new Redlock([await env.client(proxy.url)], { retryCount: -1, retryDelay: 5 });
      // Connects both clients.
      await (await lock.acquire()).release();
      await (await redlock.acquire(["foo"], 60_000)).release();
      server.other = server.redis.duplicate();
      await server.other.ping();
      const end = await refuse(server);
      await assert.rejects(lock.acquire({ timeout: 50 }), new RegExp(`^\\w+: ${word} `));
      const before = proxy.requestCount("DLOCK.ACQUIRE");
      const waits = [lock.acquire(), redlock.acquire(["foo"], 60_000)];
      let isOver = false;
      Promise.race(waits).finally(() => (isOver = true));
      await until("they have asked", () => isOver || proxy.requestCount("DLOCK.ACQUIRE") > before + 6);
      assert(!isOver);
      await end();
      await Promise.all(waits.map(async (wait) => (await wait).release()));
      server.other.disconnect();
    });
  }

  test("the error of an acquisition says why the server refuses the connection", async () => {
    times.answer = 1000;
    const server = await env.ownServer();
    const { redis } = server;
    await redis.config("SET", "maxclients", "2");
    const full = redis.duplicate();
    await full.ping();
    const client = await env.client(server.url);
    const refused = /no answer within 1000 ms; the server refuses the connection: ERR max number of clients/;
    await assert.rejects(new Lock(client, "foo").acquire(), refused);
    full.disconnect();
    times.answer = 60_000;
    await (await new Lock(client, "foo").acquire()).release();
  });

  /** Returns a master with a replica, and a proxy to the master. `failOver` waits until the replica has the lock "foo",
   * and promotes it. New connections of the proxy then lead to it; those to the old master stay open. */
  async function masterWithReplica() {
    const [master, replica] = [await env.ownServer(), await env.ownServer()];
    const proxy = await env.proxy(master.port);
    for (const server of [master, replica])
      await server.ask("CONFIG", "SET", "repl-diskless-sync-delay", "0");
    await replica.ask("REPLICAOF", "127.0.0.1", master.port);
    const failOver = async () => {
      await until("the replica has the hold", () => replica.exists());
      proxy.target = replica.port;
      await replica.ask("REPLICAOF", "NO", "ONE");
      await master.ask("REPLICAOF", "127.0.0.1", replica.port);
    };
    return { master, replica, proxy, failOver };
  }

  test("a hold and a wait follow their master when the address leads to another server", async () => {
    // Only the message `refused` can make the waiter ask again.
    times.ask = 1_000_000;
    const { master, replica, proxy, failOver } = await masterWithReplica();
    const ttl = 60_000;
    const lock = new Lock(await env.client(proxy.url), "foo", { ttl, retryDelay: 5 });
    const hold = await lock.acquire();
    const waiting = new Lock(await env.client(proxy.url), "foo", { retryDelay: 5 }).acquire();
    await until("a client waits", () => master.waiters());
    await failOver();
    await until("the waiter has followed", () => replica.waiters());
    await untilRenewed(hold, ttl);
    assert((await replica.calls("dlock.extend")) > 0);
    await hold.release();
    await (await waiting).release();
  });

  test("the subscriber follows when only the commands connect anew", async () => {
    // Only a message can grant the lock.
    Object.assign(times, { ask: 600_000, keep: 2_000_000 });
    const [old, next] = [await env.ownServer(), await env.ownServer()];
    const proxy = await env.proxy(old.port);
    for (const server of [old, next]) await server.ask("DLOCK.ACQUIRE", "foo", "holder", 600_000);
    const waiting = new Lock(await env.client(proxy.url), "foo", { ttl: 2_000_000 }).acquire();
    await until("a client waits", () => old.waiters());
    proxy.target = next.port;
    await old.ask("CLIENT", "KILL", "TYPE", "normal");
    await until("the waiter has followed", () => next.waiters());
    await next.ask("DLOCK.RELEASE", "foo", "holder");
    await (await waiting).release();
  });

  test("a release follows its master when the address leads to another server", async () => {
    const { replica, proxy, failOver } = await masterWithReplica();
    const hold = await new Lock(await env.client(proxy.url), "foo").acquire();
    await failOver();
    times.patience = 60_000;
    await hold.release();
    assert(!(await replica.exists()));
  });

  test("a wait throws NoAnswerError when the server stays down", async () => {
    Object.assign(times, { keep: 1000, answer: 1000 });
    const server = await env.ownServer();
    await server.ask("DLOCK.ACQUIRE", "foo", "holder", 60_000);
    const waiting = assert.rejects(new Lock(await env.client(server.url), "foo").acquire(), NoAnswerError);
    await until("a client waits", () => server.waiters());
    await server.kill();
    await waiting;
  });

  for (const atLeast of [undefined, 1])
    test(`a wait outlasts a server that is silent from its first request on: atLeast ${atLeast}`, async () => {
      times.answer = 100;
      const proxy = await env.proxy();
      const lock = new Lock(await env.client(proxy.url), "foo", { atLeast });
      await lock.locked();
      proxy.silent = true;
      let outcome;
      const waiting = lock.acquire().then(
        (hold) => (outcome = hold),
        (why) => (outcome = why),
      );
      const requests = () => proxy.requestCount("DLOCK.ACQUIRE") + proxy.requestCount("DLOCK.RELEASE");
      await until("two requests are sent", () => requests() > 1 || outcome !== undefined);
      proxy.silent = false;
      await waiting;
      assert(!(outcome instanceof Error), outcome);
      await outcome.release();
    });

  test("a wait throws NoAnswerError after its client is closed", async () => {
    // The queue position does not expire, so that only the closed client ends the wait.
    times.keep = 600_000;
    await holdByOther();
    const client = await env.client();
    let failure;
    new Lock(client, "foo").acquire().catch((why) => {
      failure = why;
    });
    await untilWaiters(1);
    // The reply to QUIT is lost if the wait sends another request, and the server closes the connection before
    // it reads that request.
    await client.quit().catch(() => {});
    assert((await until("the wait ends", () => failure)) instanceof NoAnswerError);
  });

  test("a wait without permission for its channel asks again every retryDelay", async () => {
    // The pause of a wait that expects messages. This wait expects none, and pauses for `retryDelay`.
    times.ask = 1_000_000;
    await env.server.ask("ACL", "SETUSER", "plain", "on", ">secret", "~*", "resetchannels", "+@all");
    await holdByOther();
    const client = await env.client(env.server.url.replace("//", "//plain:secret@"));
    const waiting = new Lock(client, "foo", { retryDelay: 50 }).acquire();
    await untilWaiters(1);
    await releaseByOther();
    await (await waiting).release();
    // Longest time for which a wait is delayed until its client has subscribed for the first time. The next wait is
    // not delayed, because the attempt to subscribe has ended in failure.
    times.connect = 1_000_000;
    await holdByOther();
    const next = new Lock(client, "foo", { retryDelay: 50 }).acquire();
    await untilWaiters(1);
    await releaseByOther();
    await (await next).release();
  });

  test("acquire throws QueueFullError if the queue of a member of a quorum is full", async () => {
    await env.server.ask("CONFIG", "SET", "dlock.max-waiters-per-key", "1");
    try {
      await holdByOther();
      const lock = new Lock(new Quorum([await env.client()], { nodeTimeout: 10_000 }), "foo");
      const waiting = lock.acquire();
      await untilWaiters(1);
      await assert.rejects(lock.acquire(), { name: "QueueFullError" });
      await releaseByOther();
      await (await waiting).release();
    } finally {
      await env.server.ask("CONFIG", "SET", "dlock.max-waiters-per-key", "1000");
    }
  });

  test("acquire with a timeout of 0 is one try, also for a quorum that knows that the lock is contended", async () => {
    await holdByOther();
    const lock = new Lock(new Quorum([await env.client()], { nodeTimeout: 10_000 }), "foo");
    await assert.rejects(lock.acquire({ timeout: 50 }), { name: "ResourceLockedError" });
    await env.server.ask("CONFIG", "SET", "dlock.max-waiters-per-key", "0");
    try {
      await assert.rejects(lock.acquire({ timeout: 0 }), { name: "ResourceLockedError" });
      await assert.rejects(lock.acquire(), { name: "QueueFullError" });
    } finally {
      await env.server.ask("CONFIG", "SET", "dlock.max-waiters-per-key", "1000");
      await releaseByOther();
    }
  });

  test("acquire throws QueueFullError if the queue is full", async () => {
    await env.server.ask("CONFIG", "SET", "dlock.max-waiters-per-key", "1");
    try {
      await holdByOther();
      const [lock, other] = [await makeLock(), await makeLock()];
      const waiting = lock.acquire();
      await untilWaiters(1);
      await assert.rejects(other.acquire(), { name: "QueueFullError" });
      await releaseByOther();
      await (await waiting).release();
    } finally {
      await env.server.ask("CONFIG", "SET", "dlock.max-waiters-per-key", "1000");
    }
  });
});

test("the end of an earlier subscription does not end the present one", async () => {
  const subscribers = [];
  let connected;
  const link = {
    isOneServer: true,
    isReady: () => true,
    onReady: (listener) => (connected = listener),
    onEnded() {},
    onError() {},
    subscribe: (subscriber) => {
      subscribers.push(subscriber);
      return { ping: async () => {}, close() {} };
    },
  };
  const wait = Channel.of(link).listen();
  subscribers[0].onSubscribed();
  connected();
  assert(!wait.isSubscribed);
  subscribers[1].onSubscribed();
  subscribers[0].onDisconnected();
  assert(wait.isSubscribed);
  wait.close();
});
