// Waits in the queue: their order, one connection for messages, timeouts and aborts, and faults.

import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { afterEach, test } from "node:test";
import { Lock, NoAnswerError, ResourceLockedError } from "dlock";
import { times } from "../dist/waits.js";
import { onEach, pause, until } from "./support.mjs";

const usual = { ...times };
afterEach(() => Object.assign(times, usual));

onEach((bench) => {
  const hold = () => bench.server.ask("DLOCK.ACQUIRE", "foo", "holder", 60_000);
  const release = () => bench.server.ask("DLOCK.RELEASE", "foo", "holder");
  const lock = async (options) => new Lock(await bench.client(), "foo", options);
  const waiters = (n, key) => until(`${n} clients wait`, async () => (await bench.server.waiters(key)) === n);

  /** Returns the number of connections with this client name, and of those that are subscribed. */
  async function connections(name) {
    const lines = (await bench.server.ask("CLIENT", "LIST")).split("\n");
    const own = lines.filter((line) => line.includes(` name=${name} `));
    return [own.length, own.filter((line) => !line.includes(" sub=0 ")).length];
  }

  /** Waits until `connections` returns these numbers. The subscription may begin after the wait. */
  const connected = (name, ...counts) =>
    until(`${name} has ${counts} connections`, async () => `${await connections(name)}` === `${counts}`);

  test("waiters are served first come, first served", async () => {
    await hold();
    const one = await lock();
    const order = [];
    const done = [];
    for (let number = 0; number < 8; number++) {
      done.push(one.using(() => order.push(number)));
      await waiters(number + 1);
    }
    await release();
    await Promise.all(done);
    assert.deepEqual(order, [...done.keys()]);
    assert(!(await bench.server.exists()));
  });

  test("50 waits of a client use two connections", async () => {
    await hold();
    const client = await bench.client(undefined, "counted");
    const done = Array.from({ length: 50 }, (_, at) => new Lock(client, `foo${at % 2}`).using(() => {}));
    const first = new Lock(client, "foo").using(() => {});
    await until("a client waits", () => bench.server.waiters());
    await connected("counted", 2, 1);
    await release();
    await Promise.all([first, ...done]);
  });

  test("the subscriber is closed after the last wait, and with its client", async () => {
    times.idle = 50;
    await hold();
    const client = await bench.client(undefined, "ends");
    const waits = new Lock(client, "foo").acquire();
    await waiters(1);
    await connected("ends", 2, 1);
    await release();
    await (await waits).release();
    await connected("ends", 1, 0);
    times.idle = usual.idle;
    await hold();
    const again = new Lock(client, "foo").acquire();
    await waiters(1);
    await release();
    await (await again).release();
    await client.quit();
    await connected("ends", 0, 0);
  });

  test("a wait that times out leaves the queue", async () => {
    await hold();
    const one = await lock();
    await assert.rejects(one.acquire({ timeout: 100 }), ResourceLockedError);
    assert.equal(await bench.server.waiters(), 0);
    await assert.rejects(one.acquire({ timeout: 0 }), ResourceLockedError);
  });

  test("an aborted wait leaves the queue", async () => {
    await hold();
    const one = await lock();
    const controller = new AbortController();
    const reason = new Error("enough");
    const waits = assert.rejects(one.acquire({ signal: controller.signal }), reason);
    await waiters(1);
    controller.abort(reason);
    await waits;
    await waiters(0);
    await assert.rejects(one.tryAcquire({ signal: controller.signal }), reason);
    await assert.rejects(one.acquire({ signal: AbortSignal.timeout(50) }), { name: "TimeoutError" });
    await waiters(0);
  });

  test("20 waits share one signal without a warning of Node", async () => {
    await hold();
    const one = await lock();
    const controller = new AbortController();
    const warned = [];
    const note = (warning) => warned.push(warning);
    process.on("warning", note);
    const { signal } = controller;
    const waits = Array.from({ length: 20 }, () => assert.rejects(one.acquire({ signal }), /enough/));
    await waiters(20);
    assert.equal(getEventListeners(signal, "abort").length, 1);
    controller.abort(new Error("enough"));
    await Promise.all(waits);
    await waiters(0);
    process.off("warning", note);
    assert.deepEqual(warned, []);
    assert.equal(getEventListeners(signal, "abort").length, 0);
  });

  test("a wait continues with a retryDelay of 0", async () => {
    await bench.server.ask("SET", "foo", "0123456789abcdef0123456789abcdef");
    let hold;
    const waits = (await lock({ retryDelay: 0 })).acquire().then((acquired) => (hold = acquired));
    await until("the client has asked again", async () => (await bench.server.calls("dlock.acquire")) > 3);
    assert.equal(hold, undefined);
    await bench.server.ask("DEL", "foo");
    await (await waits).release();
  });

  test("a wait that an operator ends throws ResourceLockedError", async () => {
    await hold();
    const waits = assert.rejects((await lock()).acquire(), ResourceLockedError);
    await waiters(1);
    const [shown] = await bench.server.ask("DLOCK.WAITERS", "foo");
    await bench.server.ask("DLOCK.CANCEL", "foo", shown[shown.indexOf("token") + 1]);
    await waits;
    assert.equal(await bench.server.waiters(), 0);
  });

  test("a message wakes the waiter", async () => {
    times.ask = 1_000_000;
    await hold();
    const waits = (await lock({ retryDelay: 1_000_000 })).acquire();
    await waiters(1);
    await release();
    await (await waits).release();
  });

  test("a wait gets the lock although its message is lost", async () => {
    times.ask = 100;
    await hold();
    const client = await bench.client(undefined, "deaf");
    const waits = new Lock(client, "foo").acquire();
    await waiters(1);
    const lines = (await bench.server.ask("CLIENT", "LIST")).split("\n");
    const listener = lines.find((line) => line.includes(" name=deaf ") && !line.includes(" sub=0 "));
    times.connect = 0;
    await bench.server.ask("CLIENT", "KILL", "ID", /id=(\d+)/.exec(listener)[1]);
    await release();
    await (await waits).release();
  });

  test("a subscriber that receives nothing reconnects", async () => {
    // The position outlasts the test, so that only the subscriber depends on the time.
    Object.assign(times, { silence: 100, keep: 600_000 });
    await hold();
    const proxy = await bench.proxy();
    const waits = new Lock(await bench.client(proxy.url), "foo").acquire();
    await waiters(1);
    const { accepted } = proxy;
    proxy.silent = true;
    await until("the subscriber reconnects", () => proxy.accepted > accepted);
    proxy.silent = false;
    await release();
    await (await waits).release();
  });

  test("a client that is closed while its subscriber subscribes again leaves no unhandled error", async () => {
    await hold();
    const proxy = await bench.proxy();
    const subscribed = () => proxy.requests.match(/\r\nsubscribe\r\n/gi).length;
    const client = await bench.client(proxy.url);
    const outcome = new Lock(client, "foo").acquire().catch((why) => why);
    await waiters(1);
    const before = subscribed();
    proxy.delay = 1000;
    proxy.drop();
    await until("the subscriber subscribes again", () => subscribed() > before);
    client.disconnect();
    assert((await outcome) instanceof NoAnswerError);
  });

  test("waits keep their order over broken connections", async () => {
    times.keep = 600_000;
    await hold();
    const proxy = await bench.proxy();
    const one = new Lock(await bench.client(proxy.url), "foo");
    const order = [];
    const first = one.using(() => order.push("first"));
    await waiters(1);
    const second = one.using(() => order.push("second"));
    await waiters(2);
    for (let round = 0; round < 3; round++) {
      const { accepted } = proxy;
      proxy.drop();
      await until("the client reconnects", () => proxy.accepted > accepted);
      assert.equal(await bench.server.waiters(), 2);
    }
    proxy.refuse = true;
    proxy.drop();
    await pause(300);
    proxy.refuse = false;
    await release();
    await Promise.all([first, second]);
    assert.deepEqual(order, ["first", "second"]);
  });

  test("a wait outlasts a restart of the server", async () => {
    times.answer = 30_000;
    const server = await bench.ownServer();
    await server.ask("DLOCK.ACQUIRE", "foo", "holder", 60_000);
    const waits = new Lock(await bench.client(server.url), "foo").acquire();
    await until("a client waits", () => server.waiters());
    await server.kill();
    await server.start();
    await (await waits).release();
  });

  test("a wait outlasts the loading of the server's data", async () => {
    times.answer = 30_000;
    // The server answers LOADING for about a second.
    const slowly = ["--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024"];
    const server = await bench.ownServer();
    await server.ask("DLOCK.ACQUIRE", "foo", "holder", 60_000);
    for (let key = 0; key < 500; key++) server.ask("SET", `key${key}`, "x".repeat(100));
    const client = await bench.client(server.url);
    let answer;
    const waits = new Lock(client, "foo").acquire().catch((why) => (answer = why));
    await until("a client waits", () => server.waiters());
    await server.ask("SAVE");
    await server.kill();
    await server.start(slowly);
    assert.equal(answer, undefined);
    await until("a client waits", () => server.waiters());
    await server.ask("DLOCK.RELEASE", "foo", "holder");
    await (await waits).release();
  });

  test("a wait throws NoAnswerError when the server stays down", async () => {
    Object.assign(times, { keep: 1000, answer: 1000 });
    const server = await bench.ownServer();
    await server.ask("DLOCK.ACQUIRE", "foo", "holder", 60_000);
    const waits = assert.rejects(new Lock(await bench.client(server.url), "foo").acquire(), NoAnswerError);
    await until("a client waits", () => server.waiters());
    await server.kill();
    await waits;
  });

  test("a wait throws NoAnswerError after its client is closed", async () => {
    // The position would outlast the test.
    times.keep = 600_000;
    await hold();
    const client = await bench.client();
    let failure;
    new Lock(client, "foo").acquire().catch((why) => {
      failure = why;
    });
    await waiters(1);
    // The reply to QUIT is lost if the wait sends a request behind it.
    await client.quit().catch(() => {});
    assert((await until("the wait ends", () => failure)) instanceof NoAnswerError);
  });

  test("a wait without permission for its channel asks again every retryDelay", async () => {
    times.ask = 1_000_000;
    await bench.server.ask("ACL", "SETUSER", "plain", "on", ">secret", "~*", "resetchannels", "+@all");
    await hold();
    const client = await bench.client(bench.server.url.replace("//", "//plain:secret@"));
    const waits = new Lock(client, "foo", { retryDelay: 50 }).acquire();
    await waiters(1);
    await release();
    await (await waits).release();
    // The next wait of this client is not delayed for the subscription.
    times.connect = 1_000_000;
    await hold();
    const next = new Lock(client, "foo", { retryDelay: 50 }).acquire();
    await waiters(1);
    await release();
    await (await next).release();
  });

  test("acquire throws QueueFullError if the queue is full", async () => {
    await bench.server.ask("CONFIG", "SET", "dlock.max-waiters-per-key", "1");
    try {
      await hold();
      const [one, other] = [await lock(), await lock()];
      const waits = one.acquire();
      await waiters(1);
      await assert.rejects(other.acquire(), { name: "QueueFullError" });
      await release();
      await (await waits).release();
    } finally {
      await bench.server.ask("CONFIG", "RESET", "dlock.max-waiters-per-key").catch(() => {});
      await bench.server.ask("CONFIG", "SET", "dlock.max-waiters-per-key", "1000");
    }
  });
});
