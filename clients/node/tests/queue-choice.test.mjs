// In which member's queue a client waits, also when a dead client has left a hold at a minority of the
// members: first without servers, then with three members.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Lock, NoAnswerError, NoQuorumError } from "dlock";
import { Holders } from "../dist/holders.js";
import { QueueChoice } from "../dist/queue-choice.js";
import { QuorumAttempt } from "../dist/quorum-attempt.js";
import { Round } from "../dist/round.js";
import { run } from "../dist/run.js";
import { Ask, Begin, Listen, Sleep } from "../dist/steps.js";
import { times, WaitRegistry } from "../dist/waits.js";
import { request, threeMembers } from "./members.mjs";
import { mastersFor, onEach, until } from "./support.mjs";

// A busy machine confirms releases late.
Object.assign(times, { nodeTimeout: 10_000, patience: 20_000 });

const MINUTES = 600_000;
const holders = (tokens) => [
  "holders",
  Object.entries(tokens).map(([token, held]) => ["token", token, "held", held]),
];

/** Carries out steps. `answer(n)` returns the holders by member for the n-th look, which sends INSPECT to all
 * members. */
function play(steps, answer) {
  let looks = 0;
  let turn = steps.next();
  while (!turn.done) {
    const step = turn.value;
    if (step instanceof Ask) {
      const found = answer(looks++);
      turn = steps.next(new Map(step.members.map((member) => [member, holders(found[member] ?? {})])));
    } else {
      assert(step instanceof Sleep);
      turn = steps.next();
    }
  }
  return turn.value;
}

// The answers to ACQUIRE by member: a fence, null for a refusal, undefined for none yet.
for (const [order, answers, queue] of [
  [[0, 1, 2], [5, 6, 7], undefined],
  // A later member refuses: other clients queue there.
  [[0, 1, 2], [5, 6, null], 2],
  [[0, 1, 2], [5, null, null], 1],
  // The first queue in the order refuses: go to the next one, if there is one.
  [[0, 1, 2], [null], 1],
  [[2], [undefined, undefined, null], undefined],
  // A client that waits in a later queue stays there.
  [[1, 2], [null, 6, 7], 1],
]) {
  test(`if the members answer ${answers.map(String)} and the order is ${order}, the next queue is ${queue}`, () => {
    const { members } = threeMembers();
    const round = new Round(members, new QueueChoice(members), request, false, 1000, order);
    round.queued(Number.POSITIVE_INFINITY).next();
    round.answers = new Map([...answers.entries()].filter(([, answer]) => answer !== undefined));
    assert.equal(round.nextQueue(), queue);
  });
}

test("all waits move to a later queue together, and none moves back", () => {
  const { members } = threeMembers();
  const choice = new QueueChoice(members);
  const watches = members.all().map((member) => choice.watch(member, request));
  const left = () => watches.map((watch) => watch.departures);
  choice.moveToQueue("foo", 1);
  assert.deepEqual(left(), [1, 0, 1]);
  choice.moveToQueue("foo", 0);
  assert.deepEqual(choice.order("foo"), [1, 2]);
  assert.deepEqual(left(), [1, 0, 1]);
});

test("a new wait begins in the later queue where other waits of the client are", () => {
  const { members } = threeMembers();
  const choice = new QueueChoice(members);
  choice.contended.note("foo");
  choice.moveToQueue("foo", 1);
  const steps = new QuorumAttempt(members, choice, request, false, 1000).run(true, Number.POSITIVE_INFINITY);
  const { value } = steps.next();
  assert.equal(value.member, 1);
  assert(value.step instanceof Listen);
});

/** Returns the answers to ACQUIRE by member, and the token. The other members have not answered. */
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

/** Asks all members for the lock. */
function acquire(replies) {
  const { members } = threeMembers();
  const choice = new QueueChoice(members);
  const acquiring = new QuorumAttempt(members, choice, request, false, 1000).run(
    true,
    Number.POSITIVE_INFINITY,
  );
  const { value: ask } = acquiring.next();
  const { answers, token } = answersTo(ask, replies);
  return { choice, token, ask, acquiring, next: acquiring.next(answers) };
}

