// Keys that were found taken a short while ago, and where others queue for them. Whoever asks for one of them
// again enters the queue with the first request.

import { now } from "./clock.js";

// How long a key that was found taken counts as contended, and how long clients queue at a later member
// before they look whether the first will do again. ms
const MEMORY = 1000;
const QUEUE_MEMORY = 2000;
// So many keys are remembered.
const MOST = 1000;

export class Contended {
  readonly #until = new Map<string, number>();
  readonly #queues = new Map<string, readonly [queue: number, until: number]>();
  /** Until then nobody looks again whether others queue elsewhere. */
  readonly #lookedUntil = new Map<string, number>();

  has(name: string): boolean {
    return (this.#until.get(name) ?? 0) > now();
  }

  note(name: string): void {
    set(this.#until, name, now() + MEMORY);
  }

  /** Where others queue, if that was noted no longer than `age` ago. */
  queue(name: string, age = QUEUE_MEMORY): number | undefined {
    const [queue, until] = this.#queues.get(name) ?? [];
    return until !== undefined && now() + QUEUE_MEMORY < until + age ? queue : undefined;
  }

  /** Records where others queue: see `Round.nextQueue`. */
  noteQueue(name: string, queue: number): void {
    set(this.#queues, name, [queue, now() + QUEUE_MEMORY]);
  }

  forgetQueue(name: string): void {
    this.#queues.delete(name);
  }

  /** Whether to look where others queue: one at a time, and not all the time. */
  mayLook(name: string): boolean {
    if ((this.#lookedUntil.get(name) ?? 0) > now()) return false;
    set(this.#lookedUntil, name, now() + MEMORY);
    return true;
  }

  /** `mayLook` again: nothing suspicious was there. */
  sawNobody(name: string): void {
    this.#lookedUntil.delete(name);
  }
}

function set<T>(map: Map<string, T>, name: string, value: T): void {
  if (map.size >= MOST) map.clear();
  map.set(name, value);
}
