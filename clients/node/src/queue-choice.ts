// The choice of the queue in which a client waits.
//
// Each member of a quorum has a wait queue of its own, and all clients should wait in the same one. So they
// sort the members in the same way, by run id, and wait in the queue of the first member. Members that may
// not vote come last. A client moves to a later queue in two cases:
// - The member of its queue granted the lock to the client, but the member of a later queue refused. That
//   suggests that clients which cannot reach the first member wait in the later queue.
// - Its queue does not move: no holder at its member can have a majority. The client of a hold without a
//   majority may have died, and the hold then lasts until its lease ends.
//
// All waits of a client for one lock move together, and its next waits start in the new queue: the start
// queue. A start queue lasts until the client has noticed no other client there for 2 s. If even the last
// queue does not move, and all holds at its member are older than 2 s, the client starts over with the first
// queue.
//
// Safety does not depend on the choice: a wrong queue costs time.

import { now, onGrid } from "./clock.js";
import type { Members } from "./members.js";
import type { Key } from "./protocol.js";
import { Sleep, type Steps } from "./steps.js";
import { ContendedKeys, KeyMemory, type Wait } from "./waits.js";

// Time for which a start queue lasts after the client has last noticed other clients there, ms.
const START_QUEUE_KEPT_FOR = 2000;
// Least time between two looks for other clients in a later queue, ms.
const LOOK_INTERVAL = 1000;
// First and longest pause between two checks whether a queue moves, ms. Each pause is CHECK_PAUSE_GROWTH times as
// long as the last one.
const FIRST_CHECK_PAUSE = 30;
const LONGEST_CHECK_PAUSE = 15_000;
const CHECK_PAUSE_GROWTH = 4;
// Time after which a check asks all members although the holders at the member of the queue are still those that
// could have a majority, ms.
const FULL_CHECK_INTERVAL = 60_000;
// The pause between two checks is at least this multiple of the duration of a check. If answers are slow, the
// releases that would move the queue are slow, too.
const CHECK_FACTOR = 8;
// Longest time for which a live client keeps a partial hold (one without a majority), ms. An older partial
// hold was left behind by a client that died.
const PARTIAL_HOLD_MAX_AGE = 2000;

/** The key of a request, also as text. */
interface NamedKey {
  readonly key: Key;
  readonly name: string;
}

export class QueueChoice {
  /** The locks that this client found taken within the last second. */
  readonly contended = new ContendedKeys();
  /** By key: the member of the start queue, and the time when it was set. */
  readonly #startQueues = new KeyMemory<{ queue: number; setAt: number }>();
  /** By key: the time before which the client does not look again for other clients in a later queue. */
  readonly #nextLook = new KeyMemory<number>();
  readonly #watches = new Map<string, QueueWatch>();

  constructor(private readonly members: Members) {}

