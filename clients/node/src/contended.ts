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

  has(name: string): boolean {
    return (this.#until.get(name) ?? 0) > now();
  }

  note(name: string): void {
    if (this.#until.size >= MOST) this.#until.clear();
    this.#until.set(name, now() + MEMORY);
  }

  /** The member in whose queue others wait. */
  queue(name: string): number | undefined {
    const [queue, until] = this.#queues.get(name) ?? [];
    return until !== undefined && now() < until ? queue : undefined;
  }

  noteQueue(name: string, queue: number | undefined): void {
    if (queue === undefined) return;
    if (this.#queues.size >= MOST) this.#queues.clear();
    this.#queues.set(name, [queue, now() + QUEUE_MEMORY]);
  }
}
