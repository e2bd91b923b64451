// The rounds of an acquisition from a quorum, without servers. In a round, the client asks the members for
// their votes. A fenced round also has confirm phases: in each, the client asks the members that granted to
// accept the greatest of their fences.

import assert from "node:assert/strict";
import { test } from "node:test";
import { LockError, NoAnswerError } from "dlock";
import { now, validity } from "../dist/clock.js";
import { Ask, Owe, Shared, Sleep } from "../dist/steps.js";
import { acquisition, info, roundOf, threeMembers } from "./members.mjs";

const LEASE = 10_000;
// The answer to CONFIRM of a member whose own clock is far behind the fence.
const FENCE_AHEAD = new LockError("FENCEAHEAD the fence is ahead of the clock");

/** A fenced round over three members that answered `grants` to ACQUIRE. The round is in its first
 * confirm phase. */
class ConfirmPhases {
  #steps;
  #next;

  constructor(grants, lease = LEASE) {
    const { members } = threeMembers();
    this.round = roundOf(members, [], { fenced: true, lease });
    this.#steps = this.round.atOnce();
    this.#answerAll(this.#steps.next().value, grants);
    this.#next = this.#steps.next(new Map(grants.map((grant, member) => [member, grant])));
  }

  /** Runs the steps of `ask` for each member that it asks, with the member's answer. */
  #answerAll(ask, answers) {
    for (const member of ask.members) {
      const steps = ask.steps(member);
      steps.next();
      steps.next(answers[member]);
    }
  }

  /** Returns the members that the present phase asks. */
  get members() {
    return this.#next.value.members;
  }

  /** Returns whether these answers end the present phase. */
  enough(answers) {
    return this.#next.value.enough(new Map(answers));
  }

  /** Sends the present phase's CONFIRM to a member that does not answer it. */
  sendWithoutAnswer(member) {
    this.#next.value.steps(member).next().value.sent();
  }

  /** Ends the present phase with these answers. Returns the result of the round; undefined while it
   * continues. */
  answer(answers) {
    this.#next = this.#steps.next(new Map(answers));
    return this.#next.done ? this.#next.value : undefined;
  }
}

// One member refuses, and one is down: if the last member refuses, too, another client may have a majority.
for (const [what, last, isTaken] of [
  ["taken", null, true],
  ["outage", new NoAnswerError("down"), false],
]) {
  test(`a round with no majority waits for the answer that decides between taken and outage: ${what}`, () => {
    const { members } = threeMembers();
    const round = roundOf(members, []);
    const steps = round.atOnce();
    const { enough } = steps.next().value;
    const answers = new Map([
      [0, null],
      [1, new NoAnswerError("down")],
    ]);
    assert(!enough(answers), "the last member decides");
    answers.set(2, last);
    assert(enough(answers));
    steps.next(answers);
    assert.equal(round.canMajorityVote(), isTaken);
  });
}

/** Runs the generator `steps`, and returns its result. `reply` returns a member's reply to a command, which may
 * be an error. `member`: the member that replies to the commands of `steps`. */
function runSteps(steps, reply, member) {
  const outcomeOf = (step) => {
    if (step instanceof Sleep || step instanceof Owe) return undefined;
    if (step instanceof Shared) return runSteps(step.steps(), reply, member);
    if (!(step instanceof Ask)) return reply(member, step.command ?? step);
    const answers = new Map();
    for (const asked of step.members) {
      if (step.enough(answers)) break;
      try {
        answers.set(asked, runSteps(step.steps(asked), reply, asked));
      } catch (why) {
        answers.set(asked, why);
      }
    }
    return answers;
  };
  let next = steps.next();
  while (!next.done) {
    const outcome = outcomeOf(next.value);
    next = outcome instanceof Error ? steps.throw(outcome) : steps.next(outcome);
  }
  return next.value;
}

// After a split vote (no client got a majority), a round asks the members in order, and ends at the first
// refusal. A single refusal does not show whether a majority can vote at all. So tryAcquire ends with one
// more round, which asks all members at once.
for (const [what, isDown] of [
  ["taken", false],
  ["outage", true],
]) {
  test(`after split votes, tryAcquire ends with a round that asks all members: ${what}`, () => {
    const { members } = threeMembers();
    let hasReadHolders = false;
    const reply = (member, [name]) => {
      if (name === "DLOCK.INSPECT") {
        hasReadHolders = true;
        // Each member has a different holder, so no client has a majority.
        return ["holders", [["token", `holder ${member}`, "held", 1]]];
      }
      return isDown && hasReadHolders && member > 0 ? new Error("READONLY a replica") : null;
    };
    const tried = () => runSteps(acquisition(members, { waits: false }), reply);
    if (isDown) assert.throws(tried, /NoQuorumError.*no majority can grant/);
    else assert.equal(tried(), null);
  });
}

