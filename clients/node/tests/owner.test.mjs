// Owners, between which the server detects deadlocks: nested calls of `using` have one owner, and parallel
// calls have different owners.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { DeadlockError, Lock } from "dlock";
import Redlock from "dlock/redlock";
import { withOwner } from "../dist/owner.js";
import { allowSlowAnswers, mastersFor, onEachServer, until } from "./support.mjs";

allowSlowAnswers();

// Ends the wait of a caller that should have got a DeadlockError, ms.
const LIMIT = 60_000;

/** Returns a function whose promise resolves once it was called `count` times. It fails if that takes too long, for
 * example because another caller has failed before its call. */
function barrier(count) {
  let arrived = 0;
  return () => {
    arrived += 1;
    return until(`${count} callers are at the barrier`, () => arrived === count);
  };
}

onEachServer(
  (env) => {
    const { masters, proxies, quorumOf, untilAnyWaiter } = mastersFor(env);
    const services = {
      "one server": () => env.client(masters[0].url),
      "a quorum": () => quorumOf(masters),
    };

    for (const [what, make] of Object.entries(services)) {
      test(`one of two callers that lock in opposite order gets a DeadlockError: ${what}`, async () => {
        const service = await make();
        const bothHoldOne = barrier(2);
        const nested = (outer, inner) =>
          new Lock(service, outer).using(async () => {
            await bothHoldOne();
            return new Lock(service, inner).using(() => inner);
          });
        const outcomes = await Promise.allSettled([nested("a", "b"), nested("b", "a")]);
        const refused = outcomes.filter(({ status }) => status === "rejected");
        assert.equal(refused.length, 1, `${outcomes.map(({ reason }) => reason)}`);
        assert(refused[0].reason instanceof DeadlockError, refused[0].reason);
        assert.match(
          refused[0].reason.message,
          /^DEADLOCK .* -> .*, at the lock [ab]: release your locks, then retry$/,
        );
      });

      test(`a caller that acquires a lock that it already holds gets a DeadlockError: ${what}`, async () => {
        const lock = new Lock(await make(), "foo");
        await lock.using(
          () =>
            assert.rejects(lock.acquire({ owner: "mine", timeout: LIMIT }).then(assert.fail), DeadlockError),
          {
            owner: "mine",
          },
        );
        await lock.using(() =>
          assert.rejects(lock.using(assert.fail, { timeout: LIMIT }), {
            name: "DeadlockError",
            message:
              /^DEADLOCK .*, at the lock foo: this owner would wait for itself: release the lock first$/,
          }),
        );
        await lock.using(() => {});
      });

      test(`branches that run in parallel get no DeadlockError: ${what}`, async () => {
        const service = await make();
        const lock = (key) => new Lock(service, key);
        let endBranch;
        const mayEnd = new Promise((resolve) => (endBranch = resolve));
        let branchHoldsC = false;
        let rivalHoldsB = false;
        const rival = lock("b").using(async () => {
          rivalHoldsB = true;
          await until("one branch waits for b, and the other one holds c", () => branchHoldsC);
          const waiting = lock("c").using(() => {});
          try {
            // The server accepts this wait, as the branch that holds c waits for no lock.
            await untilAnyWaiter("c");
          } finally {
            endBranch();
          }
          await waiting;
        });
        await until("the rival holds b", () => rivalHoldsB);
        const branches = lock("a").using(() =>
          Promise.all([
            lock("b").using(() => {}),
            lock("c").using(async () => {
              await untilAnyWaiter("b");
              branchHoldsC = true;
              await mayEnd;
            }),
          ]),
        );
        await Promise.all([rival, branches]);
      });
    }

    test("a wait after the loss of the outer lock gets no DeadlockError while the server retains that lock", async () => {
      const [master, proxy] = [masters[0], proxies[0]];
      const outer = new Lock(await env.client(proxy.url), "a", { renew: false });
      const inner = new Lock(await env.client(master.url), "a");
      let isAcquired = false;
      const why = await outer
        .using(async (hold) => {
          // Once the client has sent the EXTEND, it relies on no lease longer than 1 ms. The server does not
          // receive the EXTEND, and retains the hold.
          proxy.stall();
          hold.extend(1).catch(() => {});
          await until("the hold is lost", () => hold.signal.aborted);
          const waiting = inner.using(() => (isAcquired = true));
          // `waiting` cannot be granted yet, so it ends the race only if it fails.
          await Promise.race([waiting, untilAnyWaiter("a")]);
          await master.ask("DLOCK.RELEASE", "a", hold.token);
          await waiting;
          proxy.breakStalled();
        })
        .catch((why) => why);
      assert(isAcquired, why);
    });

    test("a wait gets no DeadlockError because of a position that its owner has given up", async () => {
      const [master, proxy] = [masters[0], proxies[0]];
      const lock = new Lock(await env.client(proxy.url), "foo");
      await master.ask("DLOCK.ACQUIRE", "foo", "holder", 60_000);
      const controller = new AbortController();
      const aborted = lock.acquire({ owner: "mine", signal: controller.signal }).catch((why) => why);
      await untilAnyWaiter();
      // The server does not receive the RELEASE of the aborted wait, and retains its position.
      proxy.stall();
      controller.abort();
      const other = new Lock(await env.client(master.url), "foo");
      const waiting = other.acquire({ owner: "mine" });
      await Promise.race([waiting, until("both wait", async () => (await master.waiters()) === 2)]);
      proxy.breakStalled();
      assert.equal((await aborted).name, "AbortError");
      await master.ask("DLOCK.RELEASE", "foo", "holder");
      await (await waiting).release();
    });

    test("a deadlock of a quorum is found after its members were silent for a round", async () => {
      const quorum = await quorumOf(proxies, 1000);
      const settled = await playDeadlock(quorum);
      const refused = settled.filter(({ status }) => status === "rejected");
      assert.equal(refused.length, 1, `${refused.map(({ reason }) => reason)}`);
      assert(refused[0].reason instanceof DeadlockError, refused[0].reason);
    });

    /** Two callers lock in opposite order, and all members are silent for a round of each. Returns the two outcomes. */
    async function playDeadlock(quorum) {
      const bothHoldOne = barrier(2);
      // A round that fails in the silence is followed by requests to release its token, or for run ids.
      const followUps = () =>
        proxies.reduce(
          (sum, proxy) => sum + proxy.requestCount("DLOCK.RELEASE") + proxy.requestCount("server"),
          0,
        );
      // On a busy machine, rounds for the outer locks fail, too. Their requests do not count.
      let before;
      const beginSilence = () => {
        if (before !== undefined) return;
        before = followUps();
        for (const proxy of proxies) proxy.silent = true;
      };
      const nested = (outer, inner) =>
        new Lock(quorum, outer).using(async () => {
          await bothHoldOne();
          beginSilence();
          return new Lock(quorum, inner).using(() => inner, { timeout: LIMIT });
        });
      const callers = [nested("a", "b"), nested("b", "a")];
      await until("rounds have failed", () => before !== undefined && followUps() >= before + 4);
      for (const proxy of proxies) proxy.silent = false;
      return Promise.allSettled(callers);
    }

    /** Returns a quorum after its client has found the first member silent. */
    async function quorumWithSilent() {
      const quorum = await quorumOf(proxies);
      const { limit } = quorum;
      // The client then knows the order of the queues.
      await new Lock(quorum, "c").using(() => {});
      quorum.limit = 1000;
      proxies[0].silent = true;
      // On a busy machine, others may be silent, too.
      await until("only the first member is silent", async () => {
        await new Lock(quorum, "c").using(() => {}).catch(() => {});
        return quorum.channels.map(({ isSilent }) => isSilent).join() === "true,false,false";
      });
      quorum.limit = limit;
      return quorum;
    }

    const untilWaiter = (at, key) =>
      until(`a client waits at master ${at}`, async () => (await masters[at].waiters(key)) === 1);

    /** Begins a wait for the lock "a", which another caller holds. */
    const beginWait = (quorum, owner, options) => {
      const waiting = new Lock(quorum, "a", { ttl: 3000, owner }).acquire({ timeout: LIMIT / 2, ...options });
      // A test awaits it later.
      waiting.catch(() => {});
      return waiting;
    };

    /** Begins such a wait in the queue of the second member, as the first one is silent meanwhile. Resolves to an object
     * with the wait. */
    async function waitInSecondQueue(owner) {
      const quorum = await quorumWithSilent();
      const waiting = beginWait(quorum, owner);
      await untilWaiter(1, "a");
      proxies[0].silent = false;
      await until("the first member answers", () => !quorum.channels[0].isSilent);
      return { waiting };
    }

    /** Acquires a lock at all masters. */
    async function holdAtAll(quorum, key, owner) {
      const hold = await new Lock(quorum, key, { owner }).acquire();
      const isHeld = () => Promise.all(masters.map((master) => master.exists(key)));
      await until("all masters have the hold", async () => (await isHeld()).every(Boolean));
      return hold;
    }

    test("a deadlock of waits in the queues of two members of a quorum is found", async () => {
      const quorum = await quorumOf(masters);
      const holdOfB = await holdAtAll(quorum, "b", "mine");
      const holdOfA = await holdAtAll(quorum, "a", "other");
      const other = new Lock(quorum, "b", { owner: "other" }).acquire();
      await untilWaiter(0, "b");
      const { waiting } = await waitInSecondQueue("mine");
      await assert.rejects(waiting, {
        name: "DeadlockError",
        message: /^DEADLOCK mine -> other -> mine, at the lock a: release your locks, then retry$/,
      });
      await holdOfB.release();
      await (await other).release();
      await holdOfA.release();
    });

    test("other answers of an earlier member do not end a wait in a later queue", async () => {
      const asked = () => proxies[0].requestCount("DLOCK.ACQUIRE");
      const untilAsked = async () => {
        const before = asked();
        await until("the first member is asked", () => asked() > before);
      };
      const hold = await holdAtAll(await quorumOf(masters), "a", "other");
      const { waiting } = await waitInSecondQueue("mine");
      // A position that the owner of the wait has given up: the answer is a deadlock of the owner with itself.
      // A question of the wait may be in the queue for a moment: then this is a deadlock, too.
      const queue = () =>
        masters[0].ask("DLOCK.ACQUIRE", "a", "stale", LIMIT, "QUEUE", LIMIT, "OWNER", "mine");
      await until("the position is queued", () =>
        queue().then(
          () => true,
          () => false,
        ),
      );
      await untilAsked();
      await untilAsked();
      // Null.
      await masters[0].ask("DLOCK.RELEASE", "a", "stale");
      await untilAsked();
      await until("no position is left", async () => (await masters[0].waiters("a")) === 0);
      // A grant.
      await masters[0].ask("DLOCK.RELEASE", "a", hold.token);
      await untilAsked();
      await until("no hold is left", async () => !(await masters[0].exists("a")));
      await hold.release();
      await (await waiting).release();
    });

    test("a wait in the first queue, or without an owner, asks no other member", async () => {
      const hold = await holdAtAll(await quorumOf(masters), "a");
      const asked = () => proxies.map((proxy) => proxy.requestCount("DLOCK.ACQUIRE"));
      /** Waits until a wait in the queue of this member has repeated its request. Returns the requests to all. */
      const repeat = async (queue) => {
        const before = asked();
        await until("it repeats its request", () => asked()[queue] >= before[queue] + 3);
        return asked().map((count, at) => count - before[at]);
      };
      const stop = new AbortController();
      const first = beginWait(await quorumOf(proxies), "mine", { signal: stop.signal });
      await untilWaiter(0, "a");
      assert.deepEqual((await repeat(0)).slice(1), [0, 0]);
      stop.abort();
      await assert.rejects(first, { name: "AbortError" });
      const { waiting } = await waitInSecondQueue(null);
      const [atFirst, , atThird] = await repeat(1);
      assert.deepEqual([atFirst, atThird], [0, 0]);
      await hold.release();
      await (await waiting).release();
    });

    test("acquire has an owner only if the user names one", async () => {
      const client = await env.client(masters[0].url);
      for (const [owner, timeout, isDeadlock] of [
        [undefined, 100, false],
        ["first", undefined, true],
      ]) {
        const hold = await new Lock(client, "a", { owner }).acquire();
        const rival = await new Lock(client, "b").acquire({ owner: "second" });
        const waiting = new Lock(client, "a").acquire({ owner: "second" });
        await untilAnyWaiter("a");
        // The second owner holds b and waits for a. If the holder of a has an owner, its wait for b closes a
        // cycle.
        const waitForB = new Lock(client, "b", { owner }).acquire({ timeout });
        const why = await waitForB.catch((why) => why);
        assert.equal(why instanceof DeadlockError, isDeadlock, why);
        await hold.release();
        await (await waiting).release();
        await rival.release();
      }
    });

    test("one of two callers of redlock.using that lock in opposite order gets a DeadlockError", async () => {
      // With retryCount -1, the calls wait without a limit.
      const redlock = new Redlock([await env.client(masters[0].url)], { retryCount: -1 });
      const bothHoldOne = barrier(2);
      const nested = (outer, inner) =>
        redlock.using([outer], 30_000, async () => {
          await bothHoldOne();
          await redlock.using([inner], 30_000, async () => {});
        });
      const outcomes = await Promise.allSettled([nested("a", "b"), nested("b", "a")]);
      const refused = outcomes.filter(({ status }) => status === "rejected");
      assert.equal(refused.length, 1);
      assert(refused[0].reason.cause instanceof DeadlockError, refused[0].reason);
    });
  },
  { isParallel: true },
);

