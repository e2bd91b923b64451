// What the deciding part wants done. It yields these and is sent the outcome; `run.ts` carries them out.

import type { Args } from "./protocol.js";
import type { Wait } from "./waits.js";

// biome-ignore lint/suspicious/noExplicitAny: the outcome's type depends on the step
export type Steps<T> = Generator<Step, T, any>;

/** A command is a step as it stands: its outcome is the reply. */
export type Step = Args | Sleep | Listen | Pause | Watch | Owe | Ask | Begin | To;

/** Do nothing for some milliseconds. */
export class Sleep {
  constructor(readonly ms: number) {}
}

/** Open a wait, and listen for it. The outcome is a `Wait`. */
export class Listen {}

/** Wait until something is heard of `wait`, at most so long. */
export class Pause {
  constructor(
    readonly wait: Wait,
    readonly ms: number,
  ) {}
}

/** Something to do in the background. */
export interface Task {
  /** Set by whoever watches it; called when it may have finished. */
  forget: (() => void) | undefined;
  finished(): boolean;
  wakeAt(): number;
  wake(): Steps<void> | undefined;
}

/** Wake a task when it wants to be woken. */
export class Watch {
  constructor(readonly task: Task) {}
}

/** Releases that go on in the background until they are confirmed; wait a moment for `enough` answers. */
export class Owe {
  constructor(
    /** By member of a quorum; a single server is number 0. */
    readonly owed: ReadonlyMap<number, Task & { answered: (() => void) | undefined }>,
    readonly enough: () => boolean,
  ) {}
}

/** The answers of members, by their number: replies and errors. */
export type Answers = Map<number, unknown>;

/** Is told an answer, and says what to do at that member next. */
export type Heard = (member: number, answer: unknown) => Steps<void> | undefined;

/** Ask members in parallel, until there are `enough` answers. The outcome is what came. Whatever comes, later
 * ones too, is told to `heard`. */
export class Ask {
  constructor(
    readonly members: readonly number[],
    readonly command: Args,
    readonly enough: (answers: Answers) => boolean,
    readonly heard: Heard = () => undefined,
  ) {}
}

/** Carry out these steps in the background, over all members or one. */
export class Begin {
  constructor(
    readonly steps: Steps<void>,
    readonly member?: number,
  ) {}
}

/** A step for one member. */
export class To {
  constructor(
    readonly member: number,
    readonly step: Step,
  ) {}
}

/** Thrown into the steps when their caller gives up. */
export class Aborted {
  constructor(readonly reason: unknown) {}
}
