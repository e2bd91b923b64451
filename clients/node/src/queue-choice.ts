// The choice of the queue in which a client waits.
//
// All clients sort the members by run id, with those that may not vote last, and wait in the queue of the
// first member, so that all wait in one queue. A client moves to a later queue in two cases:
// - Its queue granted it the lock, but the member of the later queue refuses it: clients that cannot reach the
//   first member wait there.
// - Its queue does not move, as no holder there can have a majority.
// In both cases it expects the other clients in the later queue, too: it "meets" them there. Its other waits for
// the lock move with it, and for 2 s after each meeting its new waits start in that queue. If the last queue
// does not move either, and its holds are older than 2 s, the client returns to the first queue.
//
// Safety does not depend on the choice: a wrong queue costs time.

import { now } from "./clock.js";
import type { Members } from "./members.js";
import type { Key } from "./protocol.js";
import { Sleep, type Steps } from "./steps.js";
import { ContendedKeys, KeyMemory, type Wait } from "./waits.js";

// Time for which a client starts at the queue where it met others, ms.
const QUEUE_KEPT_FOR = 2000;
// Least time from one look for other clients to the next, ms: see `lookForOthers`.
const LOOK_PAUSE = 1000;
// First and longest pause between two checks whether a queue moves, ms.
const FIRST_CHECK = 30;
const LONGEST_CHECK = 1000;
// The pause is at least this multiple of the duration of the check: if answers are late, the releases that
// would move the queue are late, too.
const CHECK_FACTOR = 8;
// Age in ms from which a partial hold (a hold on a minority of the members) counts as left behind by a dead
// client: a living one gives its hold back earlier if other members refuse the lock.
const PARTIAL_HOLD_MAX_AGE = 2000;

/** The key of a request, also as text. */
interface NamedKey {
  readonly key: Key;
  readonly name: string;
}

export class QueueChoice {
  /** The keys that were found taken within the last second. */
  readonly contended = new ContendedKeys();
  /** The queue where other clients were met, and when. */
  readonly #met = new KeyMemory<{ queue: number; when: number }>();
  /** The time until which the client does not look for other clients again. */
  readonly #lookedUntil = new KeyMemory<number>();
  readonly #watches = new Map<string, QueueWatch>();

  constructor(private readonly members: Members) {}

  /** Returns the members in the order in which their queues are tried, from the queue where other clients were
   * met, or else from the first one. */
  order(name: string): readonly number[] {
    const order = this.#commonOrder();
    const met = this.#queueInUse(name);
    return met === undefined ? order : order.slice(order.indexOf(met));
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

  /** Returns the queue where other clients were met within the last `age` ms; undefined for none. */
  queueMetWithin(name: string, age: number): number | undefined {
    const met = this.#met.get(name);
    return met !== undefined && now() < met.when + age ? met.queue : undefined;
  }

  /** Records that other clients wait at the member `queue`, and makes this client's waits in other queues move
   * there. Does nothing if the client has met others in a later queue within `QUEUE_KEPT_FOR`. */
  meet(name: string, queue: number): void {
    const order = this.#commonOrder();
    const met = this.#queueInUse(name);
    if (met !== undefined && order.indexOf(met) > order.indexOf(queue)) return;
    this.#met.set(name, { queue, when: now() });
    for (const member of this.members.all()) {
      if (member !== queue) this.#watches.get(`${member} ${name}`)?.leave();
    }
  }

  forgetQueue(name: string): void {
    this.#met.delete(name);
  }

  /** Returns the queue where other clients were met, if they may still wait there; undefined for none. */
  #queueInUse(name: string): number | undefined {
    const queue = this.queueMetWithin(name, QUEUE_KEPT_FOR);
    return queue !== undefined && this.members.mayVote(queue) ? queue : undefined;
  }

  /** Returns the watch over the queue of a member. All waits of this client in that queue share it. */
  watch(queue: number, { key, name }: NamedKey): QueueWatch {
    const id = `${queue} ${name}`;
    const watch = this.#watches.get(id) ?? new QueueWatch(this.members, queue, key);
    this.#watches.set(id, watch);
    return watch;
  }

  closeWatch(queue: number, { name }: NamedKey): void {
    this.#watches.delete(`${queue} ${name}`);
  }

  /** Returns the steps that look whether other clients wait at the member `queue`, which refused `token`
   * although a majority granted it the lock. Returns undefined within LOOK_PAUSE of the start of the last look,
   * unless that look found no hold. */
  lookForOthers(request: NamedKey, queue: number, token: string): Steps<void> | undefined {
    if (now() < (this.#lookedUntil.get(request.name) ?? 0)) return undefined;
    this.#lookedUntil.set(request.name, now() + LOOK_PAUSE);
    return this.#look(request, queue, token);
  }

  /** Reads the partial holds at `queue` twice: a release that was on its way has arrived by the second time. A
   * young hold that remains shows that other clients use the queue. If only old holds remain, the queue does
   * not move: the client does not join the waiters there. */
  *#look({ key, name }: NamedKey, queue: number, token: string): Steps<void> {
    const { members } = this;
    const began = now();
    const before = (yield* members.holders(key)).partialHolders(queue, token);
    yield new Sleep(now() - began);
    const after = (yield* members.holders(key)).partialHolders(queue, token);
    const remaining = [...after].filter(([holder]) => before.has(holder));
    if (remaining.length === 0) this.#lookedUntil.delete(name);
    if (remaining.some(([, age]) => age < PARTIAL_HOLD_MAX_AGE)) this.meet(name, queue);
  }
}

/** Checks whether the queue of one member moves, on behalf of all waits of this client in it. One wait at a
 * time carries out the check. All waits leave the queue together. */
export class QueueWatch {
  readonly waits = new Set<Wait>();
  /** Number of times that all waits had to leave. */
  departures = 0;
  #pause = FIRST_CHECK;
  /** The holders at the last check, as text, if none of them could have a majority; else empty. */
  #stuckHolders = "";
  /** Time of the next check, on the clock of `now()`; infinite during a check. */
  #checkAt = now() + FIRST_CHECK;

  constructor(
    private readonly members: Members,
    private readonly queue: number,
    private readonly key: Key,
  ) {}

  wakeAt(): number {
    return this.#checkAt;
  }

  /** Makes all waits leave the queue if two checks in a row find the same holders, none of which can have a
   * majority. Two checks, because a hold begins and ends at one member after the other. The waits leave the
   * last queue only if every hold there is older than `PARTIAL_HOLD_MAX_AGE`. */
  *check(isLast: boolean): Steps<void> {
    if (now() < this.#checkAt) return;
    this.#checkAt = Number.POSITIVE_INFINITY;
    const began = now();
    let stuckHolders = "";
    try {
      const holders = yield* this.members.holders(this.key);
      const ages = holders.at(this.queue) ?? new Map<string, number>();
      const hasYoungHold = [...ages.values()].some((age) => age < PARTIAL_HOLD_MAX_AGE);
      const mayLeave = !isLast || !hasYoungHold;
      if (mayLeave && !holders.queueCanMove(this.queue)) stuckHolders = [...ages.keys()].join(" ");
    } finally {
      this.#pause = Math.min(this.#pause * 2, LONGEST_CHECK);
      this.#checkAt = now() + Math.max(this.#pause, CHECK_FACTOR * (now() - began));
    }
    if (stuckHolders !== "" && stuckHolders === this.#stuckHolders) this.leave();
    this.#stuckHolders = stuckHolders;
  }

  /** Makes all waits leave the queue. */
  leave(): void {
    this.departures += 1;
    for (const wait of this.waits) wait.bell.ring();
  }
}