// Members 1 and 2 grant, but do not answer whether they accept the delay of `atLeast`.
test("atLeast acquires nothing unless a majority has accepted the delay", () => {
  const { members, channels } = threeMembers();
  const asked = [];
  let hasGranted = false;
  const reply = (member, [name]) => {
    if (name === "DLOCK.ACQUIRE") {
      hasGranted = true;
      return 5;
    }
    asked.push(member);
    if (member === 0) return 0;
    channels[member].isSilent = hasGranted;
    return new NoAnswerError("no answer");
  };
  const tried = () => runSteps(acquisition(members, { waits: false, atLeast: 5 }), reply);
  assert.throws(tried, /^NoQuorumError: .*a: granted; b: no answer; c: silent/);
  assert.deepEqual(asked, [0, 1, 2, 1, 2]);
});

test("two members whose servers change places do not both vote by the same server", () => {
  const { members, channels } = threeMembers();
  const ask = roundOf(members, []).atOnce().next().value;
  const answers = new Map();
  const grant = (member, fence) => {
    const steps = ask.steps(member);
    steps.next();
    answers.set(member, steps.next(fence).value);
  };
  grant(0, 5);
  for (const member of [0, 2]) channels[member].connections += 1;
  members.record(0, info("2"));
  members.record(2, info("0"));
  grant(2, 6);
  assert(!ask.enough(answers));
  grant(1, 7);
  assert(ask.enough(answers));
});

test("a round that has the first grant identifies the other members if they have reconnected", () => {
  const { members, channels } = threeMembers();
  const reply = (member, [name]) => {
    if (name === "INFO") return info(`${member}`);
    if (member === 0) for (const other of [1, 2]) channels[other].connections = 2;
    return 5 + member;
  };
  assert.notEqual(runSteps(roundOf(members, [0, 1, 2]).inOrder(), reply), null);
});

test("the report of a vote says which members have the hold", () => {
  const { members } = threeMembers();
  const answers = new Map([true, false, new NoAnswerError("down")].entries());
  assert.equal(members.report(answers), "a: held; b: not held; c: down");
  answers.set(2, new NoAnswerError("c: no answer within 5 ms"));
  assert.equal(members.report(answers), "a: held; b: not held; c: no answer within 5 ms");
});

test("a majority confirms the greatest fence, and validity counts from the start of the phase", () => {
  const beforePhase = now();
  const phases = new ConfirmPhases([5, 7, 6]);
  const afterSend = now();
  const won = phases.answer([
    [0, 7],
    [1, 7],
  ]);
  assert.equal(won.fence, 7);
  assert(won.validUntil >= beforePhase + validity(LEASE));
  assert(won.validUntil <= afterSend + validity(LEASE));
});

test("a CONFIRM without an answer leaves its lease unanswered", () => {
  const phases = new ConfirmPhases([5, 7, 6]);
  const { holds } = phases.round;
  phases.sendWithoutAnswer(1);
  assert(holds.leases(1).isCertain(LEASE));
  assert(!holds.leases(1).isCertain(LEASE + 1), "the CONFIRM may still arrive and set its lease");
  assert(holds.leases(0).isCertain(LEASE + 1));
});

test("a confirm phase is too late after the end of validity", () => {
  // The validity of a lease of 1 ms has ended before it begins: `validity` takes off 2 ms.
  const phases = new ConfirmPhases([5, 7, 6], 1);
  assert.equal(
    phases.answer([
      [0, 7],
      [1, 7],
    ]),
    null,
  );
});

test("an answer with a greater fence begins a phase in which no earlier answer counts", () => {
  const phases = new ConfirmPhases([5, 7, 6]);
  assert.equal(
    phases.answer([
      [0, 9],
      [1, 7],
      [2, null],
    ]),
    undefined,
  );
  assert.deepEqual(phases.members, [0, 1]);
  // In the previous phase, member 1 confirmed 7 and not 9. So the 9 of member 0 is no majority.
  assert(!phases.enough([[0, 9]]));
  const won = phases.answer([
    [0, 9],
    [1, 9],
  ]);
  assert.equal(won.fence, 9);
});

test("only members that have granted are asked to confirm", () => {
  const phases = new ConfirmPhases([5, 7, null]);
  assert.deepEqual(phases.members, [0, 1]);
  // Member 1 has lost the hold.
  assert.equal(
    phases.answer([
      [0, 7],
      [1, null],
    ]),
    null,
  );
});

test("a confirm phase that no majority answers is an outage", () => {
  const phases = new ConfirmPhases([5, 7, 6]);
  const down = new NoAnswerError("down");
  assert.equal(
    phases.answer([
      [0, 7],
      [1, down],
      [2, down],
    ]),
    null,
  );
  assert(!phases.round.canMajorityVote());
});

test("a member with a clock ahead of the others is dropped and reported", () => {
  // Fences follow the clock. The clock of member 1 is ahead, and the other members refuse its fence.
  const phases = new ConfirmPhases([5, 900, 6]);
  assert.equal(
    phases.answer([
      [0, FENCE_AHEAD],
      [1, 900],
      [2, FENCE_AHEAD],
    ]),
    undefined,
  );
  assert.deepEqual(phases.members, [0, 2]);
  const won = phases.answer([
    [0, 6],
    [2, 6],
  ]);
  assert.equal(won.fence, 6);
  assert.match(`${phases.round.answers.get(1)}`, /FENCEAHEAD/);
});
