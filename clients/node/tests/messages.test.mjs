// The messages that end waits: their grammar, and the hold that begins with one.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { NotHeldError, ResourceLockedError } from "dlock";
import { now, validity } from "../dist/clock.js";
import { Lock } from "../dist/index.js";
import { readPublished } from "../dist/protocol.js";
import { times, Wait, WaitRegistry } from "../dist/waits.js";
import { allowSlowAnswers, mastersFor, onEachServer, suspend, until } from "./support.mjs";

allowSlowAnswers();
// No PING is sent over a subscriber, and no wait repeats its request by itself before the lease demands it.
Object.assign(times, { silence: 1_000_000, ask: 1_000_000 });

const vectors = new URL("../../../conformance/vectors/messages.json", import.meta.url);
const { messages, cases } = JSON.parse(readFileSync(vectors, "utf8"));

/** Returns what the server publishes for the message of a call. */
function published(message, words) {
  const [id, secret] = message.split(" ");
  return /^granted \d/.test(words) ? `${id} ${words} ${secret}` : `${id} ${words}`;
}

test("messages are read by the grammar that all languages share", () => {
  const secrets = new Map(messages.map((message) => message.split(" ")));
  for (const { payload, outcome, id, fence } of cases) {
    // As the client libraries decode it: as UTF-8.
    const read = readPublished(Buffer.from(payload, "latin1").toString());
    const secret = secrets.get(read?.id);
    if (outcome === "not mine") {
      assert.equal(secret, undefined, payload);
      continue;
    }
    const isForged = read.outcome === "granted" && read.secret !== secret;
    const found = isForged ? { id: read.id, outcome: "wake", fence: undefined } : read;
    assert.deepEqual(
      { id: found.id, outcome: found.outcome, fence: found.fence },
      { id, outcome, fence },
      payload,
    );
  }
});

test("a wait reads only its own messages", () => {
  const registry = new WaitRegistry();
  const [wait, other] = [registry.open(), registry.open()];
  const message = wait.beginCall(1000);
  const [, random, secret] = /^([\w-]{11})\.1 ([\w-]{11})$/.exec(message);
  const otherRandom = other.beginCall(1000).slice(0, 11);
  for (const forged of ["1", "granted", random, secret, `${random}.2`, `${random}.01`, `${otherRandom}.2`])
    for (const outcome of ["cancelled", `granted 7 ${secret}`]) registry.onMessage(`${forged} ${outcome}`);
  assert(!wait.bell.isRung && !wait.cancelled && wait.granted === undefined);
  registry.onMessage(published(message, "granted 7"));
  assert(wait.bell.isRung);
  assert.equal(wait.granted.fence, 7);
  assert.equal(other.granted, undefined);
});

test("a grant without the secret makes the wait ask again", () => {
  // The message of a wait that ended otherwise is lost. A stranger has read it, and makes a grant of it.
  for (const secret of ["", " ", " AAAAAAAAAAA"]) {
    const wait = new WaitRegistry().open();
    const [id] = wait.beginCall(10_000).split(" ");
    wait.registry.onMessage(`${id} granted 7${secret}`);
    assert.equal(wait.granted, undefined);
    assert(wait.bell.isRung);
  }
});

test("only the first message of a call counts, and each call has an id and a secret of its own", () => {
  const registry = new WaitRegistry();
  for (const first of ["refused", "timeout", "granted", "granted 7"]) {
    const wait = registry.open();
    const message = wait.beginCall(10_000);
    registry.onMessage(published(message, first));
    const fence = wait.granted?.fence;
    assert.equal(fence, first === "granted 7" ? 7 : undefined);
    // A stranger on the channel has read the first message.
    registry.onMessage(published(message, "granted 9"));
    const next = wait.beginCall(10_000);
    assert.match(next, /^[\w-]{11}\.2 [\w-]{11}$/);
    assert.notEqual(next.slice(0, 11), message.slice(0, 11));
    registry.onMessage(published(message.replace(".1 ", ".2 "), "granted 9"));
    assert.equal(wait.granted?.fence, fence);
  }
});

test("the message of a call that was sent longer ago than its lease is ignored", () => {
  const registry = new WaitRegistry();
  const wait = registry.open();
  const message = wait.beginCall(10_000);
  suspend(10_000);
  wait.beginCall(10_000);
  registry.onMessage(published(message, "granted 7"));
  assert.equal(wait.granted, undefined);
});