// The holds at the refusing member at the first and at the second look (age in ms by token), and the order of
// the queues after these looks.
for (const [what, before, after, order] of [
  ["a hold that stays", { x: 5 }, { x: 1999 }, [2]],
  ["a hold that was left behind", { x: 5 }, { x: 2000 }, [0, 1, 2]],
  ["a hold that follows another one", { x: 5 }, { y: 5 }, [0, 1, 2]],
  ["its own hold", { own: 5 }, { own: 5 }, [0, 1, 2]],
]) {
  const look = ({ choice, token }, steps) => {
    const named = (found) =>
      Object.fromEntries(Object.entries(found).map(([name, held]) => [name === "own" ? token : name, held]));
    play(steps, (at) => ({ 2: named([before, after][at]) }));
    assert.deepEqual(choice.order("foo"), order);
    // The next look may begin at once only if nothing was found.
    const isFound = Object.keys(before).some((name) => name in after && name !== "own");
    assert.equal(choice.lookForOthers(request, 2, token) === undefined, isFound);
  };

  test(`a client with a majority, refused by one member, finds there: ${what}`, () => {
    const won = acquire({ 0: 5, 1: 6, 2: null });
    assert(won.next.value instanceof Begin);
    look(won, won.next.value.steps);
  });

  test(`a client with a majority, refused late by one member, finds there: ${what}`, () => {
    const won = acquire({ 0: 5, 1: 6 });
    assert(won.next.done);
    look(won, won.ask.late(2, null));
  });
}

test("a client looks for others after a late answer only if that answer is a refusal, from a later queue, and the client has won", () => {
  assert.equal(acquire({ 0: 5, 1: 6 }).ask.late(2, 7), undefined);
  assert.equal(acquire({ 0: 5, 2: 7 }).ask.late(1, new NoAnswerError("slow")), undefined);
  assert.equal(acquire({ 0: null, 1: null }).ask.late(2, null), undefined, "the round was not won");
  const gaveBack = acquire({ 0: null, 1: 6, 2: 7 });
  gaveBack.acquiring.next(["waiter"]);
  assert.equal(gaveBack.ask.late(2, null), undefined, "the round gave its majority back");
});

test("also after it waited in a later queue, a client that is refused late looks for other clients", () => {
  const { members } = threeMembers();
  const round = new Round(members, new QueueChoice(members), request, false, 1000, [1, 2]);
  const waiting = round.queued(Number.POSITIVE_INFINITY);
  assert(waiting.next().value.step instanceof Listen);
  const registry = new WaitRegistry();
  registry.hasTriedToSubscribe = true;
  assert.equal(waiting.next(registry.open()).value.step.command[0], "DLOCK.ACQUIRE");
  const { value: ask } = waiting.next(5);
  assert(waiting.next(answersTo(ask, { 0: 6, 1: 5 }).answers).done);
  assert.equal(round.nextQueue(), 1, "other clients may wait in the queue of member 1");
  assert.notEqual(ask.late(2, null), undefined);
});

