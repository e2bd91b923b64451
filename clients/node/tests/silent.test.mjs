// Members that are missing or silent: no acquisition waits for such a member a second time, a split vote ends,
// and all clients wait in one queue.

import assert from "node:assert/strict";
import { afterEach, describe, test } from "node:test";
import { Lock, NoAnswerError } from "dlock";
import { times } from "../dist/waits.js";
import { info, unknownMembers } from "./members.mjs";
import { mastersFor, onEach, until } from "./support.mjs";

// A busy machine confirms releases late.
Object.assign(times, { nodeTimeout: 10_000, patience: 20_000 });

const MINUTES = 600_000;

onEach(
  (bench) => {
    const { masters, proxies, quorumOf, isHeldAt, waits } = mastersFor(bench);
    afterEach(() => {
      for (const master of masters) master.thaw();
    });
    // No lease ends during a test.
    const lock = (quorum, options) => new Lock(quorum, "foo", { ttl: MINUTES, ...options });
    const rival = (at, token = "rival") => masters[at].ask("DLOCK.ACQUIRE", "foo", token, MINUTES);
    const release = (at, token = "rival") => masters[at].ask("DLOCK.RELEASE", "foo", token);

    /** From now on, a wait for a silent member lasts for the rest of the test. */
    const failIfWaitingForSilent = (quorum) => Object.assign(quorum, { limit: MINUTES });

    /** Returns the outcome of `work`. Fails if it does not end within the limit of `until`. */
    async function endsInTime(what, work) {
      let done = false;
      const outcome = work.finally(() => {
        done = true;
      });
      outcome.catch(() => {});
      await until(what, () => done);
      return outcome;
    }

    /** Returns a quorum that knows that one of its members is silent. */
    async function withSilent(at) {
      const quorum = await quorumOf(proxies);
      await lock(quorum).using(() => isHeldAt(0, 1, 2));
      Object.assign(quorum, { limit: 250 });
      proxies[at].silent = true;
      await lock(quorum).using(() => {});
      await until(`${at} is known to be silent`, () => quorum.channels[at].isSilent);
      return failIfWaitingForSilent(quorum);
    }

    describe("five members", () => {
      const { masters, proxies, quorumOf, isHeldAt } = mastersFor(bench, 5);

      for (const fault of ["silent", "refuse"]) {
        test(`no acquisition waits for two of five members that are missing from the start: ${fault}`, async () => {
          for (const at of [0, 3]) proxies[at][fault] = true;
          const quorum = await quorumOf(proxies, 250);
          await lock(quorum).using(() => {});
          failIfWaitingForSilent(quorum);
          const calls = () => Promise.all([1, 2, 4].map((at) => masters[at].calls("dlock.acquire")));
          const before = await calls();
          for (let round = 0; round < 5; round++) {
            await endsInTime(
              `round ${round}`,
              lock(quorum, { fenced: true }).using(() => {}),
            );
            await isHeldAt();
          }
          const oneEach = before.map((count) => count + 5);
          assert.deepEqual(await calls(), oneEach, "each acquisition needed one round");
          for (const at of [0, 3]) {
            assert.equal(proxies[at].asked("DLOCK.ACQUIRE"), 0, "no ACQUIRE without a run id");
            proxies[at][fault] = false;
          }
          await until("all members grant the lock", async () => {
            const hold = await lock(quorum).acquire();
            const held = await Promise.all(masters.map((master) => master.exists()));
            await hold.release();
            return held.every(Boolean);
          });
        });
      }
    });

    for (const at of [0, 1, 2]) {
      test(`no acquisition waits for member ${at} of three after it fell silent`, async () => {
        const quorum = await withSilent(at);
        const before = proxies[at].asked("DLOCK.ACQUIRE");
        for (let round = 0; round < 3; round++)
          await endsInTime(
            `round ${round}`,
            lock(quorum).using(() => {}),
          );
        // The second client waits for the first one.
        let inside = 0;
        const work = () => {
          inside += 1;
          assert.equal(inside, 1);
          inside -= 1;
        };
        const both = [1, 2].map(() => lock(quorum).using(work));
        await endsInTime("both clients have had the lock", Promise.all(both));
        assert.equal(proxies[at].asked("DLOCK.ACQUIRE"), before, "no ACQUIRE to a silent member");
        proxies[at].silent = false;
        await until("the member answers", () => !quorum.channels[at].isSilent);
        const hold = await lock(quorum).acquire();
        await isHeldAt(0, 1, 2);
        await hold.release();
        await isHeldAt();
      });
    }

    test("a client without a majority gives its votes back and queues while one member is silent", async () => {
      const quorum = await withSilent(2);
      await rival(0);
      const hold = lock(quorum).acquire();
      await waits(1, 0, 0);
      await isHeldAt(0);
      await release(0);
      await (await hold).release();
      await isHeldAt();
    });

    test("tryAcquire wins after a split vote while one member is silent", async () => {
      const quorum = await withSilent(2);
      await Promise.all([rival(0, "one"), rival(1, "other")]);
      const inspected = () => proxies[0].asked("DLOCK.INSPECT");
      const before = inspected();
      const tried = lock(quorum).tryAcquire();
      await until("the client has found no holder of a majority", () => inspected() > before + 1);
      await Promise.all([release(0, "one"), release(1, "other")]);
      await (await tried).release();
      await isHeldAt();
    });

    test("tryAcquire returns null after one request when another client has a majority", async () => {
      const quorum = await quorumOf(proxies);
      const hold = await lock(quorum).acquire();
      await isHeldAt(0, 1, 2);
      const before = proxies[0].asked("DLOCK.ACQUIRE");
      assert.equal(await lock(await quorumOf(proxies)).tryAcquire(), null);
      assert.equal(proxies[0].asked("DLOCK.ACQUIRE"), before + 1);
      await hold.release();
    });

    test("waits leave the queue of a member that stops, and leave nothing there", async () => {
      const quorums = await Promise.all([1, 2, 3].map(() => quorumOf(masters, 1000)));
      const hold = await lock(await quorumOf(masters)).acquire();
      await isHeldAt(0, 1, 2);
      const order = [];
      const done = quorums.map((quorum, at) => lock(quorum).using(() => order.push(at)));
      await waits(3, 0, 0);
      const before = await masters[0].calls("dlock.acquire");
      masters[0].freeze();
      await until("all clients wait at the next member", async () => (await masters[1].waiters()) === 3);
      await hold.release();
      await endsInTime("all had their turn", Promise.all(done));
      assert.deepEqual(order.sort(), [0, 1, 2]);
      masters[0].thaw();
      await isHeldAt();
      await waits(0, 0, 0);
      // Each of the three waits had at most three requests under way when the member stopped.
      assert(
        (await masters[0].calls("dlock.acquire")) <= before + 9,
        `${before}, ${await masters[0].calls("dlock.acquire")}`,
      );
    });

    test("a client that is refused in its turn moves to the queue of the first member that refuses", async () => {
      await Promise.all([rival(1), rival(2)]);
      const hold = lock(await quorumOf(masters)).acquire();
      await waits(0, 1, 0);
      await isHeldAt(1, 2);
      // Both members are free now.
      await Promise.all([release(1), release(2)]);
      await isHeldAt(0, 1, 2);
      await (await hold).release();
      await isHeldAt();
    });

    test("a partial hold at the member of the queue keeps no client out", async () => {
      await rival(0, "stale");
      const [one, other] = [await quorumOf(masters), await quorumOf(masters)];
      const before = await masters[0].calls("dlock.acquire");
      const hold = await endsInTime("the client does not wait behind the partial hold", lock(one).acquire());
      assert.equal(await masters[0].calls("dlock.acquire"), before + 1, "one try");
      await isHeldAt(0, 1, 2);
      const next = lock(other).acquire();
      // The first queue does not move, and the next one does.
      await waits(0, 1, 0);
      await hold.release();
      await (await endsInTime("the next client acquires the lock", next)).release();
      await isHeldAt(0);
    });

    test("a newcomer does not overtake the queue by a majority of the other members", async () => {
      await rival(0);
      await masters[0].ask("DLOCK.ACQUIRE", "foo", "waits", MINUTES, "QUEUE", MINUTES);
      const hold = lock(await quorumOf(masters)).acquire();
      await waits(2, 0, 0);
      await isHeldAt(0);
      for (const token of ["rival", "waits"]) await release(0, token);
      await (await hold).release();
    });

    test("a client that cannot reach the member of the queue gets its share", async () => {
      const [cut, other] = [await quorumOf(proxies, 250), await quorumOf(masters)];
      await lock(cut).using(() => {});
      proxies[0].silent = true;
      const counts = [0, 0];
      const inside = [];
      const work = async (quorum, at) => {
        while (counts[at] < 10) {
          await lock(quorum, { fenced: true }).using((hold) => {
            inside.push(hold.fence);
            counts[at] += 1;
          });
        }
      };
      await endsInTime("both had ten turns", Promise.all([work(cut, 0), work(other, 1)]));
      assert(
        inside.every((fence, at) => at === 0 || fence > inside[at - 1]),
        `${inside}`,
      );
      proxies[0].silent = false;
      await isHeldAt();
    });
  },
  { isParallel: true },
);

test("identifyMembers waits once for each member, and for silent ones only while they are needed", () => {
  const { members, reach } = unknownMembers();
  const identify = () => members.identifyMembers(Number.POSITIVE_INFINITY).next().value;
  const fails = (member) => {
    reach[member].isSilent = true;
    members.record(member, new NoAnswerError("away"));
  };
  const first = identify();
  for (const member of [0, 1]) members.record(member, info(member));
  assert(
    !first.enough(new Map([0, 1].map((member) => [member, ""]))),
    "the client waits for a member that was never asked",
  );
  fails(2);
  assert.deepEqual(members.voters(), [0, 1]);
  assert.equal(identify(), undefined, "the silent member was asked a moment ago");
  fails(1);
  const needed = identify();
  assert.deepEqual(needed.members, [1, 2]);
  assert(!needed.enough(new Map()), "one of the two known members is silent");
  reach[1].isSilent = false;
  assert(needed.enough(new Map()), "a member that answers again may vote");
  assert.deepEqual(members.voters(), [0, 1]);
});