test("the validity of a grant by message counts from before the call was sent", () => {
  const registry = new WaitRegistry();
  const wait = registry.open();
  const before = now();
  const messages = [wait.beginCall(10_000)];
  suspend(3000);
  messages.push(wait.beginCall(10_000));
  suspend(3000);
  registry.onMessage(published(messages[0], "granted 7"));
  const validFor = wait.granted.validUntil - before;
  assert(validFor >= validity(10_000) && validFor < validity(10_000) + 3000, `${validFor}`);
});

test("a grant to an earlier call only wakes the wait once a later call was answered with null", () => {
  const registry = new WaitRegistry();
  const wait = registry.open();
  const messages = [wait.beginCall(10_000), wait.beginCall(10_000)];
  wait.noteNull();
  // The server may have read a copy of the earlier call after the later one.
  registry.onMessage(published(messages[0], "granted 7"));
  assert.equal(wait.granted, undefined);
  assert(wait.bell.isRung);
  wait.bell.clear();
  registry.onMessage(published(messages[0], "granted 7"));
  assert(!wait.bell.isRung, "only the first message of a call counts");
  registry.onMessage(published(messages[1], "granted 8"));
  assert.equal(wait.granted.fence, 8);
});

test("a grant to an earlier call does not replace a later one", () => {
  const registry = new WaitRegistry();
  const wait = registry.open();
  const messages = [wait.beginCall(10_000), wait.beginCall(10_000)];
  registry.onMessage(published(messages[1], "granted 8"));
  registry.onMessage(published(messages[0], "granted 7"));
  assert.equal(wait.granted.fence, 8);
});

test("the end of an earlier call counts after a later call was answered with null", () => {
  for (const outcome of ["timeout", "cancelled", "refused"]) {
    let refusals = 0;
    const registry = new WaitRegistry(() => (refusals += 1));
    const wait = registry.open();
    const messages = [wait.beginCall(10_000), wait.beginCall(10_000)];
    wait.noteNull();
    registry.onMessage(published(messages[0], outcome));
    assert(wait.bell.isRung);
    assert.deepEqual([wait.cancelled, refusals > 0], [outcome === "cancelled", outcome === "refused"]);
  }
});

test("a grant by message is void once a later call was answered with null, and only then", () => {
  const registry = new WaitRegistry();
  const wait = registry.open();
  const first = wait.beginCall(10_000);
  registry.onMessage(published(first, "granted 7"));
  wait.noteNull();
  assert.equal(wait.granted.fence, 7, "the null answers the call of the message");
  const second = wait.beginCall(10_000);
  wait.noteNull();
  assert.equal(wait.granted, undefined);
  registry.onMessage(published(first, "granted 7"));
  assert.equal(wait.granted, undefined);
  registry.onMessage(published(second, "granted 8"));
  assert.equal(wait.granted.fence, 8);
});

test("waits that are woken together ask again at different moments, and no one of them alone is delayed for long", () => {
  const registry = new WaitRegistry();
  const waits = Array.from({ length: 100 }, () => registry.open());
  registry.onDisconnected();
  assert(waits.every(({ bell }) => bell.isRung));
  const delays = waits.map((wait) => wait.takeDelay());
  assert(new Set(delays).size > 90, `${delays}`);
  assert(delays.every((delay) => delay >= 0 && delay <= 25));
  assert(waits.every(({ delay }) => delay === 0));
});

