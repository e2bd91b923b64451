// Chooses the member in whose queue the clients of a quorum wait. All clients should wait in the same queue,
// as the heads of two queues would keep each other from a majority.
//
// 1. A client waits at the first member of the common order that it can reach.
// 2. If that queue does not move, the client goes to the queue of the next member. If a later member refuses
//    the head of the queue, the head goes to the queue of that member.
// 3. All waits of a client for one lock change queues together. For 2 s, its new waits begin in the new
//    queue.
// 4. If the last queue does not move either, the client begins again with the first one.

import { now } from "./clock.js";
import type { Members } from "./members.js";
import type { Key } from "./protocol.js";
import { Begin, Sleep, type Steps } from "./steps.js";
import { ContendedKeys, KeyMemory, type Wait } from "./waits.js";

// Time for which clients queue at a later member before they try the first one again, ms.
const QUEUE_MEMORY = 2000;
// Least pause between two searches for clients that queue elsewhere, ms.
const SEARCH_PAUSE = 1000;
// First and longest pause between two checks whether a queue moves, ms.
const FIRST_CHECK = 30;
const LONGEST_CHECK = 1000;
// The pause is at least this multiple of the duration of the check: if answers are late, the releases that
// would move the queue are late, too.
const CHECK_FACTOR = 8;
/** Age limit of a partial hold, in ms: a client gives it back earlier if other members refuse the lock. An
 * older partial hold was left behind by a client that is gone. */
export const PARTIAL_HOLD_MAX_AGE = 2000;

/** A key of a request. */
interface Named {
  readonly key: Key;
  readonly name: string;
}

export class QueueChoice {
  /** The keys that were found taken within the last second. */
  readonly contended = new ContendedKeys();
  readonly #noted = new KeyMemory<{ queue: number; when: number }>();
  readonly #searchAt = new KeyMemory<number>();
  readonly #watches = new Map<string, QueueWatch>();

  constructor(private readonly members: Members) {}

  /** Returns the members in the order in which their queues are tried. */
  order(name: string): readonly number[] {
    const order = this.#commonOrder();
    const noted = this.#votingQueue(name);
    return noted === undefined ? order : order.slice(order.indexOf(noted));
  }

  /** Returns all members by run id, so that the order is the same for all clients, however they spell the
   * addresses. Members that may not vote are last. */
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

  /** Records that other clients queue at the member `queue`, and makes the waits of this client in other
   * queues leave for it. Does nothing if a later queue is recorded already: while both are in use, no wait
   * returns to the earlier one. */
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

  /** Returns the watch over the queue of a member. All waits of this client in that queue share it. */
  watch(queue: number, { key, name }: Named): QueueWatch {
    const id = `${queue} ${name}`;
    const watch = this.#watches.get(id) ?? new QueueWatch(this.members, queue, key);
    this.#watches.set(id, watch);
    return watch;
  }

  closeWatch(queue: number, { name }: Named): void {
    this.#watches.delete(`${queue} ${name}`);
  }

  /** Begins a background search for clients that queue at the member `queue`, which refused `token` although
   * the token won a majority. The refusal alone proves nothing: the release of the previous holder may still
   * be on its way to that member. */
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

/** Checks whether the queue of one member moves, on behalf of all waits of this client in it. One wait at a
 * time carries out the check. All waits leave the queue together. */
export class QueueWatch {
  readonly waits = new Set<Wait>();
  /** Number of times that the waits were told to leave. */
  departures = 0;
  #pause = FIRST_CHECK;
  /** The holders at the last check if none of them could have a majority, else empty. */
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

  /** Makes all waits leave the queue if two checks in a row find the same holders, none of which can have a
   * majority. Two checks, because a hold begins and ends at one member after the other. The waits leave the
   * last queue only if every hold there is older than `PARTIAL_HOLD_MAX_AGE`. */
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

  /** Makes all waits leave the queue. */
  leave(): void {
    this.departures += 1;
    for (const wait of this.waits) wait.bell.ring();
  }
}