test("an answer that arrives after the outcome of an Ask goes to `late`, whose steps can ask all members", async () => {
  let answerLate;
  const replies = [1, 2, new Promise((resolve) => (answerLate = resolve))];
  const channels = replies.map((reply) => ({ send: async () => reply }));
  for (const channel of channels) channel.channels = [channel];
  const seen = [];
  const steps = (function* () {
    const late = function* (...answer) {
      seen.push(answer);
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

test("a holder has a majority, or its holds are partial", () => {
  const seen = (...tokens) =>
    new Holders(
      tokens.map((tokens) => tokens && new Map(Object.entries(tokens))),
      2,
    );
  const both = seen({ x: 5 }, {}, { x: 5, y: 5 });
  assert(both.hasMajority());
  assert.deepEqual([...both.partialHolders(2, "own").keys()], ["y"]);
  assert.deepEqual([...both.partialHolders(2, "y").keys()], []);
  const parts = seen({ x: 5 }, undefined, {});
  assert(!parts.hasMajority());
  assert.deepEqual([...parts.partialHolders(0, "own").keys()], ["x"], "one member's holders are unknown");
});

for (const [seen, canMove] of [
  [[{ a: 1 }, { a: 1 }, { b: 1 }], true],
  [[{ a: 1 }, { b: 1 }, { b: 1 }], false],
  [[{ a: 1 }, { b: 1 }, undefined], true],
  [[undefined, { b: 1 }, { b: 1 }], true],
  [[{ a: 1 }, {}, {}], false],
  [[{}, { b: 1 }, { b: 1 }], true],
]) {
  test(`the queue of the first member ${canMove ? "can" : "cannot"} move: ${JSON.stringify(seen)}`, () => {
    const tokens = seen.map((tokens) => tokens && new Map(Object.entries(tokens)));
    assert.equal(new Holders(tokens, 2).queueCanMove(0), canMove);
  });
}

for (const [isLast, age, leave] of [
  [false, 5, true],
  [true, 1999, false],
  [true, 2000, true],
]) {
  const queue = isLast ? "the last queue" : "an earlier queue";
  test(`if ${queue} does not move and its hold is ${age} ms old, the waits ${leave ? "leave" : "stay in"} it`, () => {
    const { members } = threeMembers();
    const watch = new QueueChoice(members).watch(2, request);
    for (let looks = 0; looks < 2; looks++) {
      while (performance.now() < watch.wakeAt());
      play(watch.check(isLast), () => [{}, {}, { left: age }]);
      if (looks === 0) assert.equal(watch.departures, 0);
    }
    assert.equal(watch.departures, leave ? 1 : 0);
  });
}

onEach(
  (bench) => {
    const { masters, quorumOf, waits } = mastersFor(bench);
    // No lease ends during a test.
    const lock = (members) => new Lock(members, "foo", { ttl: MINUTES });
    const leaveHold = (at, token = "left") => masters[at].ask("DLOCK.ACQUIRE", "foo", token, MINUTES);

    /** Each client acquires and releases the lock again and again. Returns the number of turns of each client,
     * once `isEnough` accepts them. */
    async function contend(quorums, isEnough) {
      const counts = quorums.map(() => 0);
      let over = false;
      const work = quorums.map(async (members, at) => {
        while (!over) {
          const hold = await lock(members).acquire();
          counts[at] += 1;
          // A release that a busy machine confirms too late is repeated in the background.
          await hold.release().catch((why) => assert(why instanceof NoQuorumError, why));
        }
      });
      let turns;
      try {
        const enough = until("all had enough turns", () => isEnough(counts), 120_000);
        await Promise.race([enough, Promise.all(work)]);
        turns = [...counts];
      } finally {
        over = true;
      }
      await Promise.all(work);
      return turns;
    }

    for (const at of [0, 1, 2]) {
      test(`three clients contend although a hold was left behind at member ${at}`, async () => {
        await leaveHold(at);
        const quorums = [await quorumOf(masters), await quorumOf(masters), await quorumOf(masters)];
        await contend(quorums, (counts) => counts.every((count) => count >= 20));
        assert(await masters[at].exists());
      });
    }

    test("a wait at the last member goes back to the first queue when the last one does not move", async () => {
      for (const at of [0, 1, 2]) await leaveHold(at, `left ${at}`);
      const hold = lock(await quorumOf(masters)).acquire();
      await waits(0, 0, 1);
      for (const at of [0, 1]) await masters[at].ask("DLOCK.RELEASE", "foo", `left ${at}`);
      await (await hold).release();
    });

    for (const at of [undefined, 0, 1]) {
      test(`a client with 20 waits gets its share: hold left behind at ${at === undefined ? "no member" : `member ${at}`}`, async () => {
        if (at !== undefined) await leaveHold(at);
        const crowd = await quorumOf(masters);
        const quorums = [await quorumOf(masters), await quorumOf(masters), ...Array(20).fill(crowd)];
        const sum = (counts) => counts.reduce((a, b) => a + b);
        // Counts the turns from the time when all clients have left the queue that does not move.
        let before;
        const counts = await contend(quorums, (counts) => {
          if (counts.every((count) => count >= 5)) before ??= [...counts];
          return before !== undefined && sum(counts) >= sum(before) + 40 * counts.length;
        });
        const shares = counts.map((count, index) => count - before[index]);
        const jain = sum(shares) ** 2 / (shares.length * sum(shares.map((share) => share ** 2)));
        assert(jain > 0.8, `${shares}: ${jain}`);
      });
    }
  },
  { isParallel: true },
);
