// Requests that must be answered in the end: releases, and the removal of a queue position. They are sent in
// the background until they are confirmed, or until all that they could end has ended.

import { now } from "./clock.js";
import { word } from "./errors.js";
import type { Steps, Task } from "./steps.js";

// First and longest pause between two tries, ms.
const FIRST_PAUSE = 50;
const LONGEST_PAUSE = 2000;

/** One request to one server. */
export class Owed implements Task {
  changed: (() => void) | undefined;
  answered: (() => void) | undefined;
  /** The sum of the replies; undefined before the first one. */
  ended: number | undefined;
  /** Whether a try had no answer: it may have ended what later ones did not find. */
  isUnanswered = false;
  readonly #until: number;
  #next = now();
  #pause = FIRST_PAUSE;

  constructor(
    /** Sends the request once. */
    private readonly request: () => Steps<number>,
    /** What the request could end has ended by itself after this time, ms. */
    lasts: number,
    /** Number of answers that confirm it: 2 if an earlier request, whose answer is missing, may reach the
     * server after the first one. */
    private times: number,
  ) {
    this.#until = now() + lasts;
  }

  finished(): boolean {
    return this.times === 0 || now() > this.#until;
  }

  wakeAt(): number {
    return this.#next;
  }

  wake(): Steps<void> {
    this.#next = Number.POSITIVE_INFINITY;
    return this.#send();
  }

  *#send(): Steps<void> {
    try {
      this.ended = (this.ended ?? 0) + (yield* this.request());
      this.times -= 1;
      this.answered?.();
    } catch (why) {
      this.isUnanswered ||= !word(why);
      this.#pause = Math.min(this.#pause * 2, LONGEST_PAUSE);
    }
    this.#next = now() + this.#pause;
  }
}
