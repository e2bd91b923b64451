// Carries out steps.

import { bounded, TimeLimit } from "./bounded.js";
import type { Channel } from "./channel.js";
import { now } from "./clock.js";
import {
  Aborted,
  type Answers,
  Ask,
  Begin,
  Listen,
  type Owe,
  Pause,
  Sleep,
  type Step,
  type Steps,
  type Task,
  To,
  Watch,
} from "./steps.js";

// How long an answer may take: for the caller, and in the background. And how long the caller waits for
// releases that are owed. ms.
const ANSWER = 5000;
const LIMIT = 1000;
const PATIENCE = 500;
// The longest timer before the clock is read again: timers stop while the machine is suspended.
const TICK = 1000;

/** A server, or the members of a quorum. */
export interface Where {
  readonly channels: readonly Channel[];
  /** How long an answer may take, ms: of a member of a quorum. */
  readonly limit?: number;
}

/** Carries out `steps`. Once `signal` is aborted, they are told so, and may still clean up. */
export async function run<T>(
  steps: Steps<T>,
  where: Where,
  signal?: AbortSignal,
  limit = where.limit ?? ANSWER,
): Promise<T> {
  signal?.throwIfAborted();
  let live = signal;
  try {
    let turn = steps.next();
    while (!turn.done) {
      let outcome: unknown;
      try {
        outcome = await perform(turn.value, where, limit, live);
      } catch (why) {
        if (why instanceof Aborted) live = undefined;
        turn = steps.throw(why);
        continue;
      }
      turn = steps.next(outcome);
    }
    return turn.value;
  } catch (why) {
    throw why instanceof Aborted ? why.reason : why;
  }
}

function perform(step: Step, where: Where, limit: number, signal: AbortSignal | undefined): unknown {
  if (Array.isArray(step)) return where.channels[0]!.send(step, limit, signal);
  if (step instanceof Pause) return within(step.wait.bell.rung(), step.ms, signal);
  if (step instanceof Sleep) return within(new Promise(() => {}), step.ms, signal);
  if (step instanceof Listen) return where.channels[0]!.listen();
  if (step instanceof Watch) return watch(step.task, where);
  if (step instanceof Ask) return ask(step, where, limit, signal);
  if (step instanceof Begin)
    return begin(step.steps, step.member === undefined ? where : where.channels[step.member]!, limit);
  if (step instanceof To) return perform(step.step, where.channels[step.member]!, limit, signal);
  return owe(step as Owe, where);
}

/** Waits for it, but not longer than this. */
async function within(work: Promise<unknown>, ms: number, signal?: AbortSignal): Promise<void> {
  try {
    await bounded(work, ms, signal);
  } catch (why) {
    if (!(why instanceof TimeLimit)) throw why;
  }
}

function ask(step: Ask, where: Where, limit: number, signal: AbortSignal | undefined): Promise<Answers> {
  const answers: Answers = new Map();
  const asked = new Promise<Answers>((resolve) => {
    let decided = step.members.length === 0 || step.enough(answers);
    if (decided) resolve(answers);
    const note = (member: number, answer: unknown) => {
      const then = step.heard(member, answer);
      if (then !== undefined) begin(then, where.channels[member]!, limit);
      if (decided) return;
      answers.set(member, answer);
      decided = step.enough(answers) || answers.size === step.members.length;
      if (decided) resolve(answers);
    };
    for (const member of step.members) {
      where.channels[member]!.send(step.command, limit).then(
        (answer) => note(member, answer),
        (why) => note(member, why),
      );
    }
  });
  return signal === undefined ? asked : bounded(asked, Number.POSITIVE_INFINITY, signal);
}

/** Nobody waits for it. */
function begin(steps: Steps<void>, where: Where, limit: number): void {
  run(steps, where, undefined, limit).catch((why) => process.emitWarning(why));
}

function owe(step: Owe, where: Where): Promise<void> {
  const enough = new Promise<void>((resolve) => {
    for (const [member, owed] of step.owed) {
      owed.answered = () => step.enough() && resolve();
      watch(owed, where.channels[member]!);
    }
    if (step.enough()) resolve();
  });
  return within(enough, PATIENCE);
}

/** Wakes the task when it wants to be woken. Keeps no process alive. */
function watch(task: Task, where: Where): void {
  let timer: NodeJS.Timeout | undefined;
  const arm = () => {
    clearTimeout(timer);
    if (task.finished()) return;
    timer = setTimeout(look, Math.min(Math.max(task.wakeAt() - now(), 0), TICK));
    timer.unref();
  };
  const look = () => {
    if (!task.finished() && task.wakeAt() <= now()) {
      const steps = task.wake();
      if (steps !== undefined) {
        run(steps, where, undefined, LIMIT).then(arm, (why) => process.emitWarning(why));
      }
    }
    // The clock goes on meanwhile: a hold can be lost while its renewal hangs.
    arm();
  };
  task.forget = arm;
  look();
}
