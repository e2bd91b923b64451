// A server may carry out a request from a broken connection late, and so shorten a lease. As long as a request may
// still arrive, the client relies on no lease that is longer than the lease in the request.

import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { Lock, NoAnswerError } from "dlock";
import { Channel } from "../dist/channel.js";
import { Owed } from "../dist/owed.js";
import { Renewal, UnansweredLeases } from "../dist/renewal.js";
import { send } from "../dist/requests.js";
import { run } from "../dist/run.js";
import { Owe } from "../dist/steps.js";
import { times } from "../dist/waits.js";
import { mastersFor, onEachServer, until } from "./support.mjs";

onEachServer(
  (env) => {
    const { masters, proxies, quorumOf, untilHeldAt } = mastersFor(env);

    const pttl = (master) => master.ask("DLOCK.PTTL", "foo");

    /** Sends an extension to 20 s over a connection of `proxy` that stalls, and breaks the connection. */
    async function extendOverStalled(proxy, hold) {
      proxy.stall();
      const asked = proxy.requestCount("DLOCK.EXTEND");
      // When the connection breaks, the command fails in node-redis, and ioredis sends it again.
      const extended = hold.extend(20_000).catch((why) => why);
      await until("EXTEND is sent", () => proxy.requestCount("DLOCK.EXTEND") > asked);
      const { accepted } = proxy;
      proxy.breakStalled();
      await until("the client reconnects", () => proxy.accepted > accepted);
      return extended;
    }

    test("one server: a longer extension fails while an unanswered shorter one may arrive", async () => {
      const [master, proxy] = [masters[0], proxies[0]];
      const options = { ttl: 60_000, renew: false };
      const hold = await new Lock(await env.client(proxy.url), "foo", options).acquire();
      await extendOverStalled(proxy, hold);
      await assert.rejects(hold.extend(60_000), { name: "NoAnswerError", message: /shorter lease/ });
      await proxy.deliver();
      assert((await pttl(master)) <= 20_000, "the late EXTEND was carried out");
      assert(hold.validFor <= 20_000, `${hold.validFor}`);
    });

    test("a member does not vote for a longer extension while an unanswered shorter one may arrive", async () => {
      const quorum = await quorumOf(proxies);
      const hold = await new Lock(quorum, "foo", { ttl: 60_000, renew: false }).acquire();
      await untilHeldAt(0, 1, 2);
      await extendOverStalled(proxies[0], hold);
      assert(hold.validFor <= 20_000);
      proxies[2].refuse = true;
      proxies[2].drop();
      // Shortens the wait for the third member, which will not answer.
      quorum.limit = 3000;
      await assert.rejects(hold.extend(60_000), { name: "NoQuorumError", message: /shorter lease/ });
      await proxies[0].deliver();
      assert((await pttl(masters[0])) <= 20_000, "the late EXTEND was carried out");
      assert(hold.validFor <= 20_000, `${hold.validFor}`);
    });

    test("a longer extension succeeds once a shorter one is answered", async () => {
      const [proxy] = proxies;
      const options = { ttl: 20_000, renew: false };
      const hold = await new Lock(await env.client(proxy.url), "foo", options).acquire();
      proxy.silent = true;
      const extended = hold.extend(19_000);
      await until("EXTEND is sent", () => proxy.requestCount("DLOCK.EXTEND") === 1);
      proxy.silent = false;
      await extended;
      await hold.extend(60_000);
      assert(hold.validFor > 20_000);
      await hold.release();
    });
  },
  { isParallel: true },
);

test("a reply settles its request and the earlier requests of the connection", () => {
  const server = { connections: 1 };
  const leases = new UnansweredLeases(server);
  // The requests set the lease to 100 and to 500 ms.
  const [first, second] = [leases.send([], 100), leases.send([], 500)];
  for (const request of [first, second]) request.sent();
  assert(leases.isCertain(100));
  assert(!leases.isCertain(101));
  second.replied();
  assert(leases.isCertain(60_000));
});

