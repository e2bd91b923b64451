// A quorum of three members.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { Lock, NoQuorumError, NotHeldError, Quorum } from "dlock";
import { QueueChoice } from "../dist/queue-choice.js";
import { times } from "../dist/waits.js";
import { info, unknownMembers } from "./members.mjs";
import { mastersFor, onEach, pause, suspend, until, untilRenewed } from "./support.mjs";

// A busy machine confirms releases late.
Object.assign(times, { nodeTimeout: 10_000, patience: 20_000 });

function cut(proxy) {
  proxy.refuse = true;
  proxy.drop();
}

onEach(
  (bench) => {
    const { masters, proxies, clients, quorumOf, isHeldAt, waits, isWaitedFor } = mastersFor(bench);
    let quorum;
    const lock = (options) => new Lock(quorum, "foo", options);

    beforeEach(async () => {
      quorum = await quorumOf(proxies, 4000);
    });

    test("a hold of a majority excludes other clients", async () => {
      const [one, other] = [lock(), lock()];
      const hold = await one.acquire();
      await isHeldAt(0, 1, 2);
      assert(await hold.held());
      assert(await other.locked());
      assert.equal(await other.tryAcquire(), null);
      assert.equal(hold.fence, null);
      await hold.release();
      await isHeldAt();
      await (await other.tryAcquire()).release();
    });

    test("release reports no loss when its answers are lost", async () => {
      const hold = await lock({ ttl: 60_000 }).acquire();
      await isHeldAt(0, 1, 2);
      for (const proxy of proxies.slice(1)) Object.assign(proxy, { match: "RELEASE", cutReplies: 1 });
      await hold.release();
      assert.deepEqual(
        proxies.map((proxy) => proxy.lost),
        [0, 1, 1],
      );
      await isHeldAt();
    });

    test("release reports an earlier loss when it is sent again", async () => {
      const hold = await lock({ ttl: 4000, renew: false }).acquire();
      await until("the hold is lost", () => hold.signal.aborted);
      await isHeldAt();
      for (const proxy of proxies) Object.assign(proxy, { match: "RELEASE", cutReplies: 1 });
      await assert.rejects(hold.release(), NotHeldError);
      assert(proxies.every((proxy) => proxy.lost === 1));
    });

    test("a lock can be acquired and extended while one member is down", async () => {
      cut(proxies[0]);
      const fences = [];
      for (let round = 0; round < 3; round++) {
        await lock({ fenced: true }).using(async (hold) => {
          fences.push(hold.fence);
          await isHeldAt(1, 2);
          await hold.extend(10_000);
        });
      }
      assert.deepEqual(
        fences,
        [...new Set(fences)].sort((a, b) => a - b),
      );
    });

    test("no lock is granted without a majority", async () => {
      for (const proxy of proxies.slice(1)) cut(proxy);
      Object.assign(quorum, { limit: 250 });
      await assert.rejects(lock().tryAcquire(), NoQuorumError);
      await isHeldAt();
      await assert.rejects(lock().acquire({ timeout: 100 }), NoQuorumError);
    });

    test("fences rise over all members", async () => {
      const fences = [];
      for (const down of [0, 1, 2, 0, 1, 2]) {
        cut(proxies[down]);
        await lock({ fenced: true }).using((hold) => fences.push(hold.fence));
        proxies[down].refuse = false;
      }
      assert(
        fences.every((fence, at) => at === 0 || fence > fences[at - 1]),
        `${fences}`,
      );
    });

    test("a hold is lost when a majority has ended it", async () => {
      const hold = await lock().acquire();
      await isHeldAt(0, 1, 2);
      for (const master of masters.slice(1)) await master.ask("DLOCK.BREAK", "foo");
      assert(!(await hold.held()));
      await assert.rejects(hold.extend(), NotHeldError);
      await assert.rejects(hold.release(), NotHeldError);
    });

    test("tryAcquire leaves nothing on the members when its answers are lost", async () => {
      await (await lock().acquire()).release();
      await isHeldAt();
      for (const proxy of proxies) Object.assign(proxy, { match: "ACQUIRE", cutReplies: 1 });
      const outcome = await lock()
        .tryAcquire()
        .catch((why) => why);
      assert(proxies.reduce((sum, proxy) => sum + proxy.lost, 0) >= 2);
      // ioredis sends the command again, but an answer over a new connection may be that of another server.
      assert(outcome instanceof NoQuorumError, outcome);
      await isHeldAt();
    });

    test("a release is repeated until a member that is down confirms it", async () => {
      const hold = await lock({ ttl: 60_000 }).acquire();
      await isHeldAt(0, 1, 2);
      cut(proxies[2]);
      await hold.release();
      await isHeldAt(2);
      proxies[2].refuse = false;
      await isHeldAt();
    });

    test("a quorum with two addresses of one server is refused", async () => {
      const [first, second] = proxies;
      const sameServer = { url: first.url.replace("127.0.0.1", "localhost") };
      const twice = await quorumOf([first, sameServer, second]);
      await assert.rejects(new Lock(twice, "foo").tryAcquire(), /the same server/);
    });

    test("the order of the queues follows the new run id of a restarted member", () => {
      const { members, reach } = unknownMembers();
      const choice = new QueueChoice(members);
      const identify = () => members.identifyMembers(Number.POSITIVE_INFINITY).next().value;
      const first = identify();
      assert(!first.enough(new Map()));
      for (const member of [0, 1, 2]) members.record(member, info(`${member}5`));
      assert.deepEqual(choice.order("foo"), [0, 1, 2]);
      assert.equal(identify(), undefined);
      reach[0].connections = 2;
      assert.deepEqual(members.voters(), [1, 2], "the new connection may lead to another server");
      const again = identify();
      assert.deepEqual(again.members, [0]);
      members.record(0, info("20"));
      assert.deepEqual(choice.order("foo"), [1, 0, 2]);
    });

    test("a quorum refuses permits", async () => {
      await assert.rejects(lock({ permits: 2 }).tryAcquire(), /single server/);
    });

    for (const members of [1, 3]) {
      test(`a wait keeps its position when dlock.max-ttl is short: ${members} members`, async () => {
        const one = await bench.client(masters[0].url);
        const lock = (ttl) => new Lock(members === 1 ? one : quorum, "foo", { ttl });
        const limit = (ttl) =>
          Promise.all(masters.map((master) => master.ask("CONFIG", "SET", "dlock.max-ttl", ttl)));
        await limit(5000);
        try {
          for (const timeout of [0, 60_000])
            await assert.rejects(lock(60_000).acquire({ timeout }), /^\w*Error: ERR/);
          const hold = await lock(4000).acquire();
          const next = lock(4000).acquire();
          await isWaitedFor();
          await hold.release();
          await (await next).release();
        } finally {
          await limit(86_400_000);
        }
        await isHeldAt();
      });
    }

    test("one of several clients that try at the same moment wins", async () => {
      for (let round = 0; round < 5; round++) {
        const holds = await Promise.all([1, 2, 3, 4].map(() => lock().tryAcquire()));
        const won = holds.filter(Boolean);
        assert.equal(won.length, 1);
        await won[0].release();
        await isHeldAt();
      }
    });

    test("an extension that the servers call invalid throws their error, and does not end the hold", async () => {
      const hold = await new Lock(await quorumOf(masters), "foo").acquire();
      await assert.rejects(hold.extend(1e12), (why) => {
        assert(!(why instanceof NoQuorumError), why);
        assert.match(why.message, /^ERR ttl must be/);
        return true;
      });
      assert(await hold.held());
      await hold.release();
    });

    test("tryAcquire tries again when the votes are split and no client has a majority", async () => {
      await (await lock().acquire()).release();
      await isHeldAt();
      for (const [at, master] of masters.entries()) {
        await master.ask("CONFIG", "RESETSTAT");
        if (at < 2) await master.ask("DLOCK.ACQUIRE", "foo", `rival ${at}`, 60_000);
      }
      // The third member grants before the delayed refusals arrive: the votes are split. The rivals release
      // before the last try.
      for (const proxy of proxies.slice(0, 2)) proxy.delay = 100;
      const acquired = lock().tryAcquire();
      await until("the client has asked the third member", () => masters[2].calls("dlock.acquire"));
      await Promise.all([0, 1].map((at) => masters[at].ask("DLOCK.RELEASE", "foo", `rival ${at}`)));
      const hold = await acquired;
      assert(hold !== null);
      await hold.release();
    });

    test("clients that wait never hold the lock at the same time", async () => {
      const inside = [];
      const fences = [];
      const work = async (at) => {
        const own = at % 2 ? quorum : await quorumOf(proxies, 4000);
        for (let round = 0; round < 5; round++) {
          await new Lock(own, "foo", { fenced: true }).using(async (hold) => {
            inside.push(hold.fence);
            assert.equal(inside.length, 1);
            await pause(1);
            fences.push(inside.pop());
          });
        }
      };
      await Promise.all(Array.from({ length: 6 }, (_, at) => work(at)));
      assert.equal(fences.length, 30);
      assert(fences.every((fence, at) => at === 0 || fence > fences[at - 1]));
    });

    test("a wait throws NoQuorumError after its clients are closed", async () => {
      const closed = await clients(masters);
      const hold = await lock().acquire();
      await isHeldAt(0, 1, 2);
      let failure;
      new Lock(new Quorum(closed), "foo").acquire().catch((why) => {
        failure = why;
      });
      await isWaitedFor();
      // The reply to QUIT is lost if the wait sends a request behind it.
      for (const client of closed) await client.quit().catch(() => {});
      assert((await until("the wait ends", () => failure)) instanceof NoQuorumError);
      await hold.release();
    });

    test("an aborted wait leaves nothing on the members", async () => {
      const hold = await lock().acquire();
      await isHeldAt(0, 1, 2);
      const controller = new AbortController();
      const aborted = assert.rejects(lock().acquire({ signal: controller.signal }), { name: "AbortError" });
      await isWaitedFor();
      controller.abort();
      await aborted;
      await waits(0, 0, 0);
      await hold.release();
      await isHeldAt();
    });
  },
  { isParallel: true },
);

// Not in parallel, because these tests change the clock.
onEach((bench) => {
  const TTL = 60_000;
  const { proxies, quorumOf, isHeldAt } = mastersFor(bench);
  const acquire = async () => new Lock(await quorumOf(proxies, 4000), "foo", { ttl: TTL }).acquire();

  test("a hold is renewed while one member is silent", async () => {
    const hold = await acquire();
    proxies[1].silent = true;
    for (let round = 0; round < 2; round++) await untilRenewed(hold, TTL);
    assert(!hold.signal.aborted);
    proxies[1].silent = false;
    await hold.release();
  });

  test("a hold is lost when a majority cannot be renewed", async () => {
    const { signal } = await acquire();
    await isHeldAt(0, 1, 2);
    const lost = new Promise((resolve) => signal.addEventListener("abort", resolve));
    for (const proxy of proxies.slice(0, 2)) cut(proxy);
    suspend(TTL / 2);
    await until("a renewal has failed", () => proxies[2].asked("DLOCK.EXTEND") > 1);
    suspend(TTL / 2);
    await lost;
    assert.match(signal.reason.message, /too few members answered/);
  });
});
