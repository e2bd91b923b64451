// The API of node-redlock: the same tests for node-redlock itself and for dlock/redlock, which replaces it.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { describe, test } from "node:test";
import Ours, * as ours from "dlock/redlock";
import * as theirs from "redlock";
import { times } from "../dist/waits.js";
import { allowSlowAnswers, mastersFor, onEachServer, until } from "./support.mjs";

allowSlowAnswers(5000);

const require = createRequire(import.meta.url);
const Theirs = theirs.default;
const libraries = [
  ["node-redlock", Theirs, theirs],
  ["dlock/redlock", Ours, ours],
];

onEachServer(
  (env) => {
    const { masters, proxies, clients } = mastersFor(env);

    for (const [name, Redlock, { ExecutionError, Lock, ResourceLockedError }] of libraries) {
      for (const members of [1, 3]) {
        describe(`${name}, ${members} members`, () => {
          const make = async (settings) => new Redlock(await clients(masters.slice(0, members)), settings);

          test("a lock is acquired, extended and released", async () => {
            const redlock = await make();
            const first = await redlock.acquire(["foo"], 60_000);
            await until("the lock is held", () => masters[0].exists());
            const { expiration } = first;
            assert(expiration > Date.now() && expiration <= Date.now() + 60_000);
            const second = await first.extend(120_000);
            assert.equal(first.expiration, 0);
            assert(second.expiration > expiration + 30_000);
            assert.deepEqual(second.resources, ["foo"]);
            const { attempts } = await second.release();
            assert.equal((await attempts[0]).votesFor.size, members);
            assert.equal(second.expiration, 0);
            await until("the lock is free", async () => !(await masters[0].exists()));
          });

          test("acquire of a locked resource throws an ExecutionError whose votes are ResourceLockedErrors", async () => {
            const redlock = await make({ retryCount: 0 });
            const errors = [];
            redlock.on("error", (error) => errors.push(error));
            const lock = await redlock.acquire(["foo"], 60_000);
            const failure = await redlock.acquire(["foo"], 60_000).catch((why) => why);
            assert(failure instanceof ExecutionError);
            const votes = await failure.attempts[0];
            assert.deepEqual(
              [votes.membershipSize, votes.quorumSize],
              [members, Math.ceil((members + 1) / 2)],
            );
            assert([...votes.votesAgainst.values()].every((why) => why instanceof ResourceLockedError));
            assert(errors.length > 0 && errors.every((why) => why instanceof ResourceLockedError));
            await redlock.release(lock);
          });

          test("acquire throws an ExecutionError when the servers refuse writes", async () => {
            const redlock = await make({ retryCount: 0 });
            const servers = masters.slice(0, members);
            const requireReplicas = (replicas) =>
              Promise.all(
                servers.map((server) => server.ask("CONFIG", "SET", "min-replicas-to-write", replicas)),
              );
            await requireReplicas(1);
            // The servers refuse the releases, too. dlock's `acquire` waits for the releases until `patience` is over.
            try {
              await assert.rejects(redlock.acquire(["foo"], 1000), ExecutionError);
            } finally {
              await requireReplicas(0);
            }
          });

          test("acquire locks all resources or none of them", async () => {
            const redlock = await make({ retryCount: 0 });
            const lock = await redlock.acquire(["b"], 60_000);
            await assert.rejects(redlock.acquire(["a", "b"], 60_000), ExecutionError);
            await until("a is not locked", async () => !(await masters[0].exists("a")));
            await lock.release();
            const lockOfBoth = await redlock.acquire(["b", "a"], 60_000);
            assert.deepEqual(lockOfBoth.resources, ["b", "a"]);
            for (const key of lockOfBoth.resources)
              await until("the lock is held", () => masters[0].exists(key));
            await lockOfBoth.release();
          });

          test("acquire waits for a locked resource, for retryCount times retryDelay", async () => {
            const redlock = await make({ retryDelay: 50, retryJitter: 10, retryCount: 100 });
            const lock = await redlock.acquire(["foo"], 60_000);
            const waiting = redlock.acquire(["foo"], 60_000);
            await assert.rejects(redlock.acquire(["foo"], 60_000, { retryCount: 1 }), ExecutionError);
            await lock.release();
            await (await waiting).release();
          });

          test("using renews the lock during the routine, and releases it", async () => {
            const redlock = await make();
            // Each extension may be late by 5 s.
            const settings = { automaticExtensionThreshold: 5000 };
            const result = await redlock.using(["foo"], 6000, settings, async (signal) => {
              const end = Date.now() + 6500;
              await until("the first lease would have ended", () => Date.now() > end);
              assert(!signal.aborted);
              assert(await masters[0].exists());
              return 7;
            });
            assert.equal(result, 7);
            await until("the lock is free", async () => !(await masters[0].exists()));
            // The duration must be longer than the default threshold.
            await assert.rejects(
              redlock.using(["foo"], 100, async () => {}),
              /automaticExtensionThreshold/,
            );
          });

          test("using aborts the signal when the lock is lost", async () => {
            const redlock = await make({ retryCount: 0 });
            let reason;
            const used = redlock.using(["foo"], 1000, async (signal) => {
              await Promise.all(masters.map((server) => server.ask("DEL", "foo")));
              await until("the lock is lost", () => signal.aborted);
              reason = signal.error;
            });
            await assert.rejects(used, ExecutionError);
            assert(reason instanceof Error);
          });

          test("an expired lock can be neither extended nor released", async () => {
            const redlock = await make({ retryCount: 0 });
            const lock = await redlock.acquire(["foo"], 1500);
            await until("the lease expires", () => Date.now() > lock.expiration);
            for (const server of masters) {
              await until("the lease expires", async () => !(await server.exists()));
            }
            await assert.rejects(lock.extend(1000), ExecutionError);
            await assert.rejects(lock.release(), ExecutionError);
          });

          test("a lock cannot be extended again after its extension or release", async () => {
            const redlock = await make({ retryCount: 0 });
            const first = await redlock.acquire(["foo"], 60_000);
            const second = await first.extend(60_000);
            await assert.rejects(first.extend(60_000), ExecutionError);
            // `first` can still release the hold, because both objects have the same value.
            await first.release();
            await assert.rejects(second.extend(60_000), ExecutionError);
          });

          test("a lock that is constructed from the value of another lock can extend and release", async () => {
            const [first, second] = [await make({ retryCount: 0 }), await make({ retryCount: 0 })];
            const { resources, value, expiration } = await first.acquire(["a", "b"], 60_000);
            const copy = new Lock(second, resources, value, [], expiration);
            const { expiration: later } = await copy.extend(120_000);
            assert(later > expiration + 30_000);
            await copy.release();
            for (const key of resources)
              await until("the lock is free", async () => !(await masters[0].exists(key)));
            const unknown = new Lock(second, ["a"], "unknown", [], expiration);
            await assert.rejects(unknown.extend(1000), ExecutionError);
            await assert.rejects(unknown.release(), ExecutionError);
          });

          test("a duration that is not a whole number is refused", async () => {
            const redlock = await make({ retryCount: 0 });
            const lock = await redlock.acquire(["foo"], 60_000);
            for (const duration of [undefined, null, Number.NaN, 1.5]) {
              await assert.rejects(redlock.acquire(["bar"], duration));
              await assert.rejects(redlock.using(["bar"], duration, async () => {}));
              await assert.rejects(lock.extend(duration));
            }
            assert(!(await masters[0].exists("bar")));
            await lock.release();
          });

          test("a lock without resources lasts for the duration", async () => {
            const redlock = await make({ retryCount: 0 });
            const first = await redlock.acquire([], 60_000);
            assert(first.expiration <= Date.now() + 60_000);
            const second = await first.extend(1000);
            assert(second.expiration <= Date.now() + 1000);
            await second.release();
          });

          test("a setting that is not a number has its default value", async () => {
            const redlock = await make({ retryCount: undefined, retryJitter: null, retryDelay: 5 });
            const { retryCount, retryJitter, retryDelay } = redlock.settings;
            assert.deepEqual([retryCount, retryJitter, retryDelay], [10, 100, 5]);
            const lock = await redlock.acquire(["foo"], 60_000, null);
            await lock.release();
          });

          test("quit closes the clients", async () => {
            const redlock = await make();
            await redlock.quit();
            const hasEnded = (client) => client.status === "end";
            await until("the connections end", () => [...redlock.clients].every(hasEnded));
          });
        });
      }
    }

    test("locks of node-redlock and of dlock/redlock exclude each other", async () => {
      const settings = { retryDelay: 20, retryJitter: 1, retryCount: 0 };
      const [nodeRedlock, dlockRedlock] = [
        new Theirs(await clients([masters[0]]), settings),
        new Ours(await clients([masters[0]]), settings),
      ];
      for (const [holder, waiter] of [
        [nodeRedlock, dlockRedlock],
        [dlockRedlock, nodeRedlock],
      ]) {
        const lock = await holder.acquire(["foo"], 60_000);
        await assert.rejects(waiter.acquire(["foo"], 60_000));
        const waiting = waiter.acquire(["foo"], 60_000, { retryCount: 500 });
        await lock.release();
        await (await waiting).release();
      }
    });

    /** Locks `a` and `b` by `acquire` while another client holds `b`. That client releases `b` once `a` was renewed. */
    async function acquireAfterRenewal(acquire) {
      await masters[0].ask("DLOCK.ACQUIRE", "b", "other", 60_000);
      const acquiring = acquire();
      let lease = 0;
      await until("a is renewed", async () => {
        const earlier = lease;
        lease = await masters[0].ask("DLOCK.PTTL", "a");
        return earlier > 0 && lease > earlier;
      });
      await masters[0].ask("DLOCK.RELEASE", "b", "other");
      return acquiring;
    }

    test("a lock of several resources lasts for the whole duration after a long wait", async () => {
      const redlock = new Ours(await clients([masters[0]]), { retryCount: -1 });
      const lock = await acquireAfterRenewal(() => redlock.acquire(["a", "b"], 9000));
      assert(lock.expiration > Date.now() + 4000);
      for (const key of lock.resources) assert((await masters[0].ask("DLOCK.PTTL", key)) > 4000);
      // After acquire has returned, the lock is not renewed.
      for (const key of lock.resources)
        await until("the lease expires", async () => !(await masters[0].exists(key)));
      await assert.rejects(lock.release(), ours.ExecutionError);
    });

    test("the first resources are renewed during the wait for the others", async () => {
      const redlock = new Ours(await clients([masters[0]]), { retryCount: -1 });
      await acquireAfterRenewal(() =>
        redlock.using(["a", "b"], 9000, { automaticExtensionThreshold: 50 }, async (signal) => {
          assert(!signal.aborted);
        }),
      );
    });

    test("the loss of a resource ends the wait for the others", async () => {
      const redlock = new Ours(await clients([masters[0]]), { retryCount: -1 });
      await masters[0].ask("DLOCK.ACQUIRE", "b", "other", 60_000);
      const waiting = assert.rejects(redlock.acquire(["a", "b"], 1000), ours.ExecutionError);
      await until("a client waits", () => masters[0].waiters("b"));
      await masters[0].ask("DLOCK.BREAK", "a");
      await waiting;
      assert.equal(await masters[0].waiters("b"), 0);
    });

    test("resources that are not an array of strings are refused before any request", async () => {
      const redlock = new Ours(await clients([masters[0]]));
      for (const resources of ["ab", new Set(["a"]), undefined, null, [5], [["a"]]]) {
        const refusal = { name: "TypeError", message: /array of strings/ };
        await assert.rejects(redlock.acquire(resources, 2000), refusal);
        await assert.rejects(
          redlock.using(resources, 2000, async () => {}),
          refusal,
        );
      }
      assert.equal(await masters[0].ask("DBSIZE"), 0);
    });

    test("a lock has the fences of its resources, and their tokens in its value", async () => {
      const redlock = new Ours(await clients([masters[0]]));
      const lock = await redlock.acquire(["a", "b"], 1000);
      assert(lock.fences.every(Number.isSafeInteger));
      const [a, b] = lock.value.split(",");
      assert.equal(await masters[0].ask("DLOCK.HOLDS", "a", a), 1);
      assert.equal(await masters[0].ask("DLOCK.HOLDS", "b", b), 1);
      await lock.release();
    });

    test("an extension without an answer is retried", async () => {
      const members = await clients(proxies);
      // Only the constructor reads `nodeTimeout`.
      times.nodeTimeout = 1000;
      const redlock = new Ours(members);
      times.nodeTimeout = 10_000;
      let lock = await redlock.acquire(["foo"], 60_000);
      for (const proxy of proxies) proxy.silent = true;
      await assert.rejects(redlock.extend(lock, 60_000, { retryCount: 0 }), ours.ExecutionError);
      const endSilence = setTimeout(() => {
        for (const proxy of proxies) proxy.silent = false;
      }, 1500);
      lock = await redlock.extend(lock, 60_000, { retryCount: 100, retryDelay: 50 });
      clearTimeout(endSilence);
      await lock.release();
    });
  },
  { only: ["ioredis"], isParallel: true },
);

test("import and require give the same classes", async () => {
  assert.equal(require("dlock/redlock").default, Ours);
  assert.equal(require("dlock/redlock").ExecutionError, ours.ExecutionError);
  assert.equal(require("dlock").Lock, (await import("dlock")).Lock);
  assert.equal(require("dlock").ResourceLockedError, ours.ResourceLockedError);
});