test("a reply settles neither a request of an earlier connection, nor a request that was resent", () => {
  const server = { connections: 1 };
  const leases = new UnansweredLeases(server);
  const [lost, resent] = [leases.send([], 100), leases.send([], 500)];
  for (const request of [lost, resent]) request.sent();
  server.connections = 2;
  // This reply is to the copy that the client has sent over the new connection. The first copy may still
  // arrive.
  resent.replied();
  assert(!leases.isCertain(101));
  const later = leases.send([], 1000);
  later.sent();
  later.replied();
  assert(leases.isCertain(100));
  assert(!leases.isCertain(101));
});

test("after an extension without an answer, renewals ask for the shorter of the old and the new lease", () => {
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
    "the release is repeated for as long as the servers may retain the hold",
  );
});

/** Lets what has been answered go on. Not a timer, as the tests below mock them. */
const turn = () => new Promise(setImmediate);

/** A channel, and the functions that answer its requests, in their order. */
function channelWithoutServer() {
  const replies = [];
  const on = () => {};
  const call = () => new Promise((resolve) => replies.push(resolve));
  return { channel: Channel.of({ status: "ready", options: {}, call, on, once: on }), replies };
}

test("a request that waits for the answers of earlier ones does not time out while these arrive", {
  skip: mock.timers === undefined,
}, async () => {
  const { channel, replies } = channelWithoutServer();
  mock.timers.enable({ apis: ["setTimeout"] });
  try {
    const sent = Array.from({ length: 4 }, () => channel.send(["PING"], 100).catch((why) => why));
    for (let answered = 0; answered < 3; answered++) {
      mock.timers.tick(99);
      replies[answered](answered);
      await turn();
      mock.timers.tick(2);
      await turn();
    }
    replies[3]("late, but in its turn");
    assert.deepEqual(await Promise.all(sent), [0, 1, 2, "late, but in its turn"]);
    const unanswered = channel.send(["PING"], 100).catch((why) => why);
    mock.timers.tick(101);
    await turn();
    assert((await unanswered) instanceof NoAnswerError);
  } finally {
    mock.timers.reset();
  }
});

test("a release whose turn has not come is awaited while the server answers earlier requests", {
  skip: mock.timers === undefined,
}, async () => {
  const { channel, replies } = channelWithoutServer();
  const { patience } = times;
  times.patience = 100;
  mock.timers.enable({ apis: ["setTimeout"] });
  try {
    const earlier = channel.send(["PING"], 1000);
    const owed = new Owed(() => send(["RELEASE"]), 1000, 1);
    const releasing = function* () {
      yield new Owe(new Map([[0, owed]]), () => owed.removed !== undefined);
      return owed.removed;
    };
    const released = run(releasing(), channel);
    mock.timers.tick(99);
    replies[0]("PONG");
    await earlier;
    mock.timers.tick(2);
    await turn();
    replies[1](1);
    assert.equal(await released, 1);
    // A server that answers nothing is not awaited.
    const silent = new Owed(() => send(["RELEASE"]), 1000, 1);
    const unreleased = run(
      (function* () {
        yield new Owe(new Map([[0, silent]]), () => silent.removed !== undefined);
        return silent.removed;
      })(),
      channel,
    );
    mock.timers.tick(101);
    await turn();
    assert.equal(await unreleased, undefined);
  } finally {
    mock.timers.reset();
    times.patience = patience;
  }
});

test("a client may return a reply and no promise, and no timer fails later", {
  skip: mock.timers === undefined,
}, async () => {
  const on = () => {};
  const channel = Channel.of({ status: "ready", options: {}, call: () => "PONG", on, once: on });
  mock.timers.enable({ apis: ["setTimeout"] });
  try {
    assert.equal(await channel.send(["PING"], 100), "PONG");
    // The rejection of a promise that nothing handles would fail this test.
    mock.timers.tick(101);
    await turn();
  } finally {
    mock.timers.reset();
  }
});
