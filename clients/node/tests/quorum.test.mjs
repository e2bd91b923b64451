// Acquisitions, holds and releases on a quorum of three members.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { Leader, Lock, NoQuorumError, NotHeldError, Quorum } from "dlock";
import { QueueChoice } from "../dist/queue-choice.js";
import { info, unknownMembers } from "./members.mjs";
import {
  allowSlowAnswers,
  mastersFor,
  onEachServer,
  pause,
  suspend,
  until,
  untilRenewed,
} from "./support.mjs";

allowSlowAnswers();

function cut(proxy) {
  proxy.refuse = true;
  proxy.drop();
}

onEachServer(
  (env) => {
    const { masters, proxies, clients, quorumOf, untilHeldAt, untilFree, untilWaiters, untilAnyWaiter } =
      mastersFor(env);
    let quorum;
    const lock = (options) => new Lock(quorum, "foo", options);

    beforeEach(async () => {
      quorum = await quorumOf(proxies);
    });

    test("a hold of a majority excludes other clients", async () => {
      const [one, other] = [lock(), lock()];
      const hold = await one.acquire();
      await untilHeldAt(0, 1, 2);
      assert(await hold.held());
      assert(await other.locked());
      assert.equal(await other.tryAcquire(), null);
      // Only a fenced lock has a fence in a quorum.
      assert.equal(hold.fence, null);
      await hold.release();
      await untilFree();
      await (await other.tryAcquire()).release();
    });

    test("the leader is unknown when a majority is down", async () => {
      const leader = new Leader(quorum, "foo");
      for (const proxy of proxies.slice(1)) cut(proxy);
      quorum.limit = 3000; // shortens the wait for the members, which will not answer
      for (const ask of [() => leader.current(), () => leader.observe().next(), () => lock().holder()]) {
        await assert.rejects(ask, NoQuorumError);
      }
    });

    test("a leader is one that a majority has, observed once although each member has its own fence", async () => {
      const leader = new Leader(quorum, "foo");
      const leaders = leader.observe();
      assert.deepEqual(await leaders.next(), { done: false, value: undefined });
      for (const [index, token] of ["one", "two", "two"].entries()) {
        await masters[index].ask("DLOCK.ACQUIRE", "foo", token, "60000");
      }
      assert.equal((await leader.current()).token, "two");
      assert.equal((await leaders.next()).value.token, "two");
      await masters[2].ask("DLOCK.RELEASE", "foo", "two");
      assert.equal(await leader.current(), undefined);
      assert.notEqual(await lock().holder(), undefined);
      await masters[1].ask("DLOCK.RELEASE", "foo", "two");
      await masters[0].ask("DLOCK.RELEASE", "foo", "one");
      for (const master of masters.slice(0, 2)) await master.ask("DLOCK.ACQUIRE", "foo", "two", "60000");
      const looks = proxies[0].requestCount("DLOCK.INSPECT");
      const following = leaders.next();
      await until("it looks twice", () => proxies[0].requestCount("DLOCK.INSPECT") >= looks + 2);
      for (const master of masters.slice(0, 2)) await master.ask("DLOCK.RELEASE", "foo", "two");
      assert.deepEqual(await following, { done: false, value: undefined });
    });

    test("release succeeds when its answers are lost", async () => {
      const hold = await lock({ ttl: 60_000 }).acquire();
      await untilHeldAt(0, 1, 2);
      for (const proxy of proxies.slice(1)) Object.assign(proxy, { match: "RELEASE", cutReplies: 1 });
      await hold.release();
      await until("two answers are lost", () => proxies[1].lost === 1 && proxies[2].lost === 1);
      await untilFree();
    });

    test("release of a lost hold throws NotHeldError, even if its first answers are lost", async () => {
      const hold = await lock({ ttl: 4000, renew: false }).acquire();
      await until("the hold is lost", () => hold.signal.aborted);
      await untilFree();
      for (const proxy of proxies) Object.assign(proxy, { match: "RELEASE", cutReplies: 1 });
      await assert.rejects(hold.release(), NotHeldError);
      // A majority decides the release, so the request to the third member may be late.
      await until("each member's first answer is lost", () => proxies.every((proxy) => proxy.lost === 1));
    });

    test("a lock can be acquired and extended while one member is down", async () => {
      cut(proxies[0]);
      const fences = [];
      for (let round = 0; round < 3; round++) {
        await lock({ fenced: true }).using(async (hold) => {
          fences.push(hold.fence);
          await untilHeldAt(1, 2);
          await hold.extend(10_000);
        });
      }
      assert(
        fences.every((fence, round) => round === 0 || fence > fences[round - 1]),
        `${fences}`,
      );
    });

    test("no lock is granted without a majority", async () => {
      for (const proxy of proxies.slice(1)) cut(proxy);
      // Time limit of each member's answer, in ms.
      quorum.limit = 250;
      await assert.rejects(lock().tryAcquire(), NoQuorumError);
      await untilFree();
      await assert.rejects(lock().acquire({ timeout: 100 }), NoQuorumError);
    });

    test("fences rise when each member in turn is down", async () => {
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
      await untilHeldAt(0, 1, 2);
      for (const master of masters.slice(1)) await master.ask("DLOCK.BREAK", "foo");
      assert(!(await hold.held()));
      await assert.rejects(hold.extend(), NotHeldError);
      await assert.rejects(hold.release(), NotHeldError);
    });

    test("tryAcquire leaves nothing on the members when its answers are lost", async () => {
      // After this acquisition, the client is connected and knows the run ids of the members.
      await (await lock().acquire()).release();
      await untilFree();
      for (const proxy of proxies) Object.assign(proxy, { match: "ACQUIRE", cutReplies: 1 });
      const outcome = await lock()
        .tryAcquire()
        .catch((why) => why);
      assert(proxies.reduce((sum, proxy) => sum + proxy.lost, 0) >= 2);
      // ioredis sends the command again over a new connection. The answer to this copy does not count, because
      // the connection may lead to another server.
      assert(outcome instanceof NoQuorumError, outcome);
      await untilFree();
    });

    test("a release is repeated until a member that was down confirms it", async () => {
      const hold = await lock({ ttl: 60_000 }).acquire();
      await untilHeldAt(0, 1, 2);
      cut(proxies[2]);
      await hold.release();
      await untilHeldAt(2);
      proxies[2].refuse = false;
      await untilFree();
    });

    test("a quorum with two addresses of one server is refused", async () => {
      const [first, second] = proxies;
      const sameServer = { url: first.url.replace("127.0.0.1", "localhost") };
      const twice = await quorumOf([first, sameServer, second]);
      await assert.rejects(new Lock(twice, "foo").tryAcquire(), /the same server/);
    });

    test("the new run id of a restarted member changes the order in which clients try the queues", () => {
      const { members, channels } = unknownMembers();
      const choice = new QueueChoice(members);
      /** Returns the request for the unknown run ids; undefined if all are known. */
      const identify = () => members.identifyMembers(Number.POSITIVE_INFINITY).next().value;
      assert(!identify().enough(new Map()), "without answers, the run ids are still unknown");
      for (const [member, runId] of ["05", "15", "25"].entries()) members.record(member, info(runId));
      assert.deepEqual(choice.order("foo"), [0, 1, 2]);
      assert.equal(identify(), undefined);
      channels[0].connections = 2;
      assert.deepEqual(members.voters(), [1, 2], "the new connection may lead to another server");
      assert.deepEqual(identify().members, [0]);
      members.record(0, info("20"));
      assert.deepEqual(choice.order("foo"), [1, 0, 2]);
    });

    test("a quorum refuses permits", async () => {
      await assert.rejects(lock({ permits: 2 }).tryAcquire(), /single server/);
    });

    for (const members of [1, 3]) {
      test(`a wait keeps its position when dlock.max-ttl is short: ${members} members`, async () => {
        const single = await env.client(masters[0].url);
        const lock = (ttl) => new Lock(members === 1 ? single : quorum, "foo", { ttl });
        const setMaxTtl = (ttl) =>
          Promise.all(masters.map((master) => master.ask("CONFIG", "SET", "dlock.max-ttl", ttl)));
        // Less than the client's usual time for a queue position, 10 s.
        await setMaxTtl(9000);
        try {
          for (const timeout of [0, 60_000])
            await assert.rejects(lock(60_000).acquire({ timeout }), /^\w*Error: ERR/);
          const hold = await lock(9000).acquire();
          const next = lock(9000).acquire();
          await untilAnyWaiter();
          await hold.release();
          await (await next).release();
        } finally {
          await setMaxTtl(86_400_000);
        }
        await untilFree();
      });
    }

    test("one of several acquisitions that begin at the same moment gets the lock", async () => {
      for (let round = 0; round < 5; round++) {
        const holds = await Promise.all([1, 2, 3, 4].map(() => lock().tryAcquire()));
        const won = holds.filter(Boolean);
        assert.equal(won.length, 1);
        await won[0].release();
        await untilFree();
      }
    });

    test("an extension that the servers call invalid throws their error, and does not end the hold", async () => {
      const hold = await new Lock(await quorumOf(masters), "foo").acquire();
      await assert.rejects(hold.extend(1e9), (why) => {
        assert(!(why instanceof NoQuorumError), why);
        assert.match(why.message, /^ERR ttl must be/);
        return true;
      });
      assert(await hold.held());
      await hold.release();
    });

    test("tryAcquire tries again when the votes are split and no client has a majority", async () => {
      // After this acquisition, the client is connected and knows the run ids of the members.
      await (await lock().acquire()).release();
      await untilFree();
      const rivals = [0, 1];
      for (const at of rivals) await masters[at].ask("DLOCK.ACQUIRE", "foo", `rival ${at}`, 60_000);
      await masters[2].ask("CONFIG", "RESETSTAT");
      // The votes are split: each rival has one member, and the third member grants before the delayed
      // refusals arrive. The delay makes each try so long that the rivals release before the client's last try.
      for (const proxy of proxies.slice(0, 2)) proxy.delay = 100;
      const acquired = lock().tryAcquire();
      await until("the client has asked the third member", () => masters[2].calls("dlock.acquire"));
      await Promise.all(rivals.map((at) => masters[at].ask("DLOCK.RELEASE", "foo", `rival ${at}`)));
      const hold = await acquired;
      assert(hold !== null);
      await hold.release();
    });

    test("clients that wait never hold the lock at the same time", async () => {
      const inside = [];
      const fences = [];
      const work = async (caller) => {
        // Half of the callers share the connections of `quorum`.
        const callersQuorum = caller % 2 ? quorum : await quorumOf(proxies);
        for (let round = 0; round < 5; round++) {
          await new Lock(callersQuorum, "foo", { fenced: true }).using(async (hold) => {
            inside.push(hold.fence);
            assert.equal(inside.length, 1);
            await pause(1);
            fences.push(inside.pop());
          });
        }
      };
      await Promise.all(Array.from({ length: 6 }, (_, caller) => work(caller)));
      assert.equal(fences.length, 30);
      assert(fences.every((fence, at) => at === 0 || fence > fences[at - 1]));
    });

    test("a wait throws NoQuorumError after its clients were closed", async () => {
      const closed = await clients(masters);
      const hold = await lock().acquire();
      await untilHeldAt(0, 1, 2);
      let failure;
      new Lock(new Quorum(closed), "foo").acquire().catch((why) => {
        failure = why;
      });
      await untilAnyWaiter();
      // The wait may send a request right after QUIT. If the server closes the connection without reading
      // this request, the connection is reset, and the reply to QUIT is lost.
      for (const client of closed) await client.quit().catch(() => {});
      assert((await until("the wait ends", () => failure)) instanceof NoQuorumError);
      await hold.release();
    });

    test("an aborted wait leaves nothing on the members", async () => {
      const hold = await lock().acquire();
      await untilHeldAt(0, 1, 2);
      const controller = new AbortController();
      const aborted = assert.rejects(lock().acquire({ signal: controller.signal }), { name: "AbortError" });
      await untilAnyWaiter();
      controller.abort();
      await aborted;
      await untilWaiters(0, 0, 0);
      await hold.release();
      await untilFree();
    });
  },
  { isParallel: true },
);

// Not in parallel, because these tests change the clock.
onEachServer((env) => {
  const TTL = 60_000;
  const { proxies, quorumOf, untilHeldAt } = mastersFor(env);
  const acquire = async () => new Lock(await quorumOf(proxies), "foo", { ttl: TTL }).acquire();

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
    await untilHeldAt(0, 1, 2);
    const lost = new Promise((resolve) => signal.addEventListener("abort", resolve));
    for (const proxy of proxies.slice(0, 2)) cut(proxy);
    // The first advance of the clock makes the renewal due, the second ends the lease.
    suspend(TTL / 2);
    // The second EXTEND shows that the first renewal has failed.
    await until("the renewal is repeated", () => proxies[2].requestCount("DLOCK.EXTEND") > 1);
    suspend(TTL / 2);
    await lost;
    assert.match(signal.reason.message, /too few members answered/);
  });
});