describe("owners", () => {
  /** Runs `withOwner`, on which `using` is built, without servers. Resolves to the id of the owner. */
  const using = (routine = () => {}, { name, release = async () => {} } = {}) => {
    let id;
    const acquire = async (owner) => {
      id = owner;
    };
    return withOwner(name, acquire, routine, release).then(() => id);
  };

  test("parallel calls have different owners", async () => {
    const [one, other] = await Promise.all([using(), using()]);
    assert.notEqual(one, other);
  });

  test("nested calls that run one after the other have the owner of the outer call", async () => {
    const seen = [];
    const outer = await using(async () => {
      seen.push(await using(async () => seen.push(await using())));
      seen.push(await using());
    });
    assert.deepEqual(seen, [outer, outer, outer]);
  });

  test("the second of two parallel branches has a new owner, which its nested calls share", async () => {
    let nested;
    const seen = [];
    const outer = await using(async () => {
      const branches = [using(), using(async () => (nested = await using()))];
      seen.push(...(await Promise.all(branches)));
      // The branches have ended.
      seen.push(await using());
    });
    assert.equal(seen[0], outer);
    assert.notEqual(seen[1], outer);
    assert.equal(nested, seen[1]);
    assert.equal(seen[2], outer);
  });

  test("a call that begins after the outer routine has ended has a new owner", async () => {
    let late;
    let reportEnd;
    const outerHasEnded = new Promise((resolve) => (reportEnd = resolve));
    const outer = await using(() => {
      late = outerHasEnded.then(() => using());
    });
    reportEnd();
    assert.notEqual(await late, outer);
  });

  test("an owner is not used again while a nested call that was not awaited runs", async () => {
    let endBranch;
    const mayEnd = new Promise((resolve) => (endBranch = resolve));
    const seen = [];
    const outer = await using(async () => {
      let branch;
      seen.push(
        await using(() => {
          branch = using(() => mayEnd);
        }),
      );
      seen.push(await using());
      endBranch();
      await branch;
      seen.push(await using());
    });
    assert.equal(seen[0], outer);
    assert.notEqual(seen[1], outer);
    assert.equal(seen[2], outer);
  });

  test("a routine has one owner, even after a release that failed", async () => {
    const release = () => Promise.reject(new Error("no answer"));
    let next;
    const outer = await using(async () => {
      await assert.rejects(
        using(() => {}, { release }),
        /no answer/,
      );
      next = await using();
    });
    assert.equal(next, outer);
  });

  test("a named owner passes to the nested calls, and null means none", async () => {
    let nested;
    assert.equal(await using(async () => (nested = await using()), { name: "mine" }), "mine");
    assert.equal(nested, "mine");
    assert.equal(await using(async () => (nested = await using()), { name: null }), undefined);
    // The new owner of the nested call: a random name of 27 characters.
    assert.match(nested, /^[\w-]{27}$/);
    for (const name of ["", "x".repeat(256), 7])
      await assert.rejects(
        using(() => {}, { name }),
        RangeError,
      );
  });
});
