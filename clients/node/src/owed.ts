// Owed requests. An owed request is a RELEASE or CANCEL that a background task repeats until the server has
// confirmed it. The task also ends once the hold or queue position that it removes has expired by itself.

import { now } from "./clock.js";
import { errorWord } from "./errors.js";
import type { Steps, Task } from "./steps.js";
import { times } from "./waits.js";

// First and longest pause between two tries, ms.
const FIRST_PAUSE = 50;
const LONGEST_PAUSE = 2000;
// While an earlier ACQUIRE is unanswered, the longest pause is this fraction of `expiresAfter` if that is
// more than LONGEST_PAUSE.
const LONGEST_FRACTION = 1 / 20;

/** Returns the longest time in ms for which the server retains a hold or a queue position after it has
 * executed a request with this lease. A position lasts for `times.keep`. Just before its end, a late copy of
 * the request may claim the lock, for the length of the lease, or renew the position. */
export function timeUntilExpired(lease: number): number {
  return Math.max(lease, times.keep) + times.keep;
}

/** Number of answers that confirm a RELEASE if an ACQUIRE may be under way over an earlier, broken
 * connection. The server may read that ACQUIRE after the first RELEASE. The second RELEASE, sent after a pause,
 * then ends the hold. */
export const ANSWERS_TO_RELEASE = 2;

/** One owed request to one server. */
export class Owed implements Task {
  /** See `Task`. */
  onChange: (() => void) | undefined;
  /** Set by `run.ts`, and called after each reply. */
  onAnswer: (() => void) | undefined;
  /** Number of holds or positions that the request has removed; undefined before the first reply. */
  removed: number | undefined;
  /** Whether the first request has no outcome yet. */
  isFirstTry = true;
  /** True after a try without an answer. Such a try may have removed a hold that `removed` does not count. */
  isUnanswered = false;
  readonly #expiresAt: number;
  #wakeAt = now();
  #pause = FIRST_PAUSE;

  constructor(
    /** Sends the request once. */
    private readonly request: () => Steps<number>,
    /** Time after which the hold or position has expired by itself, ms. */
    private readonly expiresAfter: number,
    /** Number of answers that are still needed to confirm the request. */
    private missingAnswers: number,
    /** Returns false while an earlier ACQUIRE without an answer may reach the server after the request. Then
     * an answer confirms nothing, and the request is sent again. */
    private readonly isSettled: () => boolean = () => true,
  ) {
    this.#expiresAt = now() + expiresAfter;
  }

  finished(): boolean {
    return this.missingAnswers === 0 || now() > this.#expiresAt;
  }

  wakeAt(): number {
    return this.#wakeAt;
  }

  wake(): Steps<void> {
    this.#wakeAt = Number.POSITIVE_INFINITY;
    return this.#send();
  }

  *#send(): Steps<void> {
    try {
      this.removed = (this.removed ?? 0) + (yield* this.request());
      this.isFirstTry = false;
      // The answers on one connection arrive in the order of the requests.
      if (this.isSettled()) this.missingAnswers -= 1;
      else {
        const longest = Math.max(LONGEST_PAUSE, this.expiresAfter * LONGEST_FRACTION);
        this.#pause = Math.min(this.#pause * 2, longest);
      }
      this.onAnswer?.();
    } catch (why) {
      this.isUnanswered ||= !errorWord(why);
      this.#pause = Math.min(this.#pause * 2, LONGEST_PAUSE);
    }
    this.isFirstTry = false;
    this.#wakeAt = now() + this.#pause;
  }
}
