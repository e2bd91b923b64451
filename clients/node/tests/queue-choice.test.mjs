// The choice of the member in whose queue a client waits. In some tests, a dead client has left a partial
// hold: a hold at a minority of the members. The first tests need no servers, the last ones need three.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Lock, NoAnswerError, NoQuorumError } from "dlock";
import { Holders } from "../dist/holders.js";
import { QueueChoice } from "../dist/queue-choice.js";
import { run } from "../dist/run.js";
import { Ask, Begin, Listen, Sleep } from "../dist/steps.js";
import { WaitRegistry } from "../dist/waits.js";
import { acquisition, request, roundOf, threeMembers } from "./members.mjs";
import { allowSlowAnswers, mastersFor, onEachServer, suspend, until } from "./support.mjs";

allowSlowAnswers();

const TEN_MINUTES = 600_000;

/** Returns the reply to INSPECT with these holds: ages in ms by token. */
const inspectReply = (ages) => [
  "holders",
  Object.entries(ages).map(([token, held]) => ["token", token, "held", held]),
];

/** Runs `steps`, which send INSPECT to all members several times. `agesAt(n)` returns the ages of the holds, by
 * member, for the n-th time (from 0). */
function play(steps, agesAt) {
  let reads = 0;
  let next = steps.next();
  while (!next.done) {
    const step = next.value;
    if (step instanceof Ask) {
      const ages = agesAt(reads++);
      next = steps.next(new Map(step.members.map((member) => [member, inspectReply(ages[member] ?? {})])));
    } else {
      assert(step instanceof Sleep);
      next = steps.next();
    }
  }
}

// Each row: the members in whose queues a round waits, in this order; the answers to ACQUIRE by member (a fence,
// null for a refusal, undefined for none yet); and the member in whose queue the client's next waits start
// (undefined: the first of all members).
for (const [order, answers, queue] of [
  [[0, 1, 2], [5, 6, 7], undefined],
  // The first member grants, and a later one refuses: other clients may queue at the later one.
  [[0, 1, 2], [5, 6, null], 2],
  [[0, 1, 2], [5, null, null], 1],
  // The first member in the order refuses: its queue does not move, so the next one is tried, if there is one.
  [[0, 1, 2], [null], 1],
  [[2], [undefined, undefined, null], undefined],
  // The client has left the queue of member 0, which still refuses. Other clients may still queue at member 1, so
  // the client stays there.
  [[1, 2], [null, 6, 7], 1],
]) {
  test(`if the members answer ${answers.map(String)} and the order is ${order}, the next queue is ${queue}`, () => {
    const { members } = threeMembers();
    const round = roundOf(members, order);
    round.queued(Number.POSITIVE_INFINITY).next();
    round.answers = new Map([...answers.entries()].filter(([, answer]) => answer !== undefined));
    assert.equal(round.nextQueue(), queue);
  });
}

test("moveToQueue makes the waits in all other queues leave, but makes no wait go back to an earlier queue", () => {
  const { members } = threeMembers();
  const choice = new QueueChoice(members);
  const watches = members.all().map((member) => choice.watch(member, request));
  const departures = () => watches.map((watch) => watch.departures);
  // Other clients were found in the queue of member 1.
  choice.moveToQueue("foo", 1);
  assert.deepEqual(departures(), [1, 0, 1]);
  choice.moveToQueue("foo", 0);
  assert.deepEqual(choice.order("foo"), [1, 2]);
  assert.deepEqual(departures(), [1, 0, 1]);
});

test("a new wait begins in the later queue where other waits of the client are", () => {
  const { members } = threeMembers();
  const choice = new QueueChoice(members);
  // The client has just found the lock taken, so an acquisition begins with a wait.
  choice.contended.note("foo");
  choice.moveToQueue("foo", 1);
  const { value } = acquisition(members, { waits: true, choice }).next();
  assert.equal(value.member, 1);
  assert(value.step instanceof Listen);
});

/** Passes these replies to ACQUIRE, by member, to the steps of `ask`. Returns what the steps make of them, and the
 * token. The other members have not answered. */
function answersTo(ask, replies) {
  let token;
  const answers = new Map(
    Object.entries(replies).map(([member, reply]) => {
      const steps = ask.steps(Number(member));
      token = steps.next().value.command[2];
      return [Number(member), steps.next(reply).value];
    }),
  );
  assert(ask.enough(answers));
  return { answers, token };
}

