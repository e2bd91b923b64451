// The errors of acquisitions during an outage, or while the key holds data. Each error names this cause, and
// does not say that another client holds the lock.

import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { LateError, Lock, LockError, NoAnswerError, NoQuorumError, ResourceLockedError } from "dlock";
import { times } from "../dist/waits.js";
import { allowSlowAnswers, FOREIGN_TOKEN, mastersFor, onEachServer, suspend, until } from "./support.mjs";

const HOUR = 3_600_000;

const defaultTimes = { ...times };
afterEach(() => Object.assign(times, defaultTimes));

onEachServer((env) => {
  const { masters, proxies, quorumOf, untilHeldAt, untilFree, untilAnyWaiter } = mastersFor(env);
  let quorum;
  beforeEach(async () => {
    quorum = await quorumOf(proxies);
  });

  const configureMajority = (name, value) =>
    Promise.all(masters.slice(1).map((master) => master.ask("CONFIG", "SET", name, value)));
  const rejectsWithNoQuorum = (acquired, message) =>
    assert.rejects(acquired, (why) => {
      assert(why instanceof NoQuorumError, why);
      assert.match(why.message, message);
      const { port } = new URL(proxies[1].url);
      assert(why.message.includes(port) || why.message.includes(masters[1].port), "member 1 is named");
      return true;
    });

  test("acquire and tryAcquire throw NoQuorumError while a majority is down", async () => {
    for (const proxy of proxies.slice(1)) {
      proxy.refuse = true;
      proxy.drop();
    }
    quorum.limit = 500;
    const lock = new Lock(quorum, "foo");
    for (const timeout of [0, 300])
      await rejectsWithNoQuorum(lock.acquire({ timeout }), /no majority can grant/);
    await rejectsWithNoQuorum(lock.tryAcquire(), /no majority can grant/);
  });

  /** Returns a lock that another client holds at all members. A first wait has found the lock taken, so the
   * next wait begins in the queue. */
  async function lockOfRival() {
    for (const master of masters) await master.ask("DLOCK.ACQUIRE", "foo", "rival", 60_000);
    const lock = new Lock(quorum, "foo");
    await assert.rejects(lock.acquire({ timeout: 100 }), ResourceLockedError);
    return lock;
  }

  /** Cuts off a member, and waits until the client has noticed. */
  async function cutOff(member, lock) {
    proxies[member].refuse = true;
    proxies[member].drop();
    quorum.limit = 500;
    await assert.rejects(lock.acquire({ timeout: 0 }), LockError);
  }

  test("a wait that begins in the queue throws NoQuorumError while a majority is down", async () => {
    const lock = await lockOfRival();
    for (const proxy of proxies.slice(1)) {
      proxy.refuse = true;
      proxy.drop();
    }
    quorum.limit = 500;
    await rejectsWithNoQuorum(lock.acquire({ timeout: 0 }), /no majority can grant/);
  });

  test("a wait that times out throws NoQuorumError if no majority answers its last requests", async () => {
    const lock = await lockOfRival();
    await cutOff(1, lock);
    // The first member refuses, the second one is down, and the third one does not answer.
    proxies[2].silent = true;
    await rejectsWithNoQuorum(lock.acquire({ timeout: 0 }), /no majority can grant/);
    proxies[2].silent = false;
  });

  test("a wait that times out in the queue asks all members once more, and only once", async () => {
    const lock = await lockOfRival();
    // The other two members are a majority, and refuse.
    await cutOff(2, lock);
    // A long time limit, so that the answers of a busy machine count.
    quorum.limit = 10_000;
    const before = proxies[0].requestCount("DLOCK.ACQUIRE");
    await assert.rejects(lock.acquire({ timeout: 0 }), ResourceLockedError);
    assert(proxies[0].requestCount("DLOCK.ACQUIRE") - before <= 2, "one to queue, and one in the last round");
  });

  test("a wait throws NoQuorumError while a majority is in its grace period", async () => {
    await configureMajority("dlock.restart-grace", "600000");
    try {
      for (const master of masters.slice(1)) {
        // A flush that ends a hold begins a grace period.
        await master.ask("DLOCK.ACQUIRE", "forgotten", "token", 60_000);
        await master.ask("FLUSHALL");
      }
      await rejectsWithNoQuorum(new Lock(quorum, "foo").acquire({ timeout: 300 }), /GRACE/);
    } finally {
      await configureMajority("dlock.restart-grace", "0");
    }
  });

  test("a wait throws NoQuorumError while a majority refuses writes", async () => {
    await configureMajority("min-replicas-to-write", "1");
    try {
      await rejectsWithNoQuorum(new Lock(quorum, "foo").acquire({ timeout: 300 }), /NOREPLICAS/);
    } finally {
      await configureMajority("min-replicas-to-write", "0");
    }
  });

  test("an acquisition throws NoQuorumError at once if its user has no right at a majority", async () => {
    const endpoints = [masters[0]];
    for (const master of masters.slice(1)) {
      await master.ask("ACL", "SETUSER", "weak", "on", ">secret", "~*", "&*", "+@all", "-dlock.acquire");
      endpoints.push({ url: master.url.replace("//", "//weak:secret@") });
    }
    await rejectsWithNoQuorum(new Lock(await quorumOf(endpoints), "foo").acquire(), /NOPERM/);
  });

  for (const fenced of [false, true]) {
    const kind = fenced ? "fenced" : "not fenced";
    test(`an acquisition throws LateError when a majority always grants after the lease: ${kind}`, async () => {
      // The next round begins once the members have confirmed the releases of a failed round, or after `patience`.
      allowSlowAnswers();
      const lock = new Lock(quorum, "foo", { ttl: 100, fenced });
      // Connects to the members before their answers are delayed.
      await lock.locked();
      for (const proxy of proxies) proxy.delay = 150;
      await assert.rejects(lock.tryAcquire(), LateError);
      await assert.rejects(lock.acquire(), LateError);
      await untilFree();
    });
  }

  test("a wait throws ResourceLockedError if the lock is held for longer than the timeout", async () => {
    const hold = await new Lock(quorum, "foo").acquire();
    await untilHeldAt(0, 1, 2);
    await assert.rejects(new Lock(quorum, "foo").acquire({ timeout: 100 }), ResourceLockedError);
    await hold.release();
  });

  test("a wait that times out while the server is down throws NoAnswerError", async () => {
    const [master, proxy] = [masters[0], proxies[0]];
    // The queue position outlasts the timeout, so that only the timeout ends the wait.
    times.keep = 2 * HOUR;
    await master.ask("DLOCK.ACQUIRE", "foo", "holder", HOUR);
    const lock = new Lock(await env.client(proxy.url), "foo", { retryDelay: 10 });
    const outcome = lock.acquire({ timeout: HOUR }).catch((why) => why);
    await until("a client waits", () => master.waiters());
    const before = proxy.accepted;
    proxy.refuse = true;
    proxy.drop();
    await until("the client reconnects", () => proxy.accepted > before);
    // Advances the client's clock to the end of the timeout.
    suspend(HOUR);
    const why = await outcome;
    assert(why instanceof NoAnswerError, why);
    proxy.refuse = false;
    await until("the client has left the queue", async () => (await master.waiters()) === 0);
  });

  for (const members of [1, 3]) {
    const lockOf = async (options) =>
      new Lock(members === 1 ? await env.client(masters[0].url) : quorum, "foo", options);
    const onAll = (...command) => Promise.all(masters.map((master) => master.ask(...command)));

    test(`data at the key is an error that names its type: ${members} members`, async () => {
      const lock = await lockOf();
      for (const [command, message] of [
        [["RPUSH", "foo", "x"], /foo: the key holds a list.*choose another key/],
        [["HSET", "foo", "x", "y"], /foo: the key holds a hash.*choose another key/],
        [["SET", "foo", "text"], /foo: the key holds a string.*dlock.honour-strings/],
      ]) {
        await onAll("DEL", "foo");
        await onAll(...command);
        for (const ask of [
          () => lock.acquire(),
          () => lock.acquire({ timeout: 0 }),
          () => lock.tryAcquire(),
          () => lock.locked(),
        ]) {
          await assert.rejects(ask, (why) => {
            assert.equal(why.constructor, LockError);
            assert.match(why.message, message);
            return true;
          });
        }
      }
    });

    test(`data that replaces a lock ends the waits for it: ${members} members`, async () => {
      const lock = await lockOf({ ttl: 60_000 });
      const hold = await lock.acquire();
      await untilHeldAt(...Array(members).keys());
      const outcome = lock.acquire().catch((why) => why);
      await untilAnyWaiter();
      await Promise.all(masters.map((master) => master.redis.multi().del("foo").rpush("foo", "x").exec()));
      const why = await outcome;
      assert.match(why.message, /holds a list/);
      await hold.release().catch(() => {});
    });

    test(`acquire waits for a lock of node-redlock: ${members} members`, async () => {
      await onAll("SET", "foo", FOREIGN_TOKEN, "PX", "600000");
      const lock = await lockOf({ retryDelay: 20 });
      assert.equal(await lock.tryAcquire(), null);
      assert(await lock.locked());
      await assert.rejects(lock.acquire({ timeout: 100 }), ResourceLockedError);
      const waiting = lock.acquire();
      await onAll("DEL", "foo");
      await (await waiting).release();
    });

    test(`acquire waits for a string with dlock.honour-strings: ${members} members`, async () => {
      await onAll("CONFIG", "SET", "dlock.honour-strings", "yes");
      try {
        await onAll("SET", "foo", "text");
        const lock = await lockOf();
        assert.equal(await lock.tryAcquire(), null);
        assert(await lock.locked());
        const waiting = lock.acquire();
        await onAll("DEL", "foo");
        await (await waiting).release();
      } finally {
        await onAll("CONFIG", "SET", "dlock.honour-strings", "no");
      }
    });
  }

  test("a release reaches a member that has not yet received the ACQUIRE", async () => {
    await masters[2].ask("CONFIG", "RESETSTAT");
    const lock = new Lock(await quorumOf(proxies, 2000), "foo", { ttl: 600_000 });
    // Connects to all members.
    await (await lock.acquire()).release();
    const before = proxies[2].requestCount("DLOCK.ACQUIRE");
    proxies[2].silent = true;
    const hold = await lock.acquire();
    await until("ACQUIRE is sent", () => proxies[2].requestCount("DLOCK.ACQUIRE") > before);
    allowSlowAnswers();
    await hold.release();
    proxies[2].silent = false;
    await until("a second RELEASE arrives", async () => (await masters[2].calls("dlock.release")) > 1);
    await until("nothing is held", async () => !(await masters[2].exists()));
  });
});
