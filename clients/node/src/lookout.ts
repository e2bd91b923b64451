// Whether the queue of a member moves. What that member alone still holds (of a round whose release is on its
// way, or of a process that is gone) would keep its waiters there for a lease. Of all that wait for one key
// in one queue, one at a time looks who holds it; they leave together: the heads of two queues keep each
// other from a majority.

import { now } from "./clock.js";
import type { Members } from "./members.js";
import type { Key } from "./protocol.js";
import type { Steps } from "./steps.js";
import type { Wait } from "./waits.js";

// The first and the longest pause between two looks, ms. And so many times what a look took: where answers
// are late, so are those that make a queue move.
const FIRST_PAUSE = 30;
const LONGEST_PAUSE = 1000;
const LOOK_FACTOR = 8;

/** Those of all keys. */
export class Lookouts {
  readonly #all = new Map<string, Lookout>();

  constructor(private readonly members: Members) {}

  of(queue: number, name: string): Lookout {
    const id = `${queue} ${name}`;
    const forget = (lookout: Lookout) => this.#all.get(id) === lookout && this.#all.delete(id);
    const known = this.#all.get(id);
    const lookout = known?.isStuck === false ? known : new Lookout(this.members, queue, forget);
    this.#all.set(id, lookout);
    lookout.waiters += 1;
    return lookout;
  }
}

export class Lookout {
  waiters = 0;
  isStuck = false;
  readonly #waits = new Set<Wait>();
  #isLooking = false;
  #pause = FIRST_PAUSE;
  #next = now() + FIRST_PAUSE;
  #before = "";

  constructor(
    private readonly members: Members,
    private readonly queue: number,
    private readonly forget: (lookout: Lookout) => void,
  ) {}

  /** Looks, if it is time to. Stuck is what was found so twice in a row: a hold begins and ends at one member
   * after the other. */
  *look(wait: Wait, key: Key): Steps<boolean> {
    this.#waits.add(wait);
    if (this.isStuck || this.#isLooking || wait.bell.isRung || now() < this.#next) return this.isStuck;
    this.#isLooking = true;
    try {
      const begun = now();
      const holders = yield* this.members.holders(key);
      const took = now() - begun;
      const there = this.members.mayMove(this.queue, holders) ? "" : holders[this.queue]!.join(" ");
      this.isStuck = there !== "" && there === this.#before;
      this.#before = there;
      this.#next = now() + Math.max((0.5 + Math.random() / 2) * this.#pause, took * LOOK_FACTOR);
      this.#pause = Math.min(this.#pause * 2, LONGEST_PAUSE);
    } finally {
      this.#isLooking = false;
    }
    if (this.isStuck) for (const each of this.#waits) each.bell.ring();
    return this.isStuck;
  }

  /** A wait has ended, if it had begun. */
  leave(wait: Wait | undefined): void {
    if (wait !== undefined) this.#waits.delete(wait);
    this.waiters -= 1;
    if (this.waiters === 0) this.forget(this);
  }
}
