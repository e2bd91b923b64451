// A quorum reads the run id of each member's server: a server votes once, even if two addresses lead to it.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { Lock, NoQuorumError } from "dlock";
import { info, threeMembers, unknownMembers } from "./members.mjs";
import { allowSlowAnswers, mastersFor, onEachServer, until } from "./support.mjs";

allowSlowAnswers(5000);

onEachServer(
  (env) => {
    const { masters, proxies, quorumOf, untilFree } = mastersFor(env);

    /** Acquires a hold at all three members, then cuts off the second member, and redirects the third address
     * to the first server. Returns the hold. */
    async function acquireThenMoveAddress() {
      const quorum = await quorumOf(proxies);
      const lock = new Lock(quorum, "foo", { ttl: 60_000, renew: false });
      // A member gets no ACQUIRE before it has answered with its run id, so the first hold may lack members.
      let hold;
      await until("all members have the hold", async () => {
        await hold?.release();
        // While the third member still has the released hold, it refuses the next one.
        await untilFree();
        hold = await lock.acquire();
        return (await Promise.all(masters.map((master) => master.exists()))).every(Boolean);
      });
      proxies[1].refuse = true;
      proxies[1].drop();
      proxies[2].target = masters[0].port;
      const { accepted } = proxies[2];
      proxies[2].drop();
      await until("the client reconnects", () => proxies[2].accepted > accepted);
      // The second member will not answer, so each request ends with this time limit.
      quorum.limit = 3000;
      return hold;
    }

    test("an address that leads to another member's server does not vote for an extension", async () => {
      const hold = await acquireThenMoveAddress();
      const validFor = hold.validFor;
      await assert.rejects(hold.extend(120_000), { name: "NoQuorumError", message: /the same server/ });
      assert(hold.validFor <= validFor);
    });

    test("an address that leads to another member's server does not count as holding the lock", async () => {
      const hold = await acquireThenMoveAddress();
      await assert.rejects(hold.held(), NoQuorumError);
    });

    test("a release is repeated until it reaches the member whose address led to another server", async () => {
      const hold = await acquireThenMoveAddress();
      await assert.rejects(hold.release(), NoQuorumError);
      await until("the first member releases it", async () => !(await masters[0].exists()));
      proxies[2].target = masters[2].port;
      proxies[2].drop();
      await until("the third member releases it", async () => !(await masters[2].exists()));
      proxies[1].refuse = false;
      await until("the second member releases it", async () => !(await masters[1].exists()));
    });

    test("a member whose user may not run INFO does not vote, and the error says so", async () => {
      const endpoints = [masters[0]];
      for (const master of masters.slice(1)) {
        await master.ask("ACL", "SETUSER", "blind", "on", ">secret", "~*", "&*", "+@all", "-info");
        endpoints.push({ url: master.url.replace("//", "//blind:secret@") });
      }
      const lock = new Lock(await quorumOf(endpoints), "foo");
      for (const acquire of [() => lock.tryAcquire(), () => lock.acquire()]) {
        await assert.rejects(acquire, { name: "NoQuorumError", message: /let its user run INFO/ });
      }
      await untilFree();
    });

    test("the library name contains a digest of the members of the quorum", async () => {
      const clientLines = async (master) =>
        (await master.ask("CLIENT", "LIST")).split("\n").filter((line) => line.includes(" name=test "));
      const client = await env.client(masters[0].url);
      await (await new Lock(client, "foo").acquire()).release();
      // CLIENT LIST shows library names from Redis 7.2 on.
      const isShown = (await clientLines(masters[0])).some((line) => line.includes(" lib-name="));
      if (!isShown) return;
      const untilNamed = (master, name) =>
        until(name, async () =>
          (await clientLines(master)).some((line) => line.includes(` lib-name=${name} `)),
        );
      await untilNamed(masters[0], "dlock-client");
      const ids = await Promise.all(masters.map((master) => master.runId()));
      const digest = createHash("sha1").update(ids.sort().join(",")).digest("hex").slice(0, 8);
      const quorum = await quorumOf(proxies);
      await (await new Lock(quorum, "foo").acquire()).release();
      for (const master of masters) await untilNamed(master, `dlock-client(q3-${digest})`);
      // The client sets the name again after each reconnect.
      for (const proxy of proxies) proxy.drop();
      for (const master of masters) {
        await untilNamed(master, `dlock-client(q3-${digest})`);
        const named = (await clientLines(master)).filter((line) => line.includes("(q3"));
        assert(named.length <= 1, "the client has more than one connection to a member");
      }
    });
  },
  { isParallel: true },
);

test("a member votes only while its connection leads to the server that answered", () => {
  const { members, channels } = threeMembers();
  const voting = members.vote(function* () {
    return (yield ["PING"]) === 1;
  });
  const { value: ask } = voting.next();
  const answers = new Map();
  for (const member of [0, 1]) {
    const steps = ask.steps(member);
    steps.next();
    answers.set(member, steps.next(1).value);
  }
  assert(ask.enough(answers));
  channels[1].connections = 2;
  assert(!ask.enough(answers), "the new connection may lead to another server");
});

test("a member votes again once its address no longer leads to another member's server", () => {
  const { members } = unknownMembers();
  // The third address leads to the server with the run id 0, as the first one does.
  for (const [member, runId] of [0, 1, 0].entries()) members.record(member, info(runId));
  const identifying = members.identifyMembers(Number.POSITIVE_INFINITY);
  const { value: ask } = identifying.next();
  assert.deepEqual(ask.members, [2]);
  const steps = ask.steps(2);
  steps.next();
  // The third address now leads to the server with the run id 2.
  steps.next(info(2));
  assert(identifying.next(new Map([[2, undefined]])).done);
  assert.deepEqual(members.voters(), [0, 1, 2]);
});

test("the digest of the members stays the same until the server of a new connection is known", () => {
  const { members, channels } = threeMembers();
  const digest = members.digest();
  assert.match(digest, /^[0-9a-f]{8}$/);
  channels[1].connections += 1;
  assert.equal(members.digest(), digest);
});

test("an acquisition finds two members with one server while another acquisition begins", () => {
  const { members } = unknownMembers();
  const first = members.identifyMembers(0);
  const { value: ask } = first.next();
  const answers = new Map();
  for (const member of ask.members) {
    const steps = ask.steps(member);
    steps.next();
    try {
      steps.next(info("same"));
    } catch (why) {
      answers.set(member, why);
    }
  }
  members.identifyMembers(0).next();
  assert.throws(() => first.next(answers), /two members of the quorum are the same server, a: name b once/);
});