/** Begins an acquisition, and answers its first requests. `next`: the step that follows; `ask.late` gets the
 * answers that arrive later. */
function acquire(replies) {
  const { members } = threeMembers();
  const choice = new QueueChoice(members);
  const acquiring = acquisition(members, { waits: true, choice });
  const { value: ask } = acquiring.next();
  const { answers, token } = answersTo(ask, replies);
  return { choice, token, ask, acquiring, next: acquiring.next(answers) };
}

// A client that won without member 2 reads the holds at member 2 twice. A young hold (less than 2 s old) that
// remains shows that other clients use the queue of member 2. Each row has the ages of the holds (ms by token)
// at both times, and the order of the queues afterwards.
for (const [what, before, after, order] of [
  ["a young hold that remains", { x: 5 }, { x: 1999 }, [2]],
  ["an old hold, of a dead client", { x: 5 }, { x: 2000 }, [0, 1, 2]],
  ["a hold that another one has replaced", { x: 5 }, { y: 5 }, [0, 1, 2]],
  ["only the client's own hold", { own: 5 }, { own: 5 }, [0, 1, 2]],
]) {
  const outcome = order[0] === 2 ? "moves to the member's queue" : "does not move";
  const assertOrderAfter = (steps, { choice, token }) => {
    const withToken = (ages) =>
      Object.fromEntries(Object.entries(ages).map(([name, held]) => [name === "own" ? token : name, held]));
    play(steps, (n) => ({ 2: withToken([before, after][n]) }));
    assert.deepEqual(choice.order("foo"), order);
    // `lookForOthers` returns undefined for a second after a check that found a remaining hold of another client.
    const hasRemained = Object.keys(before).some((name) => name in after && name !== "own");
    assert.equal(choice.lookForOthers(request, 2, token) === undefined, hasRemained);
  };

  test(`if a member refuses a client with a majority, and has ${what}, the client ${outcome}`, () => {
    const won = acquire({ 0: 5, 1: 6, 2: null });
    assert(won.next.value instanceof Begin);
    assertOrderAfter(won.next.value.steps, won);
  });

  test(`if the late answer of a member refuses a client with a majority, and the member has ${what}, the client ${outcome}`, () => {
    const won = acquire({ 0: 5, 1: 6 });
    assert(won.next.done);
    assertOrderAfter(won.ask.late(2, null), won);
  });
}

test("after a late answer, a client looks for other clients only if it has won, and the member of a later queue refused", () => {
  assert.equal(acquire({ 0: 5, 1: 6 }).ask.late(2, 7), undefined);
  assert.equal(acquire({ 0: 5, 2: 7 }).ask.late(1, new NoAnswerError("slow")), undefined);
  assert.equal(acquire({ 0: null, 1: null }).ask.late(2, null), undefined, "the round was not won");
  const gaveBack = acquire({ 0: null, 1: 6, 2: 7 });
  // The reply to WAITERS: a client waits at member 0, so the round gives its majority back.
  gaveBack.acquiring.next(["waiter"]);
  assert.equal(gaveBack.ask.late(2, null), undefined, "the round gave its majority back");
});

test("a client that waited in the second queue looks for other clients after a late refusal by the third member", () => {
  const { members } = threeMembers();
  const round = roundOf(members, [1, 2]);
  const waiting = round.queued(Number.POSITIVE_INFINITY);
  assert(waiting.next().value.step instanceof Listen);
  const registry = new WaitRegistry();
  // Pretends that the subscription was tried, so that the wait sends ACQUIRE at once.
  registry.hasTriedToSubscribe = true;
  assert.equal(waiting.next(registry.open()).value.step.command[0], "DLOCK.ACQUIRE");
  // Member 1 grants with the fence 5, and the client asks all members.
  const { value: ask } = waiting.next(5);
  assert(waiting.next(answersTo(ask, { 0: 6, 1: 5 }).answers).done);
  assert.equal(round.nextQueue(), 1, "other clients may wait in the queue of member 1");
  assert.notEqual(ask.late(2, null), undefined);
});

