// Answers that are lost or late: the client leaves no hold on the server, and relies on no hold for too long.

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { LateError, Lock, NoAnswerError, NotHeldError, Quorum, ResourceLockedError } from "dlock";
import { times } from "../dist/waits.js";
import { onEachServer, suspend, until } from "./support.mjs";

const defaultTimes = { ...times };
afterEach(() => Object.assign(times, defaultTimes));

onEachServer((env) => {
  let proxy;
  /** Returns a lock over a client that is connected through a new `proxy`. */
  const lockOverProxy = async (options) => {
    proxy = await env.proxy();
    const lock = new Lock(await env.client(proxy.url), "foo", options);
    await lock.locked();
    return lock;
  };
  const nothingIsHeld = () => until("nothing is held", async () => !(await env.server.exists()));

  test("acquire leaves nothing on the server when its answer is lost", async () => {
    const lock = await lockOverProxy({ ttl: 60_000 });
    Object.assign(proxy, { match: "ACQUIRE", cutReplies: 1 });
    // ioredis sends the command again over a new connection.
    const outcome = await lock.tryAcquire().catch((why) => why);
    assert.equal(proxy.lost, 1);
    if (env.clientLibrary === "ioredis") await outcome.release();
    else assert(outcome instanceof NoAnswerError, outcome);
    await nothingIsHeld();
  });

  test("a command that waits for a connection fails when its client is closed", async () => {
    proxy = await env.proxy();
    const client = await env.client(proxy.url);
    const lock = new Lock(client, "foo");
    await lock.locked();
    const untilReady = (isReady) =>
      until(
        "the client has noticed the change",
        () => (client.isReady ?? client.status === "ready") === isReady,
      );
    await untilReady(true);
    // If ioredis is closed between two tries to reconnect, it emits no event. It emits `end` when it gives up,
    // so here `retryStrategy` makes it give up.
    let mayReconnect = true;
    if (env.clientLibrary === "ioredis") client.options.retryStrategy = () => (mayReconnect ? 10 : null);
    proxy.refuse = true;
    proxy.drop();
    await untilReady(false);
    const outcome = assert.rejects(lock.tryAcquire(), { name: "NoAnswerError", message: /clos/ });
    mayReconnect = false;
    if (env.clientLibrary === "node-redis") await (client.destroy ? client.destroy() : client.disconnect());
    await outcome;
  });

  test("acquire opens no connection when its client is closed", async () => {
    const heldLock = await lockOverProxy();
    const hold = await heldLock.acquire();
    // All clients of the process remember for a second that this wait found the lock taken. So the acquisition
    // below would first open a connection to subscribe, if its client were not closed.
    await assert.rejects(heldLock.acquire({ timeout: 20 }), ResourceLockedError);
    proxy = await env.proxy();
    const client = await env.client(proxy.url);
    const lock = new Lock(client, "foo");
    await lock.locked();
    await client.quit();
    await until("the client is closed", () => client.status === "end" || client.isOpen === false);
    const { accepted } = proxy;
    await assert.rejects(lock.acquire(), NoAnswerError);
    assert.equal(proxy.accepted, accepted);
    await hold.release();
  });

  test("an aborted acquire leaves nothing on the server", async () => {
    const lock = await lockOverProxy({ ttl: 60_000 });
    proxy.delay = 300;
    const controller = new AbortController();
    const acquired = assert.rejects(lock.tryAcquire({ signal: controller.signal }), { name: "AbortError" });
    await until("the lock is granted", () => env.server.exists());
    controller.abort();
    await acquired;
    proxy.delay = 0;
    await nothingIsHeld();
  });

  test("acquire fails when each answer takes longer than the lease", async () => {
    const lock = await lockOverProxy({ ttl: 100 });
    proxy.delay = 150;
    await assert.rejects(lock.tryAcquire(), LateError);
    await nothingIsHeld();
  });

  test("the validity of a hold counts from the time at which its request is sent", async () => {
    const lock = await lockOverProxy({ ttl: 60_000, renew: false });
    proxy.delay = 600;
    const hold = await lock.tryAcquire();
    assert(hold.validFor < 60_000 - 600 && hold.validFor > 0);
  });

  test("a hold is lost when the server does not answer its renewals, and the reason says so", async () => {
    const { signal } = await (await lockOverProxy({ ttl: 60_000 })).acquire();
    const lost = new Promise((resolve) => signal.addEventListener("abort", resolve));
    proxy.silent = true;
    // Advances the clock of the client by half the lease, so that a renewal is due.
    suspend(30_000);
    // The client sends a second EXTEND after the first has failed.
    await until("a renewal has failed", () => proxy.requestCount("DLOCK.EXTEND") > 1);
    suspend(30_000);
    await lost;
    assert.match(signal.reason.message, /not renewed in time: .*no answer within 1000 ms/);
    proxy.silent = false;
  });

  test("a renewal is repeated when its reply is lost", async () => {
    const hold = await (await lockOverProxy({ ttl: 60_000 })).acquire();
    Object.assign(proxy, { match: "EXTEND", cutReplies: 2 });
    suspend(30_000);
    await until("two replies are lost", () => proxy.lost === 2);
    await until("the hold is renewed", () => hold.validFor > 30_000);
    assert(!hold.signal.aborted);
    await hold.release();
  });

  test("a release is repeated in the background until it is confirmed", async () => {
    const hold = await (await lockOverProxy({ ttl: 60_000 })).acquire();
    times.answer = 500;
    proxy.refuse = true;
    proxy.drop();
    await assert.rejects(hold.release(), NoAnswerError);
    assert(await env.server.exists());
    proxy.refuse = false;
    await nothingIsHeld();
    // A second call finds no hold, and reports no loss, because the first call may have ended it.
    await hold.release();
  });

  test("release reports no loss when its answer is lost", async () => {
    const hold = await (await lockOverProxy({ ttl: 60_000 })).acquire();
    Object.assign(proxy, { match: "RELEASE", cutReplies: 1 });
    // The command is sent again over a new connection: by ioredis, or in the background.
    times.patience = 60_000;
    await hold.release();
    assert.equal(proxy.lost, 1);
    await nothingIsHeld();
  });

  test("release reports an earlier loss without an answer, and ends the hold in the background", async () => {
    proxy = await env.proxy();
    const client = await env.client(proxy.url);
    // Nothing but a request without an answer would take so long. The timer of one can outlast the test.
    Object.assign(times, { answer: 120_000, patience: 120_000 });
    for (const service of [client, new Quorum([client], { nodeTimeout: 120_000 })]) {
      const hold = await new Lock(service, "foo", { ttl: 60_000 }).acquire();
      proxy.silent = true;
      suspend(60_000);
      let why;
      hold.release().catch((loss) => {
        why = loss;
      });
      await until("the loss is reported", () => why);
      assert(why instanceof NotHeldError, why);
      assert(await env.server.exists());
      proxy.silent = false;
      await nothingIsHeld();
      await hold.release();
    }
  });

  test("a command that could not be sent in time is not sent later", async () => {
    proxy = await env.proxy();
    const client = await env.client(proxy.url);
    const lock = new Lock(client, "foo", { ttl: 60_000 });
    await lock.locked();
    proxy.refuse = true;
    proxy.drop();
    await until("the client has noticed the disconnect", () => client.status !== "ready" && !client.isReady);
    times.answer = 500;
    await assert.rejects(lock.tryAcquire(), NoAnswerError);
    const calls = () => env.server.calls("dlock.acquire");
    const before = await calls();
    times.answer = defaultTimes.answer;
    proxy.refuse = false;
    const isConnected = () =>
      lock.locked().then(
        () => true,
        () => false,
      );
    await until("the client is connected", isConnected);
    assert.equal(await calls(), before);
  });

  test("an extension without an answer does not lengthen the validity", async () => {
    const hold = await (await lockOverProxy({ ttl: 1000, renew: false })).acquire();
    proxy.silent = true;
    // The server's answer arrives after the hold is lost, or not within the time limit of an answer.
    const extended = assert.rejects(
      hold.extend(60_000),
      (why) => why instanceof NoAnswerError || why instanceof NotHeldError,
    );
    await until("the hold is lost", () => hold.signal.aborted);
    proxy.silent = false;
    await extended;
    await assert.rejects(hold.extend(), NotHeldError);
    await hold.release().catch(() => {});
    await nothingIsHeld();
  });
});
