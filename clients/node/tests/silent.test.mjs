// Members that are down, or silent (they do not answer in time): no acquisition waits for a member that is known
// to be silent, a split vote ends, and all clients wait in one queue.

import assert from "node:assert/strict";
import { afterEach, describe, test } from "node:test";
import { Lock, NoAnswerError } from "dlock";
import { info, unknownMembers } from "./members.mjs";
import { allowSlowAnswers, mastersFor, onEachServer, until } from "./support.mjs";

allowSlowAnswers();

const TEN_MINUTES = 600_000;

onEachServer(
  (env) => {
    const { masters, proxies, quorumOf, untilHeldAt, untilFree, untilWaiters } = mastersFor(env);
    afterEach(() => {
      for (const master of masters) master.thaw();
    });
    // No lease ends during a test.
    const lock = (quorum, options) => new Lock(quorum, "foo", { ttl: TEN_MINUTES, ...options });
    const holdByRival = (at, token = "rival") => masters[at].ask("DLOCK.ACQUIRE", "foo", token, TEN_MINUTES);
    const releaseByRival = (at, token = "rival") => masters[at].ask("DLOCK.RELEASE", "foo", token);

    /** Sets the time limit of an answer to ten minutes. If an acquisition then waits for a silent member,
     * `withinLimit` fails. */
    const neverGiveUpOnSilent = (quorum) => {
      quorum.limit = TEN_MINUTES;
    };

    /** Returns the outcome of `work`. Fails if the work does not end within the limit of `until`, a minute. */
    async function withinLimit(what, work) {
      let isDone = false;
      const outcome = work.finally(() => {
        isDone = true;
      });
      outcome.catch(() => {});
      await until(what, () => isDone);
      return outcome;
    }

    /** Returns a quorum after its client has found one member silent. */
    async function quorumWithSilent(at) {
      const quorum = await quorumOf(proxies);
      await lock(quorum).using(() => untilHeldAt(0, 1, 2));
      // The member reads its RELEASE before it falls silent. Otherwise it would keep the hold for ten minutes.
      await untilFree();
      quorum.limit = 2000;
      proxies[at].silent = true;
      await lock(quorum).using(() => {});
      await until(`the client has found member ${at} silent`, () => quorum.channels[at].isSilent);
      neverGiveUpOnSilent(quorum);
      return quorum;
    }

    describe("five members", () => {
      const { masters, proxies, quorumOf, untilFree } = mastersFor(env, 5);

      for (const fault of ["silent", "refuse"]) {
        test(`no acquisition waits for two of five members that are down from the start: ${fault}`, async () => {
          for (const at of [0, 3]) proxies[at][fault] = true;
          const quorum = await quorumOf(proxies, 250);
          await lock(quorum).using(() => {});
          neverGiveUpOnSilent(quorum);
          const calls = () => Promise.all([1, 2, 4].map((at) => masters[at].calls("dlock.acquire")));
          const before = await calls();
          for (let round = 0; round < 5; round++) {
            await withinLimit(
              `round ${round}`,
              lock(quorum, { fenced: true }).using(() => {}),
            );
            await untilFree();
          }
          const oneEach = before.map((count) => count + 5);
          assert.deepEqual(await calls(), oneEach, "each acquisition needed one round");
          for (const at of [0, 3]) {
            assert.equal(
              proxies[at].requestCount("DLOCK.ACQUIRE"),
              0,
              "no ACQUIRE to a member whose run id is unknown",
            );
            proxies[at][fault] = false;
          }
          await until("all members grant the lock", async () => {
            const hold = await lock(quorum).acquire();
            const held = await Promise.all(masters.map((master) => master.exists()));
            await hold.release();
            await untilFree();
            return held.every(Boolean);
          });
        });
      }
    });

    for (const at of [0, 1, 2]) {
      test(`no acquisition waits for member ${at} of three after it fell silent`, async () => {
        const quorum = await quorumWithSilent(at);
        const before = proxies[at].requestCount("DLOCK.ACQUIRE");
        for (let round = 0; round < 3; round++)
          await withinLimit(
            `round ${round}`,
            lock(quorum).using(() => {}),
          );
        // One of the two callers waits for the other.
        const both = [1, 2].map(() => lock(quorum).using(() => {}));
        await withinLimit("both callers have had the lock", Promise.all(both));
        assert.equal(proxies[at].requestCount("DLOCK.ACQUIRE"), before, "no ACQUIRE to a silent member");
        proxies[at].silent = false;
        await until("the member answers", () => !quorum.channels[at].isSilent);
        const hold = await lock(quorum).acquire();
        await untilHeldAt(0, 1, 2);
        await hold.release();
        await untilFree();
      });
    }

    test("a client that gets no majority while one member is silent releases its grants, and queues", async () => {
      const quorum = await quorumWithSilent(2);
      await holdByRival(0);
      const acquiring = lock(quorum).acquire();
      await untilWaiters(1, 0, 0);
      await untilHeldAt(0);
      await releaseByRival(0);
      await (await acquiring).release();
      await untilFree();
    });

    test("tryAcquire wins after a split vote while one member is silent", async () => {
      const quorum = await quorumWithSilent(2);
      await Promise.all([holdByRival(0, "one"), holdByRival(1, "other")]);
      const inspects = () => proxies[0].requestCount("DLOCK.INSPECT");
      const before = inspects();
      const tried = lock(quorum).tryAcquire();
      // After each split vote, the client reads whether any holder has a majority.
      await until("two votes were split", () => inspects() > before + 1);
      await Promise.all([releaseByRival(0, "one"), releaseByRival(1, "other")]);
      await (await tried).release();
      await untilFree();
    });

    test("tryAcquire returns null after one request when another client has a majority", async () => {
      const quorum = await quorumOf(proxies);
      const hold = await lock(quorum).acquire();
      await untilHeldAt(0, 1, 2);
      const before = proxies[0].requestCount("DLOCK.ACQUIRE");
      assert.equal(await lock(await quorumOf(proxies)).tryAcquire(), null);
      assert.equal(proxies[0].requestCount("DLOCK.ACQUIRE"), before + 1);
      await hold.release();
    });

    test("waits leave the queue of a member that stops, and leave nothing there", async () => {
      const quorums = await Promise.all([1, 2, 3].map(() => quorumOf(masters, 4000)));
      const hold = await lock(await quorumOf(masters)).acquire();
      await untilHeldAt(0, 1, 2);
      const served = [];
      const done = quorums.map((quorum, at) => lock(quorum).using(() => served.push(at)));
      await untilWaiters(3, 0, 0);
      const before = await masters[0].calls("dlock.acquire");
      masters[0].freeze();
      await until("all clients wait at the next member", async () => (await masters[1].waiters()) === 3);
      await hold.release();
      await withinLimit("all clients have had the lock", Promise.all(done));
      assert.deepEqual(served.sort(), [0, 1, 2]);
      masters[0].thaw();
      await untilFree();
      await untilWaiters(0, 0, 0);
      // The thawed member executes the requests that it had not read: at most three of each of the three waits.
      assert(
        (await masters[0].calls("dlock.acquire")) <= before + 9,
        `${before}, ${await masters[0].calls("dlock.acquire")}`,
      );
    });

    test("if the first member grants and the others refuse, the client waits in the queue of the second member", async () => {
      await Promise.all([holdByRival(1), holdByRival(2)]);
      const acquiring = lock(await quorumOf(masters)).acquire();
      await untilWaiters(0, 1, 0);
      await untilHeldAt(1, 2);
      await Promise.all([releaseByRival(1), releaseByRival(2)]);
      await untilHeldAt(0, 1, 2);
      await (await acquiring).release();
      await untilFree();
    });

    test("a partial hold at the member where clients queue keeps no client out", async () => {
      // The hold of a client that died.
      await holdByRival(0, "stale");
      const [one, other] = [await quorumOf(masters), await quorumOf(masters)];
      const before = await masters[0].calls("dlock.acquire");
      const hold = await withinLimit("the client does not wait behind the partial hold", lock(one).acquire());
      assert.equal(await masters[0].calls("dlock.acquire"), before + 1, "one request");
      await untilHeldAt(0, 1, 2);
      const next = lock(other).acquire();
      // The partial hold keeps the first queue from moving, so the client waits in the second one.
      await untilWaiters(0, 1, 0);
      await hold.release();
      await (await withinLimit("the next client acquires the lock", next)).release();
      await untilHeldAt(0);
    });

    test("a newcomer does not overtake the queue of the first member, even if the other two members are free", async () => {
      await holdByRival(0);
      await masters[0].ask("DLOCK.ACQUIRE", "foo", "waiter", TEN_MINUTES, "QUEUE", TEN_MINUTES);
      const acquiring = lock(await quorumOf(masters)).acquire();
      await untilWaiters(2, 0, 0);
      await untilHeldAt(0);
      for (const token of ["rival", "waiter"]) await releaseByRival(0, token);
      await (await acquiring).release();
    });

    test("a client that cannot reach the member where clients queue acquires the lock as often as another client", async () => {
      const [cutOff, other] = [await quorumOf(proxies, 250), await quorumOf(masters)];
      await lock(cutOff).using(() => {});
      proxies[0].silent = true;
      const fences = [];
      const acquireTenTimes = async (quorum) => {
        for (let count = 0; count < 10; count++) {
          await lock(quorum, { fenced: true }).using((hold) => fences.push(hold.fence));
        }
      };
      const both = [acquireTenTimes(cutOff), acquireTenTimes(other)];
      await withinLimit("both clients have had the lock ten times", Promise.all(both));
      assert(
        fences.every((fence, at) => at === 0 || fence > fences[at - 1]),
        `${fences}`,
      );
      proxies[0].silent = false;
      await untilFree();
    });
  },
  { isParallel: true },
);

test("identifyMembers waits for silent members only until a majority may vote", () => {
  const { members, channels } = unknownMembers();
  /** Returns the request for the unknown run ids; undefined if none is sent. */
  const identify = () => members.identifyMembers(Number.POSITIVE_INFINITY).next().value;
  const fallSilent = (member) => {
    channels[member].isSilent = true;
    members.record(member, new NoAnswerError("away"));
  };
  const first = identify();
  for (const member of [0, 1]) members.record(member, info(member));
  assert(
    !first.enough(new Map([0, 1].map((member) => [member, ""]))),
    "the client waits for a member that is not known to be silent",
  );
  fallSilent(2);
  assert.deepEqual(members.voters(), [0, 1]);
  assert.equal(identify(), undefined, "the silent member was asked a moment ago, and is not needed");
  fallSilent(1);
  const second = identify();
  assert.deepEqual(second.members, [1, 2]);
  assert(!second.enough(new Map()), "only one member may vote");
  channels[1].isSilent = false;
  assert(second.enough(new Map()), "a member that answers again may vote");
  assert.deepEqual(members.voters(), [0, 1]);
});
