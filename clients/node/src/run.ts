// Carries out the steps that generators yield (see `steps.ts`): sends commands, sleeps, and wakes tasks.

import type { Channel } from "./channel.js";
import { Aborted, now, TimedOut, withTimeout } from "./clock.js";
import {
  type Answers,
  Ask,
  Begin,
  Listen,
  type Owe,
  Pause,
  Replicate,
  Send,
  Shared,
  Sleep,
  type Step,
  type Steps,
  type Task,
  To,
  Watch,
  WatchLoss,
} from "./steps.js";
import { times } from "./waits.js";

// Time limit of each answer to a command of a `Task`, ms.
const BACKGROUND_ANSWER = 1000;
// Longest timer, ms. Timers stop while the machine is suspended, so the clock is read again after this time.
const TICK = 1000;

/** The servers that receive the commands: a single one (a `Channel` is also a `Servers`), or the members of a
 * quorum. */
export interface Servers {
  readonly channels: readonly Channel[];
  /** Time limit of an answer in ms; undefined for `times.answer`. */
  readonly limit?: number;
}

/** Drives the generator `steps` and returns its result. When `signal` is aborted, throws `Aborted` into the
 * generator, once. Then carries out the clean-up steps that the generator yields, and throws the signal's
 * reason. */
export async function run<T>(
  steps: Steps<T>,
  servers: Servers,
  signal?: AbortSignal,
  limit = servers.limit ?? times.answer,
): Promise<T> {
  signal?.throwIfAborted();
  let activeSignal = signal;
  try {
    let next = steps.next();
    while (!next.done) {
      let outcome: unknown;
      try {
        outcome = await perform(next.value, servers, limit, activeSignal);
      } catch (why) {
        if (why instanceof Aborted) activeSignal = undefined;
        next = steps.throw(why);
        continue;
      }
      next = steps.next(outcome);
    }
    return next.value;
  } catch (why) {
    throw why instanceof Aborted ? why.reason : why;
  }
}

function perform(step: Step, servers: Servers, limit: number, signal: AbortSignal | undefined): unknown {
  if (Array.isArray(step) || step instanceof Send) return servers.channels[0]!.send(step, limit, signal);
  if (step instanceof Pause) return pause(step.wait.bell.rung(), step.ms, signal);
  if (step instanceof Replicate) return servers.channels[0]!.replicate(step, limit, signal);
  if (step instanceof Sleep) return pause(new Promise(() => {}), step.ms, signal);
  if (step instanceof Listen) return servers.channels[0]!.listen();
  if (step instanceof WatchLoss) return servers.channels[0]!.watchLoss(step);
  if (step instanceof Watch) return watch(step.task, servers);
  if (step instanceof Ask) return ask(step, servers, limit, signal);
  if (step instanceof Shared) return share(step, servers, limit, signal);
  if (step instanceof Begin)
    return begin(step.steps, step.member === undefined ? servers : servers.channels[step.member]!, limit);
  if (step instanceof To) return perform(step.step, servers.channels[step.member]!, limit, signal);
  return owe(step as Owe, servers);
}

/** Resolves when `end` resolves, or after `ms`. */
async function pause(end: Promise<unknown>, ms: number, signal?: AbortSignal): Promise<void> {
  try {
    await withTimeout(end, ms, signal);
  } catch (why) {
    if (!(why instanceof TimedOut)) throw why;
  }
}

/** Returns the result of the steps of `step`, which another caller may have begun. */
function share(step: Shared, servers: Servers, limit: number, signal?: AbortSignal): Promise<unknown> {
  step.running ??= run(step.steps(), servers, undefined, limit).finally(() => {
    step.running = undefined;
  });
  return signal === undefined ? step.running : withTimeout(step.running, Number.POSITIVE_INFINITY, signal);
}

/** Carries out the steps of `step` at its members in parallel. Returns the answers once `step.enough` accepts
 * them or all have arrived. */
function ask(step: Ask, servers: Servers, limit: number, signal: AbortSignal | undefined): Promise<Answers> {
  const answers: Answers = new Map();
  const asked = new Promise<Answers>((resolve) => {
    let isDecided = step.members.length === 0 || step.enough(answers);
    if (isDecided) resolve(answers);
    const handleAnswer = (member: number, answer: unknown) => {
      if (isDecided) {
        const steps = step.late(member, answer);
        if (steps !== undefined) begin(steps, servers, limit);
        return;
      }
      answers.set(member, answer);
      isDecided = step.enough(answers) || answers.size === step.members.length;
      if (isDecided) resolve(answers);
    };
    for (const member of step.members) {
      run(step.steps(member), servers.channels[member]!, undefined, limit).then(
        (answer) => handleAnswer(member, answer),
        (why) => handleAnswer(member, why),
      );
    }
  });
  return signal === undefined ? asked : withTimeout(asked, Number.POSITIVE_INFINITY, signal);
}

/** Carries out steps in the background. */
function begin(steps: Steps<void>, servers: Servers, limit: number): void {
  run(steps, servers, undefined, limit).catch((why) => process.emitWarning(why));
}

/** Begins to send the owed requests: RELEASE and CANCEL, which a background task repeats until they are
 * confirmed (see `owed.ts`). Resolves once `step.enough` returns true, or after `times.patience` ms. */
function owe(step: Owe, servers: Servers): Promise<void> {
  const enough = new Promise<void>((resolve) => {
    for (const [member, owed] of step.owed) {
      owed.onAnswer = () => step.enough() && resolve();
      const channel = servers.channels[member]!;
      watch(owed, channel, () => owed.finished() || channel.isClosed);
    }
    if (step.enough()) resolve();
  });
  return pause(enough, times.patience);
}

/** Wakes the task each time its `wakeAt` has come, until the task is finished. The timer does not keep the
 * process alive. */
function watch(task: Task, servers: Servers, isFinished = () => task.finished()): void {
  let timer: NodeJS.Timeout | undefined;
  const setTimer = () => {
    clearTimeout(timer);
    if (isFinished()) return;
    timer = setTimeout(check, Math.min(Math.max(task.wakeAt() - now(), 0), TICK));
    timer.unref();
  };
  const check = () => {
    if (!isFinished() && task.wakeAt() <= now()) {
      const steps = task.wake();
      if (steps !== undefined) {
        run(steps, servers, undefined, BACKGROUND_ANSWER).then(setTimer, (why) => process.emitWarning(why));
      }
    }
    // The timer does not wait for the end of the steps. If a renewal gets no answer, the task must still be
    // woken when the lease ends, to declare the hold lost.
    setTimer();
  };
  task.onChange = setTimer;
  check();
}
