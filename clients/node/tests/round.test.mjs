// The rounds of an acquisition, without servers: which answers count, and from when.

import assert from "node:assert/strict";
import { test } from "node:test";
import { LockError, NoAnswerError } from "dlock";
import { now, validity } from "../dist/clock.js";
import { QueueChoice } from "../dist/queue-choice.js";
import { QuorumAttempt } from "../dist/quorum-attempt.js";
import { Round } from "../dist/round.js";
import { Ask, Owe, Sleep } from "../dist/steps.js";
import { request, threeMembers } from "./members.mjs";

const LEASE = 10_000;
const ahead = new LockError("FENCEAHEAD its clock is behind");

/** A fenced round over three members that has these grants. `answer` answers its next confirm phase. */
class ConfirmPhases {
  #steps;
  #turn;

  constructor(grants, lease = LEASE) {
    const { members } = threeMembers();
    this.round = new Round(members, new QueueChoice(members), { ...request, lease }, true, 1000, []);
    this.#steps = this.round.atOnce();
    this.#answerAll(this.#steps.next().value, grants);
    this.#turn = this.#steps.next(new Map(grants.map((grant, member) => [member, grant])));
  }

  /** Lets each member that was asked note its answer. */
  #answerAll(ask, answers) {
    for (const member of ask.members) {
      const steps = ask.steps(member);
      steps.next();
      steps.next(answers[member]);
    }
  }

  get members() {
    return this.#turn.value.members;
  }

  enough(answers) {
    return this.#turn.value.enough(new Map(answers));
  }

  /** Returns the result of the round, or undefined while it continues. */
  answer(answers) {
    this.#turn = this.#steps.next(new Map(answers));
    return this.#turn.done ? this.#turn.value : undefined;
  }
}

for (const [what, last, isTaken] of [
  ["taken", null, true],
  ["outage", new NoAnswerError("down"), false],
]) {
  test(`a round without a majority waits for the answer that tells taken from an outage: ${what}`, () => {
    const { members } = threeMembers();
    const round = new Round(members, new QueueChoice(members), request, false, 1000, []);
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
    assert.equal(round.mayBeTaken(), isTaken);
  });
}

/** Carries out steps. `reply` returns a member's reply to a command, which may be an error. */
function carryOut(steps, reply, member) {
  const outcomeOf = (step) => {
    if (step instanceof Sleep || step instanceof Owe) return undefined;
    if (!(step instanceof Ask)) return reply(member, step.command ?? step);
    const answers = new Map();
    for (const asked of step.members) {
      if (step.enough(answers)) break;
      try {
        answers.set(asked, carryOut(step.steps(asked), reply, asked));
      } catch (why) {
        answers.set(asked, why);
      }
    }
    return answers;
  };
  let turn = steps.next();
  while (!turn.done) {
    const outcome = outcomeOf(turn.value);
    turn = outcome instanceof Error ? steps.throw(outcome) : steps.next(outcome);
  }
  return turn.value;
}

for (const [what, isDown] of [
  ["taken", false],
  ["outage", true],
]) {
  test(`tryAcquire asks all members after its last split vote: ${what}`, () => {
    const { members } = threeMembers();
    const attempt = new QuorumAttempt(members, new QueueChoice(members), request, false, 1000);
    let isSplit = false;
    const reply = (member, [name]) => {
      if (name === "DLOCK.INSPECT") {
        isSplit = true;
        return ["holders", [["token", `${member}`, "held", 1]]];
      }
      return isDown && isSplit && member > 0 ? new Error("READONLY a replica") : null;
    };
    const tried = () => carryOut(attempt.run(false, Number.POSITIVE_INFINITY), reply);
    if (isDown) assert.throws(tried, /NoQuorumError.*no majority can grant/);
    else assert.equal(tried(), null);
  });
}

test("the report of a vote says which members have the hold", () => {
  const { members } = threeMembers();
  const answers = new Map([true, false, new NoAnswerError("down")].entries());
  assert.equal(members.report(answers), "a: held; b: not held; c: down");
});

test("a majority confirms the greatest fence, with validity from before the phase", () => {
  const before = now();
  const phases = new ConfirmPhases([5, 7, 6]);
  const since = now();
  const won = phases.answer([
    [0, 7],
    [1, 7],
  ]);
  assert.equal(won.fence, 7);
  assert(won.validUntil >= before + validity(LEASE) && won.validUntil <= since + validity(LEASE));
});

test("a confirm phase is too late after the end of validity", () => {
  const phases = new ConfirmPhases([5, 7, 6], 1);
  assert.equal(
    phases.answer([
      [0, 7],
      [1, 7],
    ]),
    null,
  );
});

test("a greater answer begins the next phase with no answer counted", () => {
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
  // One answer of this phase and one of the last would be a majority.
  assert(!phases.enough([[0, 9]]));
  const won = phases.answer([
    [0, 9],
    [1, 9],
  ]);
  assert.equal(won.fence, 9);
});

test("only members with a counted grant confirm", () => {
  const phases = new ConfirmPhases([5, 7, null]);
  assert.deepEqual(phases.members, [0, 1]);
  assert.equal(
    phases.answer([
      [0, 7],
      [1, null],
    ]),
    null,
  );
});

test("a confirm phase without answers is an outage", () => {
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
  assert(!phases.round.mayBeTaken());
});

test("a member with a clock ahead is dropped and reported", () => {
  const phases = new ConfirmPhases([5, 900, 6]);
  assert.equal(
    phases.answer([
      [0, ahead],
      [1, 900],
      [2, ahead],
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