onEachServer((env) => {
  const { masters, proxies, quorumOf, untilFree, untilHeldAt, untilWaiters } = mastersFor(env);
  const holdByOther = () =>
    Promise.all(masters.map((master) => master.ask("DLOCK.ACQUIRE", "foo", "holder", 600_000)));
  const releaseByOther = () =>
    Promise.all(masters.map((master) => master.ask("DLOCK.RELEASE", "foo", "holder")));
  let asked = 0;
  /** Returns a wait for "foo" at the first master, and its message. */
  async function waitAtFirst(options) {
    await holdByOther();
    const waiting = new Lock(await env.client(proxies[0].url), "foo", options).acquire();
    await untilWaiters(1, 0, 0);
    asked = proxies[0].requestCount("DLOCK.ACQUIRE");
    const [message] = proxies[0].requests.match(/[\w-]{11}\.1 [\w-]{11}/);
    return { waiting, message };
  }
  const publish = async (payload) => {
    const [channel] = await masters[0].ask("PUBSUB", "CHANNELS", "dlock:*");
    assert.equal(await masters[0].ask("PUBLISH", channel, payload), 1);
  };
  /** Returns the number of requests for the lock since the wait began: the claims of a hold by message. */
  const claims = () => proxies[0].requestCount("DLOCK.ACQUIRE") - asked;

  test("a waiter holds the lock one trip after the RELEASE: it sends nothing in between", async () => {
    const { waiting } = await waitAtFirst();
    const { length } = proxies[0].requests;
    // The claim follows soon, perhaps before all three masters have answered.
    const granted = waiting.then((hold) => [hold, proxies[0].requests.slice(length)]);
    await releaseByOther();
    const [hold, requests] = await granted;
    assert.equal(requests, "");
    const inspected = await masters[0].ask("DLOCK.INSPECT", "foo");
    assert.equal(hold.fence, inspected[inspected.indexOf("fence") + 1]);
    await hold.release();
  });

  test("a waiter of a quorum asks each member once after the RELEASE", async () => {
    await holdByOther();
    const waiting = new Lock(await quorumOf(proxies), "foo").acquire();
    await untilWaiters(1, 0, 0);
    // The member of the queue releases last, so that the round finds all members free.
    const asked = proxies.map((proxy) => proxy.requestCount("DLOCK.ACQUIRE"));
    for (const master of masters.slice().reverse()) await master.ask("DLOCK.RELEASE", "foo", "holder");
    const hold = await waiting;
    const more = proxies.map((proxy, at) => proxy.requestCount("DLOCK.ACQUIRE") - asked[at]);
    assert(
      more.every((count) => count <= 1),
      `${more}`,
    );
    await hold.release();
  });

  test("a hold by message is claimed in the background, and valid for its short lease until then", async () => {
    const { waiting } = await waitAtFirst({ ttl: 600_000 });
    const releasing = releaseByOther();
    const hold = await waiting;
    assert(hold.validFor > 0 && hold.validFor <= times.keep, `${hold.validFor}`);
    assert(!hold.signal.aborted);
    await until("the hold is claimed", () => hold.validFor > times.keep);
    assert((await masters[0].ask("DLOCK.PTTL", "foo")) > times.keep);
    assert.equal(claims(), 1);
    await releasing;
    await hold.release();
  });

  test("a hold by message whose claim has no answer ends with its short lease", async () => {
    const { waiting } = await waitAtFirst({ ttl: 600_000, renew: false });
    const releasing = releaseByOther();
    const hold = await waiting;
    proxies[0].silent = true;
    await until("the claim is sent", () => claims() > 0);
    assert(!hold.signal.aborted);
    suspend(times.keep);
    assert(hold.signal.aborted);
    assert.equal(hold.validFor, 0);
    proxies[0].silent = false;
    await releasing;
    await assert.rejects(hold.release(), NotHeldError);
  });

  test("a hold by message is lost if the claim finds that it has ended", async () => {
    const { waiting } = await waitAtFirst({ renew: false });
    const releasing = releaseByOther();
    const hold = await waiting;
    proxies[0].silent = true;
    await until("the claim is sent", () => claims() > 0);
    await masters[0].ask("DLOCK.BREAK", "foo");
    proxies[0].silent = false;
    await until("the hold is lost", () => hold.signal.aborted);
    assert.match(hold.signal.reason.message, /taken away/);
    // The claim was granted anew, with a greater fence.
    await until("the new hold is released", async () => !(await masters[0].exists()));
    await releasing;
  });

  test("a copy of an earlier call does not hide the grant", async () => {
    // Neither the clock of the wait nor the end of its position ends it.
    const { keep } = times;
    times.keep = 600_000;
    const { noteNull } = Wait.prototype;
    const nulls = [];
    Wait.prototype.noteNull = function () {
      noteNull.call(this);
      nulls.push(this);
    };
    try {
      const { waiting, message } = await waitAtFirst({ ttl: 600_000 });
      let hold;
      waiting.then((found) => (hold = found));
      await until("the first call is answered", () => nulls.length > 0);
      const count = nulls.length;
      nulls[0].bell.ring();
      await until("a later call is answered", () => nulls.length > count);
      // The server reads a copy of the first call, and announces the grant with its message.
      const [[waiter], [channel]] = [
        await masters[0].ask("DLOCK.WAITERS", "foo"),
        await masters[0].ask("PUBSUB", "CHANNELS", "dlock:*"),
      ];
      const token = waiter[waiter.indexOf("token") + 1];
      const options = ["QUEUE", "600000", "NOTIFY", channel, message];
      assert.equal(await masters[0].ask("DLOCK.ACQUIRE", "foo", token, "600000", ...options), null);
      await releaseByOther();
      await until("the waiter has the lock", () => hold);
      await hold.release();
    } finally {
      times.keep = keep;
      Wait.prototype.noteNull = noteNull;
    }
  });

  test("a wait with a delay returns once its claim is answered", async () => {
    // No DELAY follows a grant that is not claimed: the server may take its waiter for dead.
    const { waiting } = await waitAtFirst({ ttl: 600_000, delay: 60_000 });
    let hold;
    waiting.then((found) => (hold = found));
    const [waiter] = await masters[0].ask("DLOCK.WAITERS", "foo");
    const token = waiter[waiter.indexOf("token") + 1];
    proxies[0].stallRequests = true;
    await releaseByOther();
    await until("the claim is sent", () => claims() > 0);
    assert((await masters[0].ask("DLOCK.PTTL", "foo", token)) > 0);
    assert.equal(hold, undefined);
    proxies[0].stallRequests = false;
    await until("the waiter has the lock", () => hold);
    assert(hold.validFor > times.keep);
    assert((await masters[0].ask("DLOCK.PTTL", "foo", token)) > times.keep);
    await hold.release();
  });

  test("a hold by message that is released at once is not claimed", async () => {
    const { waiting } = await waitAtFirst();
    const released = waiting.then((hold) => hold.release());
    await releaseByOther();
    await released;
    assert.equal(claims(), 0);
  });

  test("the message of an older server makes the waiter ask again", async () => {
    const { waiting, message } = await waitAtFirst();
    await publish(published(message, "granted"));
    await until("the waiter has asked again", () => /[\w-]{11}\.2 /.test(proxies[0].requests));
    assert.equal(await masters[0].waiters(), 1);
    await releaseByOther();
    await (await waiting).release();
  });

  test("a stranger who publishes on the client's channel neither grants nor ends a wait", async () => {
    const { waiting } = await waitAtFirst();
    let isOver = false;
    waiting.finally(() => (isOver = true)).catch(() => {});
    const [waiter] = await masters[0].ask("DLOCK.WAITERS", "foo");
    const token = waiter[waiter.indexOf("token") + 1];
    for (const message of ["1", "2", token, `${token}.1`, "foo"])
      for (const outcome of ["granted 7", "cancelled", "timeout", "refused"])
        await publish(`${message} ${outcome}`);
    // The client has read the messages above once it acts on this one.
    await masters[0].ask("DLOCK.CANCEL", "foo", token);
    await assert.rejects(waiting, ResourceLockedError);
    assert(isOver);
  });

  for (const [what, make] of Object.entries({
    "one server": () => env.client(masters[0].url),
    "a quorum": () => quorumOf(masters),
  })) {
    test(`after an early release, atLeast keeps the lock closed for the rest of its time: ${what}`, async () => {
      const service = await make();
      const lock = new Lock(service, "foo", { atLeast: 600_000 });
      const hold = await lock.acquire();
      await hold.release();
      assert.equal(await new Lock(service, "foo").tryAcquire(), null);
      assert(!(await lock.locked()));
      await masters[0].clear();
      for (const master of masters) await master.ask("DLOCK.BREAK", "foo");
      const late = await new Lock(service, "foo", { atLeast: 1000, ttl: 60_000 }).acquire();
      suspend(1000);
      await late.release();
      await (await new Lock(service, "foo").acquire()).release();
    });

    test(`atLeast and delay above dlock.max-ttl are errors before the routine runs: ${what}`, async () => {
      const service = await make();
      for (const options of [{ atLeast: 172_800_000 }, { delay: 172_800_000 }]) {
        const lock = new Lock(service, "foo", options);
        await assert.rejects(
          lock.using(() => assert.fail("the routine has run")),
          /max-ttl|DELAY ms must be/,
        );
        assert(!(await lock.locked()));
      }
    });

    test(`a release whose delay is refused ends the hold all the same, and is an error: ${what}`, async () => {
      const lock = new Lock(await make(), "foo", { atLeast: 600_000 });
      const hold = await lock.acquire();
      const limit = (ms) =>
        Promise.all(masters.map((master) => master.ask("CONFIG", "SET", "dlock.max-ttl", ms)));
      await limit(60_000);
      try {
        await assert.rejects(hold.release(), /^LockError: foo: released, but .* atLeast: ERR/);
        await hold.release();
        assert(!(await lock.locked()));
      } finally {
        await limit(86_400_000);
      }
      await (await lock.acquire()).abandon();
    });

    test(`a hold that was lost by maxHold keeps nothing closed: ${what}`, async () => {
      const options = { maxHold: 60_000, atLeast: 600_000, ttl: 3_600_000 };
      const lock = new Lock(await make(), "foo", options);
      const hold = await lock.acquire();
      suspend(70_000);
      await assert.rejects(hold.release(), /held for longer than maxHold/);
      await (await lock.acquire({ timeout: 20_000 })).abandon();
    });
  }

  /** Runs a routine while members 1 and 2 refuse the delay of `lock`, but not its lease. */
  const lock = (quorum) => new Lock(quorum, "foo", { atLeast: 600_000 });
  async function whileRefused(routine) {
    const limit = (ms) =>
      Promise.all(masters.slice(1).map((master) => master.ask("CONFIG", "SET", "dlock.max-ttl", ms)));
    await limit(60_000);
    try {
      await routine();
    } finally {
      await limit(86_400_000);
    }
  }
  async function untilOpen() {
    await untilFree();
    for (const master of masters) assert.equal(await master.ask("DLOCK.INSPECT", "foo"), null);
  }

  test("members that have reconnected during a wait are asked again before the caller gets the lock", async () => {
    const quorum = await quorumOf(proxies);
    for (const master of masters) await master.ask("DLOCK.ACQUIRE", "foo", "rival", 60_000);
    const acquired = lock(quorum).acquire({ timeout: 60_000 });
    const refused = assert.rejects(acquired, /^LockError: foo: atLeast is 600000 ms, but .* dlock.max-ttl/);
    await untilWaiters(1, 0, 0);
    await whileRefused(async () => {
      const before = quorum.channels.map(({ connections }) => connections);
      for (const proxy of proxies.slice(1)) proxy.drop();
      const hasReconnected = (at) => quorum.channels[at].connections > before[at];
      await until("the client has reconnected", () => [1, 2].every(hasReconnected));
      for (const master of masters) await master.ask("DLOCK.RELEASE", "foo", "rival");
      await refused;
    });
    await untilOpen();
  });

  test("a member that refuses the delay last counts for the error of the release", async () => {
    const hold = await lock(await quorumOf(proxies)).acquire();
    await untilHeldAt(0, 1, 2);
    proxies[2].delay = 200;
    await whileRefused(() =>
      assert.rejects(hold.release(), /^LockError: foo: released, but .* atLeast: ERR/),
    );
  });

  test("a hold whose delay the servers refuse is not adopted", async () => {
    const quorum = await quorumOf(masters);
    const hold = await new Lock(quorum, "foo").acquire();
    await untilHeldAt(0, 1, 2);
    const refusal = /^LockError: foo: atLeast is 600000 ms, but .* dlock.max-ttl/;
    await whileRefused(async () => {
      await assert.rejects(lock(await quorumOf(masters)).adopt(hold.token), refusal);
      await assert.rejects(lock(await env.client(masters[1].url)).adopt(hold.token), refusal);
    });
    assert(await hold.held());
    await hold.release();
    await untilOpen();
  });

  test("a hold is not adopted unless a majority has accepted the delay", async () => {
    const hold = await new Lock(await quorumOf(masters), "foo").acquire();
    const quorum = await quorumOf(proxies);
    for (const proxy of proxies.slice(1)) Object.assign(proxy, { match: "DELAY", cutReplies: 1000 });
    await assert.rejects(lock(quorum).adopt(hold.token), /^NoQuorumError: .*answered; .*; /);
    await hold.release();
  });

  test("tryAcquire does not wait while a majority is closed", async () => {
    for (const master of masters.slice(1)) {
      await master.ask("DLOCK.ACQUIRE", "foo", "done", 60_000);
      await master.ask("DLOCK.RELEASE", "foo", "done", "ALL", "DELAY", 300_000);
    }
    await masters[0].ask("CONFIG", "RESETSTAT");
    const quorum = await quorumOf(masters);
    // The first member grants: without the delay of the others, these would be split votes.
    assert.equal(await new Lock(quorum, "foo").tryAcquire(), null);
    assert.equal(await masters[0].calls("dlock.inspect"), 1);
    const closed = /no client held the lock, but it was still closed for \d+ ms/;
    await assert.rejects(new Lock(quorum, "foo").acquire({ timeout: 0 }), closed);
    await until("the partial grant is released", async () => !(await masters[0].exists()));
  });
});
