// Steps: the I/O that a generator asks for by yielding data. `run.ts` carries each step out and sends its
// outcome back. So the generators do no I/O themselves, and tests run them without a server.

import type { Args, Key } from "./protocol.js";
import type { Wait } from "./waits.js";

/** A generator that yields steps, receives their outcomes, and returns a `T`. */
// biome-ignore lint/suspicious/noExplicitAny: the type of an outcome depends on its step
export type Steps<T> = Generator<Step, T, any>;

/** A command is a step: its outcome is the reply. */
export type Step =
  | Args
  | Send
  | Replicate
  | Sleep
  | Listen
  | Pause
  | Watch
  | Owe
  | Ask
  | Begin
  | To
  | Shared
  | WatchLoss;

/** A command that is told when it is written to a connection, and when its reply arrives, even a late one. */
export abstract class Send {
  constructor(readonly command: Args) {}

  abstract sent(): void;
  abstract replied(): void;
}

/** Sends a write over a connection of its own, and waits for at most `timeout` ms until `replicas` replicas have it, or
 * until the server's append only file has it if `replicas` is 0. The outcome is whether they have. */
export class Replicate {
  constructor(
    readonly write: Args,
    readonly replicas: number,
    readonly timeout: number,
  ) {}
}

/** Watches a hold for its loss, until the outcome is called. */
export class WatchLoss {
  constructor(
    readonly key: Key,
    readonly token: string,
    readonly onGone: () => void,
  ) {}
}

/** Sleeps for `ms`. */
export class Sleep {
  constructor(readonly ms: number) {}
}

/** Opens a `Wait`, which receives the messages about one queue position. The outcome is the `Wait`. */
export class Listen {}

/** Sleeps until the flag `wait.bell` is set, at most for `ms`. */
export class Pause {
  constructor(
    readonly wait: Wait,
    readonly ms: number,
  ) {}
}

/** Background work at times that the task chooses. */
export interface Task {
  /** Set by `run.ts`. The task calls it when `finished` or `wakeAt` has changed. */
  onChange: (() => void) | undefined;
  finished(): boolean;
  /** When to call `wake`, on the clock of `now()`. */
  wakeAt(): number;
  /** Returns the steps that are due, if any. */
  wake(): Steps<void> | undefined;
}

/** Calls `wake` of a task each time that its `wakeAt` has come, until the task is finished. */
export class Watch {
  constructor(readonly task: Task) {}
}

/** An owed request: see `owed.ts`. */
export interface OwedTask extends Task {
  /** Set by `run.ts`, and called after each reply. */
  onAnswer: (() => void) | undefined;
  /** Whether the first request has no outcome yet. */
  readonly isFirstTry: boolean;
}

/** Sends owed requests in the background until they are confirmed. The step itself ends once `enough` returns true, and
 * after `times.patience` at the latest. That time begins anew while a first request waits for its turn: its server
 * answers earlier requests. */
export class Owe {
  constructor(
    /** By the number of the member; a single server is number 0. */
    readonly owed: ReadonlyMap<number, OwedTask>,
    readonly enough: () => boolean,
  ) {}
}

/** The answers by the number of the member: the value that its steps returned, or the error that they
 * threw. */
export type Answers = Map<number, unknown>;

/** Carries out steps at members in parallel. The outcome is the `Answers` so far, once `enough` accepts them
 * or all have arrived. The steps at the other members continue. */
export class Ask {
  constructor(
    readonly members: readonly number[],
    readonly steps: (member: number) => Steps<unknown>,
    readonly enough: (answers: Answers) => boolean,
    /** Called with each answer that arrives after the outcome. Returns steps to carry out in the background;
     * undefined for none. */
    readonly late: (member: number, answer: unknown) => Steps<void> | undefined = () => undefined,
  ) {}
}

/** Carries out steps once for all callers that ask for them at the same time. The outcome is their result. */
export class Shared<T = unknown> {
  /** Set by `run.ts` while the steps are carried out. */
  running: Promise<T> | undefined;

  constructor(readonly steps: () => Steps<T>) {}
}

/** Carries out `steps` in the background: at `member`, or, without a `member`, at the members that the steps
 * name (`To`, `Ask`). */
export class Begin {
  constructor(
    readonly steps: Steps<void>,
    readonly member?: number,
  ) {}
}

/** Carries out a step at one member. The outcome is that of the step. */
export class To {
  constructor(
    readonly member: number,
    readonly step: Step,
  ) {}
}

/** Carries out all of `steps` at one member. */
export function* at<T>(member: number, steps: Steps<T>): Steps<T> {
  let next = steps.next();
  while (!next.done) {
    let outcome: unknown;
    try {
      outcome = yield new To(member, next.value);
    } catch (why) {
      next = steps.throw(why);
      continue;
    }
    next = steps.next(outcome);
  }
  return next.value;
}
