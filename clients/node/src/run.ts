// Carries out the steps that generators yield (see `steps.ts`): sends commands, sleeps, and wakes tasks.

import type { Channel } from "./channel.js";
import { Aborted, now, Timed, withTimeout } from "./clock.js";
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
import { type Bell, times } from "./waits.js";

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
export function run<T>(
  steps: Steps<T>,
  servers: Servers,
  signal?: AbortSignal | null,
  limit = servers.limit ?? times.answer,
): Promise<T> {
  if (signal?.aborted) return Promise.reject(signal.reason);
  return new Promise((resolve, reject) =>
    new Run(steps, servers, limit, signal ?? undefined, resolve, reject).next(),
  );
}

/** A generator that is driven. An async function would retain the steps of the past for as long as it lasts. */
class Run<T> {
  constructor(
    private readonly steps: Steps<T>,
    private readonly servers: Servers,
    private readonly limit: number,
    private signal: AbortSignal | undefined,
    private readonly resolve: (result: T) => void,
    private readonly reject: (why: unknown) => void,
  ) {}

  readonly next = (outcome?: unknown): void => {
    let present = outcome;
    while (true) {
      let step: IteratorResult<Step, T>;
      try {
        step = this.steps.next(present);
      } catch (why) {
        this.#fail(why);
        return;
      }
      const found = this.#perform(step);
      if (found === this) return;
      present = found;
    }
  };

  readonly #throw = (why: unknown): void => {
    if (why instanceof Aborted) this.signal = undefined;
    let step: IteratorResult<Step, T>;
    try {
      step = this.steps.throw(why);
    } catch (failure) {
      this.#fail(failure);
      return;
    }
    const found = this.#perform(step);
    if (found !== this) this.next(found);
  };

  /** Returns the outcome of a step that has it at once; otherwise this object. */
  #perform(step: IteratorResult<Step, T>): unknown {
    if (step.done) {
      this.resolve(step.value);
      return this;
    }
    let outcome: unknown;
    try {
      outcome = perform(step.value, this.servers, this.limit, this.signal);
    } catch (why) {
      this.#throw(why);
      return this;
    }
    if (!(outcome instanceof Promise)) return outcome;
    outcome.then(this.next, this.#throw);
    return this;
  }

  #fail(why: unknown): void {
    this.reject(why instanceof Aborted ? why.reason : why);
  }
}

function perform(step: Step, servers: Servers, limit: number, signal: AbortSignal | undefined): unknown {
  if (Array.isArray(step) || step instanceof Send) return servers.channels[0]!.send(step, limit, signal);
  if (step instanceof Pause) return pauseUntil(step.wait.bell, step.ms, signal);
  if (step instanceof Replicate) return servers.channels[0]!.replicate(step, limit, signal);
  if (step instanceof Sleep) return new Sleeping(step.ms, signal).promise;
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

/** Its promise resolves at `resolve`, and after `ms` at the latest. */
class Sleeping extends Timed<void> {
  protected override timedOut(): void {
    this.resolve();
  }
}

/** The time for which a caller waits for owed requests: see `Owe`. */
class Patience extends Sleeping {
  /** The number of answers so far, by member. */
  #answers: readonly number[];

  constructor(
    private readonly owed: Owe["owed"],
    private readonly servers: Servers,
  ) {
    super(times.patience);
    this.#answers = this.#countAnswers();
  }

  #countAnswers(): readonly number[] {
    return this.servers.channels.map(({ answers }) => answers);
  }

  protected override mayGoOn(): boolean {
    const before = this.#answers;
    this.#answers = this.#countAnswers();
    return [...this.owed].some(([member, { isFirstTry }]) => {
      const { link, answers } = this.servers.channels[member]!;
      return isFirstTry && link.isOneServer && answers !== before[member];
    });
  }
}

/** Resolves when the bell rings, or after `ms`. */
function pauseUntil(bell: Bell, ms: number, signal?: AbortSignal): Promise<void> {
  const sleeping = new Sleeping(ms, signal);
  bell.pause = sleeping;
  if (bell.isRung) sleeping.resolve();
  return sleeping.promise;
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
 * confirmed (see `owed.ts`). Resolves as `Owe` describes. */
function owe(step: Owe, servers: Servers): Promise<void> {
  const enough = new Patience(step.owed, servers);
  for (const [member, owed] of step.owed) {
    owed.onAnswer = () => step.enough() && enough.resolve();
    const channel = servers.channels[member]!;
    watch(owed, channel, () => owed.finished() || channel.isClosed);
  }
  if (step.enough()) enough.resolve();
  return enough.promise;
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
