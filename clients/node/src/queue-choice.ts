// In which member's queue the clients of a quorum wait. The order of all waits comes from one queue, as the
// heads of two queues would keep each other from a majority.
//
// 1. A client waits at the first member of the common order that it can reach.
// 2. It leaves a queue that does not move, and a queue whose head is refused by a later member: it goes to
//    that one.
// 3. All waits of a client for one lock change together, and new ones begin in that queue for 2 s.
// 4. Where the last queue does not move either, the client goes back to the first.

import { now } from "./clock.js";
import type { Members } from "./members.js";
import type { Key } from "./protocol.js";
import { Begin, Sleep, type Steps } from "./steps.js";
import { ContendedKeys, KeyMemory, type Wait } from "./waits.js";

// For how long the clients queue at a later member before they try the first one again, ms.
const QUEUE_MEMORY = 2000;
// Least pause between two searches for clients that queue elsewhere, ms.
const SEARCH_PAUSE = 1000;
// First and longest pause between two checks whether a queue moves, ms.
const FIRST_CHECK = 30;
const LONGEST_CHECK = 1000;
// The pause is at least this many times as long as the check: where answers are late, so are the requests
// that make the queue move.
const CHECK_FACTOR = 8;
/** A client gives back a partial hold after less than this time, in ms, if other members refuse it. An older
 * one was left behind. */
export const PARTIAL_HOLD_MAX_AGE = 2000;

/** A key of a request. */
interface Named {
  readonly key: Key;
  readonly name: string;
}

export class QueueChoice {
  /** The keys that were found taken a short while ago. */
  readonly contended = new ContendedKeys();
  readonly #noted = new KeyMemory<{ queue: number; when: number }>();
  readonly #searchAt = new KeyMemory<number>();
  readonly #watches = new Map<string, QueueWatch>();

  constructor(private readonly members: Members) {}

  /** Returns the order in which the queues of the members are tried. */
  order(name: string): readonly number[] {
    const order = this.#commonOrder();
    const noted = this.#votingQueue(name);
    return noted === undefined ? order : order.slice(order.indexOf(noted));
  }

  /** Returns the same order for all clients, however they spell the addresses: by run id. Members that may
   * not vote come last. */
  #commonOrder(): readonly number[] {
    const { members } = this;
    const rank = (member: number) => {
      const id = members.lastRunId(member) ?? `unknown ${members.address(member)}`;
      return `${members.mayVote(member) ? 0 : 1} ${id}`;
    };
    return [...members.all()].sort((one, other) => (rank(one) < rank(other) ? -1 : 1));
  }

  /** Returns the queue that was noted for a key at most `age` ms ago; undefined for none. */
  noted(name: string, age = QUEUE_MEMORY): number | undefined {
    const noted = this.#noted.get(name);
    return noted !== undefined && now() < noted.when + age ? noted.queue : undefined;
  }

  /** Notes that other clients queue at a member, and sends the waits of this client there. Nothing leads back
   * from a later queue to an earlier one while both are in use. */
  note(name: string, queue: number): void {
    const order = this.#commonOrder();
    const noted = this.#votingQueue(name);
    if (noted !== undefined && order.indexOf(noted) > order.indexOf(queue)) return;
    this.#noted.set(name, { queue, when: now() });
    for (const member of this.members.all()) {
      if (member !== queue) this.#watches.get(`${member} ${name}`)?.leave();
    }
  }

  forget(name: string): void {
    this.#noted.delete(name);
  }

  #votingQueue(name: string): number | undefined {
    const queue = this.noted(name);
    return queue !== undefined && this.members.mayVote(queue) ? queue : undefined;
  }

  /** Returns the watch over a queue, which all waits of this client in it share. */
  watch(queue: number, { key, name }: Named): QueueWatch {
    const id = `${queue} ${name}`;
    const watch = this.#watches.get(id) ?? new QueueWatch(this.members, queue, key);
    this.#watches.set(id, watch);
    return watch;
  }

  closeWatch(queue: number, { name }: Named): void {
    this.#watches.delete(`${queue} ${name}`);
  }

  /** After a majority was won with `token`: searches, in the background, for other clients at a later member
   * that refused it. The refusal alone proves nothing: the release of the last holder may still be on its
   * way. */
  *search(request: Named, queue: number, token: string): Steps<void> {
    if (!this.maySearch(request.name)) return;
    this.#searchAt.set(request.name, now() + SEARCH_PAUSE);
    yield new Begin(this.#findOthers(request, queue, token));
  }

  maySearch(name: string): boolean {
    return (this.#searchAt.get(name) ?? 0) <= now();
  }

  *#findOthers({ key, name }: Named, queue: number, token: string): Steps<void> {
    const { members } = this;
    const began = now();
    const before = yield* members.partialHolds(key, queue);
    yield new Sleep(now() - began);
    const after = yield* members.partialHolds(key, queue);
    const staying = [...after].filter(([holder]) => before.has(holder) && holder !== token);
    if (staying.length === 0) {
      this.#searchAt.delete(name);
      return;
    }
    const isYoung = staying.some(([, held]) => held < PARTIAL_HOLD_MAX_AGE);
    if (isYoung || (yield* members.hasWaiters(key, queue)) === true) this.note(name, queue);
  }
}

/** Checks whether a queue moves. Of all waits of a client in the queue, one at a time checks. They leave it
 * together. */
export class QueueWatch {
  readonly waits = new Set<Wait>();
  /** How often the waits were told to leave. */
  departures = 0;
  #pause = FIRST_CHECK;
  /** The holders without a majority at the last check. */
  #before = "";
  /** Time of the next check; infinite during a check. */
  #at = now() + FIRST_CHECK;

  constructor(
    private readonly members: Members,
    private readonly queue: number,
    private readonly key: Key,
  ) {}

  wakeAt(): number {
    return this.#at;
  }

  /** Lets all waits leave if, at two checks in a row, the same holders have the lock at this member and no
   * majority: a hold begins and ends at one member after the other. The last queue is left only if none of
   * them is young. */
  *check(isLast: boolean): Steps<void> {
    if (now() < this.#at) return;
    this.#at = Number.POSITIVE_INFINITY;
    const began = now();
    let stuck = "";
    try {
      const holders = yield* this.members.holders(this.key);
      const found = holders[this.queue] ?? new Map<string, number>();
      const isYoung = isLast && [...found.values()].some((held) => held < PARTIAL_HOLD_MAX_AGE);
      if (!isYoung && !this.members.mayMove(this.queue, holders)) stuck = [...found.keys()].join(" ");
    } finally {
      this.#pause = Math.min(this.#pause * 2, LONGEST_CHECK);
      this.#at = now() + Math.max(this.#pause, CHECK_FACTOR * (now() - began));
    }
    if (stuck !== "" && stuck === this.#before) this.leave();
    this.#before = stuck;
  }

  /** Lets all waits leave the queue. */
  leave(): void {
    this.departures += 1;
    for (const wait of this.waits) wait.bell.ring();
  }
}