  /** Returns the members in the order in which this client tries their queues: from the start queue on, or
   * all members if there is none. */
  order(name: string): readonly number[] {
    const order = this.#commonOrder();
    const startQueue = this.#startQueue(name);
    return startQueue === undefined ? order : order.slice(order.indexOf(startQueue));
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

  /** Returns the members whose queues other clients may try before this one, even members that may not vote now.
   * A member with an unknown run id may be one of them. */
  before(queue: number): readonly number[] {
    const { members } = this;
    const id = members.lastRunId(queue) ?? "";
    return members.all().filter((member) => member !== queue && (members.lastRunId(member) ?? "") < id);
  }

  /** Returns the member of the start queue; undefined unless it was set within the last `age` ms. */
  startQueueSetWithin(name: string, age: number): number | undefined {
    const found = this.#startQueues.get(name);
    return found !== undefined && now() < found.setAt + age ? found.queue : undefined;
  }

  /** Makes the queue of the member `queue` the start queue, and makes this client's waits in other queues move
   * there. All waits move at once. Otherwise the heads of two queues could each hold the lock at a part
   * of the members, and neither would have a majority. Does nothing if the start queue is a later one: as
   * long as a start queue lasts, waits move only to later queues. */
  moveToQueue(name: string, queue: number): void {
    const order = this.#commonOrder();
    const startQueue = this.#startQueue(name);
    if (startQueue !== undefined && order.indexOf(startQueue) > order.indexOf(queue)) return;
    this.#startQueues.set(name, { queue, setAt: now() });
    for (const member of this.members.all()) {
      if (member !== queue) this.#watches.get(`${member} ${name}`)?.makeWaitsLeave();
    }
  }

  forgetStartQueue(name: string): void {
    this.#startQueues.delete(name);
  }

  /** Returns the member of the start queue; undefined if there is none, or that member may not vote. */
  #startQueue(name: string): number | undefined {
    const queue = this.startQueueSetWithin(name, START_QUEUE_KEPT_FOR);
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

  /** Returns the steps that look for other clients in the queue of the member `queue`. A majority granted the
   * lock to `token`, but this member refused. Returns undefined if the last look began less than
   * `LOOK_INTERVAL` ago, unless that look found no hold of another client. */
  lookForOthers(request: NamedKey, queue: number, token: string): Steps<void> | undefined {
    if (now() < (this.#nextLook.get(request.name) ?? 0)) return undefined;
    this.#nextLook.set(request.name, now() + LOOK_INTERVAL);
    return this.#compareHolders(request, queue, token);
  }

  /** Asks twice for the partial holds at the member `queue`, one round trip apart. A RELEASE that was in flight
   * should have arrived by the second time. A young hold that is there both times shows that other clients use
   * the queue, and this client's waits move there. If all holds are old, the queue does not move, and this
   * client does not join it. */
  *#compareHolders({ key, name }: NamedKey, queue: number, token: string): Steps<void> {
    const { members } = this;
    const began = now();
    const before = (yield* members.holders(key)).partialHolders(queue, token);
    yield new Sleep(now() - began);
    const after = (yield* members.holders(key)).partialHolders(queue, token);
    const remaining = [...after].filter(([holder]) => before.has(holder));
    if (remaining.length === 0) this.#nextLook.delete(name);
    if (remaining.some(([, age]) => age < PARTIAL_HOLD_MAX_AGE)) this.moveToQueue(name, queue);
  }
}

/** Checks whether the queue of one member moves, on behalf of all waits of this client in it. One wait at a
 * time carries out the check. All waits leave the queue together: see `moveToQueue`. */
export class QueueWatch {
  readonly waits = new Set<Wait>();
  /** Number of times that the waits were made to leave. */
  departures = 0;
  #pause = FIRST_CHECK_PAUSE;
  /** The holders at the last check, as text, if none of them could have a majority; else empty. */
  #stuckHolders = "";
  /** The holders at the last check that asked all members, as text, if one of them could have a majority. */
  #movingHolders: string | undefined;
  /** When to ask all members again, even about the same holders. */
  #fullCheckAt = 0;
  /** Time of the next check, on the clock of `now()`; infinite during a check. */
  #checkAt = now() + FIRST_CHECK_PAUSE;

  constructor(
    private readonly members: Members,
    private readonly queue: number,
    private readonly key: Key,
  ) {}

  wakeAt(): number {
    return this.#checkAt;
  }

  /** Makes all waits leave the queue if two checks in a row find the same holders, none of which can have a
   * majority. One check is not enough: a hold that begins or ends is at only a part of the members at that
   * moment. `isLast` is true for the last queue in the order. Its waits leave it only if every hold at its
   * member is older than `PARTIAL_HOLD_MAX_AGE`. */
  *check(isLast: boolean): Steps<void> {
    if (now() < this.#checkAt) return;
    this.#checkAt = Number.POSITIVE_INFINITY;
    const began = now();
    let stuckHolders = "";
    try {
      if (!(yield* this.#hasKnownHolders())) stuckHolders = yield* this.#compareMembers(isLast);
    } finally {
      // The second look at a queue that does not move follows soon.
      const pause = stuckHolders === "" ? this.#pause * CHECK_PAUSE_GROWTH : FIRST_CHECK_PAUSE;
      this.#pause = Math.min(pause, LONGEST_CHECK_PAUSE);
      const pauseNow = Math.max(this.#pause, CHECK_FACTOR * (now() - began));
      this.#checkAt = onGrid(now() + pauseNow, pauseNow);
    }
    if (stuckHolders !== "" && stuckHolders === this.#stuckHolders) this.makeWaitsLeave();
    this.#stuckHolders = stuckHolders;
  }

  /** Returns whether the member of the queue has the holders of which one could have a majority at the last check
   * of all members. This costs one request, and most checks need no more. */
  *#hasKnownHolders(): Steps<boolean> {
    if (this.#movingHolders === undefined || now() >= this.#fullCheckAt) return false;
    const ages = yield* this.members.holdersAt(this.key, this.queue);
    return ages !== undefined && [...ages.keys()].join(" ") === this.#movingHolders;
  }

  /** Asks all members for their holders. Returns those at the member of the queue, as text, if the waits may leave
   * it because none of these holders can have a majority; else empty text. */
  *#compareMembers(isLast: boolean): Steps<string> {
    const holders = yield* this.members.holders(this.key);
    const ages = holders.at(this.queue) ?? new Map<string, number>();
    const tokens = [...ages.keys()].join(" ");
    const canMove = holders.queueCanMove(this.queue);
    this.#movingHolders = canMove ? tokens : undefined;
    this.#fullCheckAt = now() + FULL_CHECK_INTERVAL;
    const hasYoungHold = [...ages.values()].some((age) => age < PARTIAL_HOLD_MAX_AGE);
    return canMove || (isLast && hasYoungHold) ? "" : tokens;
  }

  makeWaitsLeave(): void {
    this.departures += 1;
    for (const wait of this.waits) wait.bell.ring();
  }
}
