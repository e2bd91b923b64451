// The options of a lock, the methods of a hold, and the errors that say who holds a lock and why a hold is lost.

import assert from "node:assert/strict";
import os from "node:os";
import { test } from "node:test";
import {
  Leader,
  Lock,
  LockError,
  lockAll,
  lockPath,
  NoAnswerError,
  NotDurableError,
  NotHeldError,
  Operator,
  Quorum,
  ResourceLockedError,
} from "dlock";
import { onEachServer, suspend, until } from "./support.mjs";

onEachServer((env) => {
  const lockOf = async (options) => new Lock(await env.client(), "foo", options);
  /** Returns a field of the first holder of "foo". */
  async function holder(name) {
    const reply = await env.server.ask("DLOCK.INSPECT", "foo");
    const [first] = reply[reply.indexOf("holders") + 1];
    return first[first.indexOf(name) + 1];
  }

  test("a hold has a label: the host and the process, or the user's", async () => {
    let hold = await (await lockOf()).acquire();
    assert.equal(await holder("label"), `${os.hostname()}:${process.pid}`);
    await hold.release();
    hold = await (await lockOf({ label: "nightly" })).acquire();
    assert.equal(await holder("label"), "nightly");
    await hold.release();
    hold = await (await lockOf({ label: "" })).acquire();
    assert.equal(await holder("label"), "");
    await hold.release();
  });

  test("a hold with a delay keeps the lock closed after its lease", async () => {
    const lock = await lockOf({ ttl: 100, renew: false, delay: 60_000 });
    await lock.acquire();
    await until("the hold has expired", async () => {
      const reply = await env.server.ask("DLOCK.INSPECT", "foo");
      return reply[reply.indexOf("delay") + 1] > 0;
    });
    assert.equal(await lock.tryAcquire(), null);
  });

  test("an ephemeral hold ends with its connection", async () => {
    const proxy = await env.proxy();
    const lock = new Lock(await env.client(proxy.url), "foo", { ephemeral: true });
    const hold = await lock.acquire();
    assert.equal(await holder("ephemeral"), 1);
    proxy.drop();
    await until("the hold has ended", async () => !(await env.server.exists()));
    const outcome = await until("the client has reconnected", async () => {
      const why = await hold.extend().catch((why) => why);
      return !(why instanceof NoAnswerError) && why;
    });
    assert(outcome instanceof NotHeldError, outcome);
    assert(hold.signal.aborted);
  });

  test("an ephemeral wait outlasts a broken connection", async () => {
    await env.server.ask("DLOCK.ACQUIRE", "foo", "holder", 60_000);
    const proxy = await env.proxy();
    const client = await env.client(proxy.url);
    const waiting = new Lock(client, "foo", { ephemeral: true }).acquire();
    await until("the client waits", () => env.server.waiters());
    proxy.drop();
    await until("the client waits again", async () => {
      const [waiter] = await env.server.ask("DLOCK.WAITERS", "foo");
      return proxy.accepted > 2 && waiter !== undefined;
    });
    await env.server.ask("DLOCK.RELEASE", "foo", "holder");
    await (await waiting).release();
  });

  test("an ephemeral wait goes on if the news of its old connection comes late", async () => {
    await env.server.ask("DLOCK.ACQUIRE", "foo", "holder", 60_000);
    const proxy = await env.proxy();
    const client = await env.client(proxy.url);
    let isOver = false;
    const waiting = new Lock(client, "foo", { ephemeral: true }).acquire();
    waiting.finally(() => (isOver = true)).catch(() => {});
    await until("the client waits", () => env.server.waiters());
    const [id] = proxy.requests.match(/[\w-]{11}\.1/);
    const { length } = proxy.requests;
    const { accepted } = proxy;
    proxy.drop();
    // The second request over the new connections is sent after the answer to the first one.
    const requests = () => proxy.requests.slice(length).match(/[\w-]{11}\.\d /g) ?? [];
    const channels = () => env.server.ask("PUBSUB", "CHANNELS", "dlock:*");
    await until("the client waits again", async () => {
      const [channel] = await channels();
      return (
        proxy.accepted > accepted + 1 && requests().length > 1 && channel && (await env.server.waiters())
      );
    });
    await env.server.ask("PUBLISH", (await channels())[0], `${id} cancelled`);
    const before = requests().length;
    await until("the client asks again", () => isOver || requests().length > before);
    assert(!isOver);
    await env.server.ask("DLOCK.RELEASE", "foo", "holder");
    await (await waiting).release();
  });

  test("an operator ends an ephemeral wait", async () => {
    await env.server.ask("DLOCK.ACQUIRE", "foo", "holder", 60_000);
    const waiting = (await lockOf({ ephemeral: true })).acquire();
    let outcome;
    waiting.then(
      () => (outcome = "acquired"),
      (why) => (outcome = why),
    );
    // Between two requests there may be no position. A position may end with its connection, too: then the wait goes on.
    await until("the wait ends", async () => {
      const [waiter] = await env.server.ask("DLOCK.WAITERS", "foo");
      if (waiter) await env.server.ask("DLOCK.CANCEL", "foo", waiter[waiter.indexOf("token") + 1]);
      return outcome;
    });
    assert(outcome instanceof ResourceLockedError, outcome);
  });

  test("a hold is lost after maxHold, whatever its lease", async () => {
    const hold = await (await lockOf({ maxHold: 60_000, ttl: 3_600_000 })).acquire();
    assert(!hold.signal.aborted);
    suspend(70_000);
    assert(hold.signal.aborted);
    assert.match(hold.signal.reason.message, /held for longer than maxHold/);
    assert.equal(hold.validFor, 0);
    await assert.rejects(hold.release(), NotHeldError);
  });

  test("the error of a timeout says who holds the lock", async () => {
    const hold = await (await lockOf({ label: "the rival" })).acquire();
    for (const client of [await env.client(), new Quorum([await env.client()], { nodeTimeout: 10_000 })]) {
      await assert.rejects(new Lock(client, "foo").acquire({ timeout: 20 }), (why) => {
        assert(why instanceof ResourceLockedError);
        assert.match(why.message, /foo: held by "the rival" at 127\.0\.0\.1:\d+ for \d+ ms/);
        assert.equal(why.holder.label, "the rival");
        assert.equal(why.holder.fence, hold.fence);
        assert(why.holder.pttl > 0);
        return true;
      });
    }
    await hold.release();
  });

  test("the error of a timeout says that the lock is closed, and for how long", async () => {
    await (await (await lockOf({ atLeast: 600_000 })).acquire()).release();
    for (const client of [await env.client(), new Quorum([await env.client()], { nodeTimeout: 10_000 })]) {
      await assert.rejects(new Lock(client, "foo").acquire({ timeout: 20 }), (why) => {
        assert(why instanceof ResourceLockedError);
        assert.match(why.message, /^foo: no client held the lock, but it was still closed for \d{6} ms when/);
        assert.equal(why.holder, undefined);
        return true;
      });
    }
  });

  test("the error of an upgrade that timed out says who shares the lock", async () => {
    const hold = await (await lockOf({ shared: true })).acquire();
    const other = await (await lockOf({ shared: true, label: "the sharer" })).acquire();
    await assert.rejects(hold.upgrade({ timeout: 20 }), (why) => {
      assert(why instanceof ResourceLockedError);
      assert.match(
        why.message,
        /^foo: held by "the sharer" at 127\.0\.0\.1:\d+ for \d+ ms when the wait for/,
      );
      assert.equal(why.holder.fence, other.fence);
      return true;
    });
  });

  test("the error of a loss says why the server ended the hold", async () => {
    const lock = await lockOf();
    for (const [end, message] of [
      [["DLOCK.BREAK", "foo"], /an operator broke the lock/],
      [["DEL", "foo"], /its key was deleted/],
    ]) {
      const hold = await lock.acquire();
      await env.server.ask(...end);
      await assert.rejects(hold.extend(), (why) => why instanceof NotHeldError && message.test(why.message));
      const released = await lock.acquire();
      await env.server.ask(...end);
      await assert.rejects(released.release(), message);
    }
  });

  test("guard runs a command only while the lock is held", async () => {
    const hold = await (await lockOf()).acquire();
    assert.equal(await hold.guard("SET", "{foo}:total", 42), "OK");
    assert.equal(await hold.guard("GET", "{foo}:total"), "42");
    await assert.rejects(hold.guard("LPOP", "{foo}:total"), /WRONGTYPE/);
    await env.server.ask("DLOCK.BREAK", "foo");
    await assert.rejects(hold.guard("SET", "{foo}:total", 43), NotHeldError);
    assert.equal(await env.server.ask("GET", "{foo}:total"), "42");
    assert(hold.signal.aborted);
    const quorum = new Quorum([await env.client()]);
    const held = await new Lock(quorum, "bar").acquire();
    await assert.rejects(held.guard("GET", "x"), /guard needs a single server/);
    await held.release();
  });

  test("another lock adopts the hold of a token", async () => {
    const hold = await (await lockOf()).acquire();
    const token = await hold.forget();
    assert.equal(hold.validFor, 0);
    await hold.release();
    assert(await env.server.exists());
    const adopted = await (await lockOf()).adopt(token);
    assert.equal(adopted.fence, hold.fence);
    assert.equal(adopted.token, token);
    assert(adopted.validFor > 20_000);
    await adopted.release();
    assert(!(await env.server.exists()));
    await assert.rejects((await lockOf()).adopt(token), NotHeldError);
    const quorum = new Quorum([await env.client()], { nodeTimeout: 10_000 });
    const lock = new Lock(quorum, "foo");
    const taken = await lock.adopt(await (await lock.acquire()).forget());
    await taken.release();
    await assert.rejects(lock.adopt("unknown"), NotHeldError);
  });

  test("a lock with an option of the acquisition adopts nothing", async () => {
    for (const options of [{ ephemeral: true }, { durable: { replicas: 0, timeout: 1000 } }]) {
      const [name] = Object.keys(options);
      await assert.rejects((await lockOf(options)).adopt("token"), {
        name: "TypeError",
        message: `adopt: the hold is there already, so leave out ${name}`,
      });
    }
  });

  test("the error of adopt says why the server has no hold of the token", async () => {
    const client = await env.client();
    for (const service of [client, new Quorum([client], { nodeTimeout: 10_000 })]) {
      const lock = new Lock(service, "foo");
      const token = await (await lock.acquire()).forget();
      await env.server.ask("DLOCK.BREAK", "foo");
      await assert.rejects(lock.adopt(token), (why) => {
        assert(why instanceof NotHeldError);
        assert.match(why.message, /^foo: .* no hold of this token: an operator broke the lock$/);
        return true;
      });
    }
  });

  test("an ephemeral hold cannot be forgotten, and stays", async () => {
    const hold = await (await lockOf({ ephemeral: true })).acquire();
    await assert.rejects(hold.forget(), /^LockError: foo: an ephemeral hold cannot be forgotten/);
    assert(await hold.held());
    await hold.release();
  });

  test("a signal that is null counts as none", async () => {
    const none = { signal: null };
    const client = await env.client();
    const lock = new Lock(client, "foo");
    const shared = new Lock(client, "foo", { shared: true });
    await lock.using(() => {}, none);
    const adopted = await lock.adopt(await (await lock.tryAcquire(none)).forget(), none);
    await adopted.release();
    const hold = await shared.acquire(none);
    await hold.upgrade(none);
    await hold.release();
    assert(await lock.waitUntilFree(none));
    await lockAll(client, ["foo", "bar"]).using(() => {}, none);
    await new Lock(new Quorum([client], { nodeTimeout: 10_000 }), "foo").using(() => {}, none);
    const leader = new Leader(client, "job");
    await leader.run((_, signal) => assert(!signal.aborted), none);
    for await (const seen of leader.observe(none)) {
      assert.equal(seen, undefined);
      break;
    }
  });

  test("waitUntilFree waits for the end of a hold, and acquires nothing", async () => {
    for (const client of [await env.client(), new Quorum([await env.client()], { nodeTimeout: 10_000 })]) {
      const lock = new Lock(client, "foo");
      assert(await lock.waitUntilFree());
      const hold = await lock.acquire();
      assert(!(await lock.waitUntilFree({ timeout: 10 })));
      const free = lock.waitUntilFree();
      await hold.release();
      assert(await free);
      assert(!(await env.server.exists()));
      const signal = AbortSignal.abort(new Error("enough"));
      await assert.rejects(lock.waitUntilFree({ signal }), /enough/);
    }
  });

  test("a hold is downgraded for other sharers, and upgraded once it is alone", async () => {
    const hold = await (await lockOf()).acquire();
    const sharer = await lockOf({ shared: true });
    const waiting = sharer.acquire();
    await hold.downgrade();
    const shared = await waiting;
    await assert.rejects(hold.upgrade({ timeout: 20 }), ResourceLockedError);
    assert.equal(await env.server.waiters(), 0);
    const upgrading = hold.upgrade();
    await until("the upgrade waits", () => env.server.waiters());
    await assert.rejects(shared.upgrade(), { name: "DeadlockError" });
    await shared.release();
    await upgrading;
    assert.equal(await sharer.tryAcquire(), null);
    await hold.extend();
    await hold.release();
    await assert.rejects(hold.downgrade(), NotHeldError);
  });

  test("a quorum downgrades a hold, and refuses an upgrade", async () => {
    const quorum = new Quorum([await env.client()], { nodeTimeout: 10_000 });
    const hold = await new Lock(quorum, "foo").acquire();
    await hold.downgrade();
    const other = await new Lock(quorum, "foo", { shared: true }).tryAcquire();
    await other.release();
    await assert.rejects(hold.upgrade(), TypeError);
    await hold.release();
  });

  test("a nested call enters a reentrant lock again", async () => {
    const client = await env.client();
    const lock = new Lock(client, "foo", { reentrant: true });
    const again = new Lock(client, "foo", { reentrant: true });
    await lock.using(async (outer) => {
      await again.using(async (inner) => {
        assert.equal(inner.fence, outer.fence);
        const third = await again.tryAcquire();
        await third.release();
      });
      assert(outer.validFor > 0);
      assert(await outer.held());
      await assert.rejects(
        new Lock(client, "foo", { reentrant: true, shared: true }).acquire({ timeout: 1 }),
      );
    });
    assert(!(await env.server.exists()));
    const hold = await lock.acquire();
    assert.equal(await again.tryAcquire(), null);
    await hold.release();
  });

  test("a durable lock is acquired only if enough replicas have the grant", async () => {
    const lock = await lockOf({ durable: { replicas: 1, timeout: 100 } });
    await assert.rejects(lock.acquire(), NotDurableError);
    assert(!(await env.server.exists()));
    const [master, replica] = [await env.ownServer(), await env.ownServer()];
    await master.ask("CONFIG", "SET", "repl-diskless-sync-delay", "0");
    await replica.ask("REPLICAOF", "127.0.0.1", master.port);
    const onMaster = new Lock(await env.client(master.url), "foo", {
      durable: { replicas: 1, timeout: 1000 },
    });
    const hold = await until("the replica has the grant", () => onMaster.acquire().catch(() => null));
    assert(await replica.exists());
    await hold.release();
  });

  test("a grant that is not durable leaves the lock open", async () => {
    const options = { atLeast: 600_000, durable: { replicas: 1, timeout: 20 } };
    const client = await env.client();
    for (const service of [client, new Quorum([client], { nodeTimeout: 10_000 })]) {
      await assert.rejects(new Lock(service, "foo", options).acquire(), NotDurableError);
      assert(!(await env.server.exists()));
    }
    const late = { ...options, durable: { replicas: 1, timeout: 600_000 } };
    const signal = AbortSignal.timeout(20);
    await assert.rejects(new Lock(client, "foo", late).acquire({ signal }), { name: "TimeoutError" });
    await until("the lock is open", async () => !(await env.server.exists()));
  });

  test("the error of a durable lock says why the server cannot confirm the grant", async () => {
    // Redis 7.0 has no WAITAOF, and the other servers have no append only file.
    const lock = await lockOf({ durable: { replicas: 0, timeout: 100 } });
    await assert.rejects(lock.acquire(), (why) => {
      assert(why instanceof NotDurableError);
      assert.match(why.message, /that the append only file has the grant: ERR .*WAITAOF/);
      return true;
    });
  });

  test("an unknown or mistyped option is an error that suggests the right one", async () => {
    const client = await env.client();
    for (const [options, message] of [
      [{ tll: 5 }, /tll: there is no such option: did you mean ttl\?/],
      [{ auto_renew: false }, /did you mean renew\?/],
      [{ at_least: 5 }, /did you mean atLeast\?/],
      [{ timeout: 5 }, /timeout: it is an option of acquire and using/],
      [{ colour: 5 }, /colour: there is no such option; the options are ttl, renew/],
      [{ ttl: "5" }, /ttl: 5; it must be a whole number/],
      [{ shared: 1 }, /shared: 1; it must be true or false/],
      [{ permits: 1.5 }, /permits: 1.5; it must be a whole number/],
      [{ label: "x".repeat(256) }, /label: it must be a string of at most 255 bytes/],
      [{ lable: "x" }, /lable: there is no such option: did you mean label\?/],
      [{ ttl: 1e12 }, /^RangeError: ttl: 1000000000000; it must be .* from 1 to 4294967295/],
      [{ delay: 1e12 }, /^RangeError: delay: 1000000000000; it must be .* from 0 to 4294967295/],
      [{ durable: 1 }, /durable: 1; it must be an object/],
      [{ durable: { replicas: 1 } }, /durable.timeout: undefined/],
      [{ maxHold: 0 }, /maxHold: 0/],
    ]) {
      assert.throws(() => new Lock(client, "foo", options), message);
    }
    const lock = new Lock(client, "foo");
    await assert.rejects(
      lock.acquire({ timout: 5 }),
      /timout: there is no such option: did you mean timeout\?/,
    );
    await assert.rejects(lock.tryAcquire({ ttl: 5 }), /ttl: it is an option of new Lock/);
    const ofWaits = /timeout: it is an option of acquire and using/;
    await assert.rejects(lock.tryAcquire({ timeout: 5 }), ofWaits);
    await assert.rejects(lockAll(client, ["foo"]).tryAcquire({ timeout: 5 }), ofWaits);
    assert.throws(() => lockPath(client, "a/b", null), /options: null; they must be an object/);
    const operator = new Operator(client);
    await assert.rejects(operator.waiters("foo", { cnt: 5 }), /cnt: there is no such option/);
    await assert.rejects(operator.log({ cuont: 5 }), /cuont: there is no such option: did you mean count\?/);
    await assert.rejects(
      lock.using(() => {}, 5),
      /options: 5; they must be an object/,
    );
    assert.throws(() => new Quorum([client], { node_timeout: 5 }), /did you mean nodeTimeout\?/);
    assert(new LockError("x") instanceof Error);
  });
});
