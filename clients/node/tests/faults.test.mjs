// Answers that are lost or late: nothing is left on the server, and no hold is trusted for too long.

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { LateError, Lock, NoAnswerError, NotHeldError, ResourceLockedError } from "dlock";
import { times } from "../dist/waits.js";
import { onEach, suspend, until } from "./support.mjs";

const usual = { ...times };
afterEach(() => Object.assign(times, usual));

onEach((bench) => {
  let proxy;
  const lockOverProxy = async (options) => {
    proxy = await bench.proxy();
    return new Lock(await bench.client(proxy.url), "foo", options);
  };
  const nothingIsHeld = () => until("nothing is held", async () => !(await bench.server.exists()));

  test("acquire leaves nothing on the server when its answer is lost", async () => {
    const one = await lockOverProxy({ ttl: 60_000 });
    await one.locked();
    Object.assign(proxy, { match: "ACQUIRE", cutReplies: 1 });
    // ioredis sends the command again.
    const outcome = await one.tryAcquire().catch((why) => why);
    assert.equal(proxy.lost, 1);
    if (bench.kind === "ioredis") await outcome.release();
    else assert(outcome instanceof NoAnswerError, outcome);
    await nothingIsHeld();
  });

  test("a command that waits for a connection fails when its client is closed", async () => {
    proxy = await bench.proxy();
    const client = await bench.client(proxy.url);
    const one = new Lock(client, "foo");
    await one.locked();
    const ready = (now) =>
      until("the client has noticed", () => (client.isReady ?? client.status === "ready") === now);
    await ready(true);
    // ioredis reports no disconnect between two tries, so here it gives up.
    let mayReconnect = true;
    if (bench.kind === "ioredis") client.options.retryStrategy = () => (mayReconnect ? 10 : null);
    proxy.refuse = true;
    proxy.drop();
    await ready(false);
    const outcome = assert.rejects(one.tryAcquire(), { name: "NoAnswerError", message: /clos/ });
    // The wait ends at once, and not after the time limit of an answer.
    mayReconnect = false;
    if (bench.kind === "node-redis") await (client.destroy ? client.destroy() : client.disconnect());
    await outcome;
  });

  test("acquire opens no connection when its client is closed", async () => {
    const one = await lockOverProxy();
    const hold = await one.acquire();
    // The next acquisition would enter the queue at once.
    await assert.rejects(one.acquire({ timeout: 20 }), ResourceLockedError);
    proxy = await bench.proxy();
    const client = await bench.client(proxy.url);
    const other = new Lock(client, "foo");
    await other.locked();
    await client.quit();
    await until("the client is closed", () => client.status === "end" || client.isOpen === false);
    const { accepted } = proxy;
    await assert.rejects(other.acquire(), NoAnswerError);
    assert.equal(proxy.accepted, accepted);
    await hold.release();
  });

  test("an aborted acquire leaves nothing on the server", async () => {
    const one = await lockOverProxy({ ttl: 60_000 });
    await one.locked();
    proxy.delay = 300;
    const controller = new AbortController();
    const acquired = assert.rejects(one.tryAcquire({ signal: controller.signal }), { name: "AbortError" });
    await until("the lock is granted", () => bench.server.exists());
    controller.abort();
    await acquired;
    proxy.delay = 0;
    await nothingIsHeld();
  });

  test("acquire fails when each answer takes longer than the lease", async () => {
    const one = await lockOverProxy({ ttl: 100 });
    await one.locked();
    proxy.delay = 150;
    await assert.rejects(one.tryAcquire(), LateError);
    await nothingIsHeld();
  });

  test("validity counts from before the request", async () => {
    const one = await lockOverProxy({ ttl: 60_000, renew: false });
    await one.locked();
    proxy.delay = 600;
    const hold = await one.tryAcquire();
    assert(hold.validFor < 60_000 - 600 && hold.validFor > 0);
  });

  test("a hold is lost when the server is silent, and the reason says so", async () => {
    const { signal } = await (await lockOverProxy({ ttl: 60_000 })).acquire();
    const lost = new Promise((resolve) => signal.addEventListener("abort", resolve));
    proxy.silent = true;
    suspend(30_000);
    await until("a renewal has failed", () => proxy.asked("DLOCK.EXTEND") > 1);
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
    assert(await bench.server.exists());
    proxy.refuse = false;
    await nothingIsHeld();
    // A second release of the owner does nothing.
    await hold.release();
  });

  test("release reports no loss when its answer is lost", async () => {
    const hold = await (await lockOverProxy({ ttl: 60_000 })).acquire();
    Object.assign(proxy, { match: "RELEASE", cutReplies: 1 });
    // ioredis sends the command again.
    const outcome = await hold.release().catch((why) => why);
    assert.equal(proxy.lost, 1);
    if (bench.kind === "ioredis") assert.equal(outcome, undefined);
    else assert(outcome instanceof NoAnswerError, outcome);
    await nothingIsHeld();
  });

  test("release reports an earlier loss when it is sent again", async () => {
    const hold = await (await lockOverProxy({ ttl: 1000, renew: false })).acquire();
    await until("the hold is lost", () => hold.signal.aborted);
    await nothingIsHeld();
    // The connection is lost, too, as after a suspend.
    Object.assign(proxy, { match: "RELEASE", cutReplies: 1 });
    const expected = bench.kind === "ioredis" ? NotHeldError : NoAnswerError;
    await assert.rejects(hold.release(), expected);
    assert.equal(proxy.lost, 1);
  });

  test("a command that could not be sent in time is not sent later", async () => {
    proxy = await bench.proxy();
    const client = await bench.client(proxy.url);
    const one = new Lock(client, "foo", { ttl: 60_000 });
    await one.locked();
    proxy.refuse = true;
    proxy.drop();
    await until("the client has noticed", () => client.status !== "ready" && !client.isReady);
    times.answer = 500;
    await assert.rejects(one.tryAcquire(), NoAnswerError);
    const calls = () => bench.server.calls("dlock.acquire");
    const before = await calls();
    times.answer = usual.answer;
    proxy.refuse = false;
    const connected = () =>
      one.locked().then(
        () => true,
        () => false,
      );
    await until("the client is connected", connected);
    assert.equal(await calls(), before);
  });

  test("an extension without an answer does not lengthen the validity", async () => {
    const hold = await (await lockOverProxy({ ttl: 1000, renew: false })).acquire();
    proxy.silent = true;
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
