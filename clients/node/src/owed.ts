// Owed requests: RELEASE and CANCEL, which the background repeats until the server has confirmed them, or
// until the hold or queue position that they remove has expired by itself.

import { now } from "./clock.js";
import { errorWord } from "./errors.js";
import type { Steps, Task } from "./steps.js";
import { times } from "./waits.js";

// First and longest pause between two tries, ms.
const FIRST_PAUSE = 50;
const LONGEST_PAUSE = 2000;
// While an earlier ACQUIRE is unanswered, the pause may grow to this fraction of `expiresAfter`, if that is
// longer.
const LONGEST_FRACTION = 1 / 20;

/** Returns the time in ms after which a server retains nothing of a request for this lease: neither a hold, nor
 * a queue position. A position can become a hold just before it expires. */
export function timeUntilExpired(lease: number): number {
  return Math.max(lease, times.keep) + times.keep;
}

/** One owed request to one server. */
export class Owed implements Task {
  changed: (() => void) | undefined;
  answered: (() => void) | undefined;
  /** Sum of the replies (holds or positions that were removed); undefined before the first reply. */
  ended: number | undefined;
  /** Whether a try had no answer. It may have removed a hold that `ended` does not count. */
  isUnanswered = false;
  readonly #until: number;
  #next = now();
  #pause = FIRST_PAUSE;

  constructor(
    /** Sends the request once. */
    private readonly request: () => Steps<number>,
    /** Time after which the hold or position has expired by itself, ms. */
    private readonly expiresAfter: number,
    /** Number of further answers that confirm the request. */
    private missing: number,
    /** Returns false while an earlier ACQUIRE without an answer may reach the server after the request. Then
     * an answer confirms nothing, and the request is sent again. */
    private readonly isSettled: () => boolean = () => true,
  ) {
    this.#until = now() + expiresAfter;
  }

  finished(): boolean {
    return this.missing === 0 || now() > this.#until;
  }

  wakeAt(): number {
    return this.#next;
  }

  wake(): Steps<void> {
    this.#next = Number.POSITIVE_INFINITY;
    return this.#send();
  }

  *#send(): Steps<void> {
    const isSettled = this.isSettled();
    try {
      this.ended = (this.ended ?? 0) + (yield* this.request());
      if (isSettled) this.missing -= 1;
      else
        this.#pause = Math.min(
          this.#pause * 2,
          Math.max(LONGEST_PAUSE, this.expiresAfter * LONGEST_FRACTION),
        );
      this.answered?.();
    } catch (why) {
      this.isUnanswered ||= !errorWord(why);
      this.#pause = Math.min(this.#pause * 2, LONGEST_PAUSE);
    }
    this.#next = now() + this.#pause;
  }
}
