// Several locks, paths, elections, and the commands for operators.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  fenced,
  Leader,
  Lock,
  lockAll,
  lockPath,
  NotHeldError,
  Operator,
  Quorum,
  ResourceLockedError,
  StaleFenceError,
} from "dlock";
import { onEachServer, until } from "./support.mjs";

onEachServer((env) => {
  test("several locks are acquired in one order, all or none", async () => {
    const client = await env.client();
    // In UTF-16, the second key would come before the first one.
    const locks = lockAll(client, ["\u{1f512}", "\uff5e", "a", "a"]);
    assert.deepEqual(locks.keys, ["a", "\uff5e", "\u{1f512}"]);
    const holds = await locks.acquire();
    assert.equal([...holds].length, 3);
    assert(holds.fences[0] < holds.fences[1] && holds.fences[1] < holds.fences[2]);
    assert(holds.validFor > 20_000);
    assert(!holds.signal.aborted);
    const other = lockAll(client, ["b", "a"], { label: "other" });
    assert.equal(await other.tryAcquire(), null);
    await assert.rejects(
      other.acquire({ timeout: 20 }),
      (why) => why instanceof ResourceLockedError && why.key === "a",
    );
    assert.equal(await lockAll(client, ["0", "a"]).tryAcquire(), null);
    assert(!(await env.server.exists("0")));
    await env.server.ask("DLOCK.BREAK", "a");
    await assert.rejects(holds.holds[0].extend(), NotHeldError);
    assert(holds.signal.aborted);
    assert.equal(holds.validFor, 0);
    await assert.rejects(holds.release(), NotHeldError);
    assert(!(await env.server.exists("\uff5e")));
    assert.equal(await other.using((both) => both.holds.length), 2);
    assert.throws(() => lockAll(client, []), TypeError);
    assert.throws(() => lockAll(client, "ab"), TypeError);
  });

  test("an abandoned set of locks leaves no delay of atLeast", async () => {
    const client = await env.client();
    const hold = await new Lock(client, "b").acquire();
    await assert.rejects(
      lockAll(client, ["a", "b"], { atLeast: 60_000 }).acquire({ timeout: 20 }),
      ResourceLockedError,
    );
    const free = await new Lock(client, "a").tryAcquire();
    await free.release();
    await hold.release();
  });

  test("with reentrant, several locks are entered again within their own routine", async () => {
    const client = await env.client();
    const options = { reentrant: true };
    const makers = [() => lockAll(client, ["a", "b"], options), () => lockPath(client, "a/b", options)];
    for (const make of makers) {
      await make().using(async (outer) => {
        await make().using((inner) => assert.deepEqual(inner.fences, outer.fences), { timeout: 1 });
        await new Lock(client, make().keys[1], options).using(() => {}, { timeout: 1 });
        for (const hold of outer) assert(await hold.held());
      });
      for (const key of make().keys) assert(!(await env.server.exists(key)), key);
    }
  });

  test("a reentrant hold keeps its atLeast when other locks are not acquired", async () => {
    const client = await env.client();
    const hold = await new Lock(client, "b").acquire();
    const options = { atLeast: 60_000, reentrant: true };
    await new Lock(client, "a", options).using(async () => {
      assert.equal(await lockAll(client, ["a", "b"], options).tryAcquire(), null);
    });
    assert.equal(await new Lock(client, "a").tryAcquire(), null);
    await hold.release();
  });

  test("a wait for several locks ends when one of them is lost", async () => {
    const client = await env.client();
    const hold = await new Lock(client, "b").acquire();
    const refused = assert.rejects(lockAll(client, ["a", "b"], { ttl: 3000 }).acquire(), NotHeldError);
    await until("the client waits", () => env.server.waiters("b"));
    await env.server.ask("DLOCK.BREAK", "a");
    await refused;
    await hold.release();
  });

  test("a path excludes its ancestors and descendants, and nothing else", async () => {
    const client = await env.client();
    const path = lockPath(client, "a/b/c");
    assert.deepEqual(path.keys, ["{a}", "{a}/b", "{a}/b/c"]);
    for (const service of [client, new Quorum([client], { nodeTimeout: 10_000 })]) {
      const holds = await lockPath(service, "a/b/c").acquire();
      for (const excluded of ["a", "a/b", "a/b/c", "a/b/c/d"])
        assert.equal(await lockPath(service, excluded).tryAcquire(), null, excluded);
      for (const free of ["a/x", "a/b/x", "b"]) await (await lockPath(service, free).tryAcquire()).release();
      const mode = (await new Operator(client).inspect("{a}/b")).mode;
      assert.equal(mode, "shared");
      await holds.release();
    }
    const shared = await lockPath(client, "a/b", { shared: true }).acquire();
    await (await lockPath(client, "a/b", { shared: true }).acquire()).release();
    await (await path.tryAcquire()).release();
    await shared.release();
    for (const wrong of ["", "a//b", "/a", "a/{b}", 5])
      assert.throws(() => lockPath(client, wrong), TypeError);
  });

  test("atLeast and delay keep a path closed, and not its siblings", async () => {
    const client = await env.client();
    const kept = lockPath(client, "a/x", { atLeast: 600_000 });
    await (await kept.acquire()).release();
    assert.equal(await kept.tryAcquire(), null);
    const delayed = lockPath(client, "a/y", { renew: false, delay: 600_000 });
    for (const { key, token } of await delayed.acquire()) await env.server.ask("DLOCK.EXTEND", key, token, 1);
    await until("the hold has expired", async () => {
      const reply = await env.server.ask("DLOCK.INSPECT", "{a}/y");
      return reply[reply.indexOf("delay") + 1] > 0;
    });
    assert.equal(await delayed.tryAcquire(), null);
    const holds = await lockPath(client, "a/z").acquire({ timeout: 10_000 });
    await holds.release();
  });

  test("the fence guards a write on another server", async () => {
    const client = await env.client();
    const hold = await new Lock(client, "foo").acquire();
    assert.equal(await fenced(client, "{x}:gate", hold.fence, "SET", "{x}", 1), "OK");
    const stale = hold.fence - 1;
    await assert.rejects(fenced(client, "{x}:gate", stale, "SET", "{x}", 2), (why) => {
      assert(why instanceof StaleFenceError);
      assert.deepEqual([why.fence, why.greatest, why.key], [stale, hold.fence, "{x}:gate"]);
      return true;
    });
    assert.equal(await env.server.ask("GET", "{x}"), "1");
    await assert.rejects(fenced(client, "{x}:gate", null, "SET", "{x}", 2), RangeError);
    await hold.release();
  });

  test("one candidate leads, and the next one after it resigns or loses its term", async () => {
    const [one, two] = [
      new Leader(await env.client(), "job", { label: "one" }),
      new Leader(await env.client(), "job", { label: "two", ttl: 600 }),
    ];
    assert.equal(await one.current(), undefined);
    const leaders = [];
    const controller = new AbortController();
    const observing = (async () => {
      for await (const leader of one.observe({ signal: controller.signal })) leaders.push(leader?.label);
    })();
    const term = await one.campaign();
    assert.equal((await two.current()).label, "one");
    let terms = 0;
    const running = two.run(async (own, signal) => {
      terms += 1;
      if (terms === 2) return own.fence;
      await env.server.ask("DLOCK.BREAK", "job");
      await new Promise((resolve) => signal.addEventListener("abort", resolve));
      assert(signal.aborted);
    });
    await term.release();
    assert((await running) > term.fence);
    assert.equal(terms, 2);
    assert.equal(await one.current(), undefined);
    await until("the end is observed", () => leaders.length >= 2 || leaders[0] === undefined);
    controller.abort();
    await observing;
    const stopped = AbortSignal.abort(new Error("enough"));
    await assert.rejects(two.campaign({ signal: stopped }), /enough/);
    await assert.rejects(
      two.run(() => {}, { signal: stopped }),
      /enough/,
    );
  });

  test("an error of the leader passes when the server refuses its resignation", async () => {
    await env.server.ask("ACL", "SETUSER", "led", "on", ">secret", "~*", "&*", "+@all", "-dlock.release");
    const leader = new Leader(await env.client(env.server.url.replace("//", "//led:secret@")), "job");
    const failing = async () => {
      throw new Error("of the routine");
    };
    await assert.rejects(leader.run(failing), /of the routine/);
    // The release goes on in the background.
    await env.server.ask("ACL", "SETUSER", "led", "+dlock.release");
    await assert.doesNotReject(leader.run(() => {}));
    await env.server.ask("ACL", "DELUSER", "led");
  });

  test("a leader and a path refuse options with which several would hold the lock", async () => {
    const client = await env.client();
    for (const option of [{ shared: true }, { permits: 2 }]) {
      assert.throws(() => new Leader(client, "job", option), /^TypeError: (shared|permits): a leader/);
    }
    assert.throws(() => lockPath(client, "a/b", { permits: 2 }), /^TypeError: permits: a path/);
    new Leader(client, "job", { shared: false, permits: undefined });
    lockPath(client, "a/b", { shared: true, permits: undefined });
  });

  test("an operator sees holders, waiters, locks and incidents, and ends them", async () => {
    const client = await env.client();
    const operator = new Operator(client);
    assert.equal(await operator.inspect("foo"), null);
    const hold = await new Lock(client, "foo", { label: "holder", permits: 2 }).acquire();
    const seen = await operator.inspect("foo");
    assert.deepEqual(
      { ...seen, holders: undefined },
      {
        mode: "permits",
        permits: 2,
        fence: hold.fence,
        holders: undefined,
        holdersCount: 1,
        waiters: 0,
        delay: 0,
      },
    );
    const [holder] = seen.holders;
    assert.deepEqual(
      [holder.token, holder.count, holder.fence, holder.label, holder.ephemeral],
      [hold.token, 1, hold.fence, "holder", false],
    );
    assert(holder.pttl > 20_000 && holder.held >= 0 && holder.client > 0 && holder.addr.includes(":"));
    const waiting = assert.rejects(
      new Lock(client, "foo", { label: "waiter" }).acquire(),
      ResourceLockedError,
    );
    const [waiter] = await until("a client waits", async () => {
      const all = await operator.waiters("foo");
      return all.length > 0 && all;
    });
    assert.deepEqual([waiter.client, waiter.mode, waiter.label], [-1, "exclusive", "waiter"]);
    const all = [];
    for await (const lock of operator.list({ match: "f*", waited: true })) all.push(lock);
    assert.deepEqual(
      all.map(({ key, holders, waiters, label, fence }) => [key, holders, waiters, label, fence]),
      [["foo", 1, 1, "holder", hold.fence]],
    );
    assert.equal(await operator.cancel("foo", waiter.token), 1);
    await waiting;
    assert.equal(await operator.break("foo"), 1);
    const [incident] = await operator.log({ count: 1, key: "foo" });
    assert.deepEqual([incident.what, incident.fence, incident.waited], ["broken", hold.fence, undefined]);
    assert(incident.held >= 0 && incident.time > 1e12);
    await assert.rejects(hold.release(), /an operator broke the lock/);
    await assert.rejects(operator.log({ limit: 1 }), /limit: there is no such option/);
    assert.throws(() => new Operator({}), TypeError);
  });
});
