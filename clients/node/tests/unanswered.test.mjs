// Requests without an answer may be carried out late. They must not shorten a lease that a holder relies on.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Lock, NoAnswerError } from "dlock";
import { Renewal, UnansweredLeases } from "../dist/renewal.js";
import { mastersFor, onEach, until } from "./support.mjs";

onEach(
  (bench) => {
    const { masters, proxies, quorumOf, isHeldAt } = mastersFor(bench);

    const pttl = (master) => master.ask("DLOCK.PTTL", "foo");

    /** Extends the hold to 20 s over a connection of `proxy` that stalls and is then replaced. */
    async function extendOverStalled(proxy, hold) {
      proxy.stall();
      const asked = proxy.asked("DLOCK.EXTEND");
      // node-redis fails when the connection breaks, and ioredis sends the command again.
      const extended = hold.extend(20_000).catch((why) => why);
      await until("EXTEND is sent", () => proxy.asked("DLOCK.EXTEND") > asked);
      const { accepted } = proxy;
      proxy.breakStalled();
      await until("the client reconnects", () => proxy.accepted > accepted);
      return extended;
    }

    test("a longer extension is not trusted while a shorter one may arrive: one server", async () => {
      const [master, proxy] = [masters[0], proxies[0]];
      const options = { ttl: 60_000, renew: false };
      const hold = await new Lock(await bench.client(proxy.url), "foo", options).acquire();
      await extendOverStalled(proxy, hold);
      await assert.rejects(hold.extend(60_000), { name: "NoAnswerError", message: /shorter lease/ });
      await proxy.deliver();
      assert((await pttl(master)) <= 20_000, "the late EXTEND was carried out");
      assert(hold.validFor <= 20_000, `${hold.validFor}`);
    });

    test("a member does not vote for a longer extension while a shorter one may arrive", async () => {
      const quorum = await quorumOf(proxies);
      const hold = await new Lock(quorum, "foo", { ttl: 60_000, renew: false }).acquire();
      await isHeldAt(0, 1, 2);
      await extendOverStalled(proxies[0], hold);
      assert(hold.validFor <= 20_000);
      proxies[2].refuse = true;
      proxies[2].drop();
      Object.assign(quorum, { limit: 3000 });
      await assert.rejects(hold.extend(60_000), { name: "NoQuorumError", message: /shorter lease/ });
      await proxies[0].deliver();
      assert((await pttl(masters[0])) <= 20_000, "the late EXTEND was carried out");
      assert(hold.validFor <= 20_000, `${hold.validFor}`);
    });

    test("an extension counts again once a later answer shows that the shorter one was carried out", async () => {
      const [proxy] = proxies;
      const options = { ttl: 20_000, renew: false };
      const hold = await new Lock(await bench.client(proxy.url), "foo", options).acquire();
      proxy.silent = true;
      const extended = hold.extend(19_000);
      await until("EXTEND is sent", () => proxy.asked("DLOCK.EXTEND") === 1);
      proxy.silent = false;
      await extended;
      await hold.extend(60_000);
      assert(hold.validFor > 20_000);
      await hold.release();
    });
  },
  { isParallel: true },
);

test("a reply settles the earlier requests of its connection", () => {
  const server = { connections: 1 };
  const leases = new UnansweredLeases(server);
  const [first, second] = [leases.send([], 100), leases.send([], 500)];
  for (const send of [first, second]) send.sent();
  assert(leases.isCertain(100));
  assert(!leases.isCertain(101));
  second.replied();
  assert(leases.isCertain(60_000));
});

test("a reply settles neither a request of an earlier connection, nor a request that was resent", () => {
  const server = { connections: 1 };
  const leases = new UnansweredLeases(server);
  const [lost, again] = [leases.send([], 100), leases.send([], 500)];
  for (const send of [lost, again]) send.sent();
  server.connections = 2;
  again.replied();
  assert(!leases.isCertain(101));
  const later = leases.send([], 1000);
  later.sent();
  later.replied();
  assert(leases.isCertain(100));
  assert(!leases.isCertain(101));
});

test("after an extension without an answer, renewals ask for the shorter of both leases", () => {
  const asked = [];
  const renewal = new Renewal("foo", 60_000, performance.now() + 60_000, true, function* (_, lease) {
    asked.push(lease);
    return yield [];
  });
  const extending = renewal.extending(30_000);
  extending.next();
  assert.throws(() => extending.throw(new NoAnswerError("no answer")), NoAnswerError);
  renewal.wake().next();
  assert.deepEqual(asked, [30_000, 30_000]);
  assert.equal(
    renewal.longestLease,
    60_000,
    "a release is owed for as long as the servers may keep the hold",
  );
});