test("an answer that arrives after the outcome of an Ask goes to `late`, whose steps can ask all members", async () => {
  let answerLate;
  const replies = [1, 2, new Promise((resolve) => (answerLate = resolve))];
  const channels = replies.map((reply) => ({ send: async () => reply }));
  // For the steps of one member, `run` uses `channels[0]` of that member's channel.
  for (const channel of channels) channel.channels = [channel];
  const seen = [];
  const steps = (function* () {
    const late = function* (member, answer) {
      seen.push([member, answer]);
      seen.push(yield ["PING"]);
    };
    const ask = function* () {
      return yield ["PING"];
    };
    return yield new Ask([0, 1, 2], ask, (answers) => answers.size === 2, late);
  })();
  assert.deepEqual(
    [...(await run(steps, { channels }))],
    [
      [0, 1],
      [1, 2],
    ],
  );
  answerLate(3);
  await until("the late steps have ended", () => seen.length === 2);
  assert.deepEqual(seen, [[2, 3], 1]);
});

/** Returns the holders at three members, where two are a majority. `ages`: for each member, the ages of its
 * holds by token; undefined if they are unknown. */
const holdersAt = (ages) =>
  new Holders(
    ages.map((ages) => ages && new Map(Object.entries(ages))),
    2,
  );

test("partialHolders returns the other tokens that are not known to hold the lock at a majority", () => {
  const xHasMajority = holdersAt([{ x: 5 }, {}, { x: 5, y: 5 }]);
  assert(xHasMajority.isTaken());
  assert.deepEqual([...xHasMajority.partialHolders(2, "own").keys()], ["y"]);
  assert.deepEqual([...xHasMajority.partialHolders(2, "y").keys()], []);
  const oneUnknown = holdersAt([{ x: 5 }, undefined, {}]);
  assert(!oneUnknown.isTaken());
  assert.deepEqual([...oneUnknown.partialHolders(0, "own").keys()], ["x"]);
});

test("members that are closed count as held by one other client", () => {
  const ages = [new Map(), new Map(), new Map([["x", 5]])];
  assert(new Holders(ages, 2, 2).isTaken());
  assert(!new Holders(ages, 2, 1).isTaken());
});

// The ages of the holds by token, for each member, and whether the queue of member 0 can move. It cannot if its
// member has holders, and none of them can have a majority.
for (const [ages, canMove] of [
  [[{ a: 1 }, { a: 1 }, { b: 1 }], true],
  [[{ a: 1 }, { b: 1 }, { b: 1 }], false],
  [[{ a: 1 }, { b: 1 }, undefined], true],
  [[undefined, { b: 1 }, { b: 1 }], true],
  [[{ a: 1 }, {}, {}], false],
  [[{}, { b: 1 }, { b: 1 }], true],
]) {
  test(`the queue of the first member ${canMove ? "can" : "cannot"} move: ${JSON.stringify(ages)}`, () => {
    assert.equal(holdersAt(ages).queueCanMove(0), canMove);
  });
}

// Whether the queue is the last one, the age of its hold in ms, and whether the waits leave it.
for (const [isLast, age, leaves] of [
  [false, 5, true],
  [true, 1999, false],
  [true, 2000, true],
]) {
  const queue = isLast ? "the last queue" : "an earlier queue";
  test(`if ${queue} does not move and its hold is ${age} ms old, the waits ${leaves ? "leave" : "stay in"} it`, () => {
    const { members } = threeMembers();
    const watch = new QueueChoice(members).watch(2, request);
    // Two checks must find that the queue does not move.
    for (let checks = 0; checks < 2; checks++) {
      assert.equal(watch.departures, 0);
      while (performance.now() < watch.wakeAt());
      play(watch.check(isLast), () => [{}, {}, { left: age }]);
    }
    assert.equal(watch.departures, leaves ? 1 : 0);
  });
}

test("a check asks only the member of the queue while that shows the holders that were known to have a majority", () => {
  const { members } = threeMembers();
  const watch = new QueueChoice(members).watch(0, request);
  /** Carries out the next check. Returns the members that it asks. */
  const check = (ages) => {
    suspend(15_000);
    const asked = [];
    const replyOf = (member) => {
      asked.push(member);
      return inspectReply(ages[member]);
    };
    const steps = watch.check(false);
    let next = steps.next();
    while (!next.done) {
      const { member, members = [] } = next.value;
      const replies = new Map(members.map((asked) => [asked, replyOf(asked)]));
      next = steps.next(member === undefined ? replies : replyOf(member));
    }
    return asked;
  };
  const majority = (token) => [{ [token]: 1 }, { [token]: 1 }, {}];
  assert.deepEqual(check(majority("a")), [0, 1, 2]);
  assert.deepEqual(check(majority("a")), [0]);
  assert.deepEqual(check(majority("b")), [0, 0, 1, 2]);
  assert.deepEqual(check([{ c: 1 }, {}, {}]), [0, 0, 1, 2]);
  assert.equal(watch.departures, 0);
  assert.deepEqual(check([{ c: 1 }, {}, {}]), [0, 1, 2]);
  assert.equal(watch.departures, 1);
  check(majority("d"));
  suspend(60_000);
  assert.deepEqual(check(majority("d")), [0, 1, 2]);
});

onEachServer(
  (env) => {
    const { masters, quorumOf, untilWaiters } = mastersFor(env);
    // No lease ends during a test.
    const lock = (quorum) => new Lock(quorum, "foo", { ttl: TEN_MINUTES });
    const leaveHold = (at, token = "left") => masters[at].ask("DLOCK.ACQUIRE", "foo", token, TEN_MINUTES);

    /** Each client acquires and releases the lock again and again, until `isEnough` accepts the numbers of
     * acquisitions by client. Returns these numbers. */
    async function contend(quorums, isEnough) {
      const counts = quorums.map(() => 0);
      let isOver = false;
      const work = quorums.map(async (quorum, client) => {
        while (!isOver) {
          const hold = await lock(quorum).acquire();
          counts[client] += 1;
          // A release that a busy machine confirms too late is repeated in the background.
          await hold.release().catch((why) => assert(why instanceof NoQuorumError, why));
        }
      });
      let countsAtEnd;
      try {
        const enough = until(
          "all clients have acquired the lock often enough",
          () => isEnough(counts),
          120_000,
        );
        // `work` ends the race only if it fails.
        await Promise.race([enough, Promise.all(work)]);
        countsAtEnd = [...counts];
      } finally {
        isOver = true;
      }
      await Promise.all(work);
      return countsAtEnd;
    }

    for (const at of [0, 1, 2]) {
      test(`three clients all acquire the lock despite a hold left behind at member ${at}`, async () => {
        await leaveHold(at);
        const quorums = [await quorumOf(masters), await quorumOf(masters), await quorumOf(masters)];
        await contend(quorums, (counts) => counts.every((count) => count >= 20));
        assert(await masters[at].exists());
      });
    }

    test("a wait at the last member goes back to the first queue when the last one does not move", async () => {
      for (const at of [0, 1, 2]) await leaveHold(at, `left ${at}`);
      const acquiring = lock(await quorumOf(masters)).acquire();
      // The client waits at member 2, which is the last one.
      await untilWaiters(0, 0, 1);
      // Now a majority can grant, and the last queue still does not move.
      for (const at of [0, 1]) await masters[at].ask("DLOCK.RELEASE", "foo", `left ${at}`);
      await (await acquiring).release();
    });

    for (const at of [undefined, 0, 1]) {
      const where = at === undefined ? "no member" : `member ${at}`;
      test(`22 waits, 20 of them of one client, get fair shares: hold left behind at ${where}`, async () => {
        if (at !== undefined) await leaveHold(at);
        const busyClient = await quorumOf(masters);
        const quorums = [await quorumOf(masters), await quorumOf(masters), ...Array(20).fill(busyClient)];
        const sum = (counts) => counts.reduce((a, b) => a + b);
        // The waits first have to leave the queue that does not move. So the count begins once each wait has
        // had the lock five times.
        let before;
        const counts = await contend(quorums, (counts) => {
          if (counts.every((count) => count >= 5)) before ??= [...counts];
          return before !== undefined && sum(counts) >= sum(before) + 40 * counts.length;
        });
        const shares = counts.map((count, index) => count - before[index]);
        // Jain's fairness index: 1 if all shares are equal.
        const fairness = sum(shares) ** 2 / (shares.length * sum(shares.map((share) => share ** 2)));
        assert(fairness > 0.8, `${shares}: ${fairness}`);
      });
    }
  },
  { isParallel: true },
);
