// A wait in the queue of one member of a quorum. The position belongs to the token, so that all waits share
// one connection, and outlast it. The member publishes when the turn has come; as a message can be lost, a
// wait also asks again, which keeps its position. As all that decides, it yields steps and does no I/O.

import type { Request } from "./attempt.js";
import { now } from "./clock.js";
import { GraceError, NoAnswerError, refusal, word } from "./errors.js";
import type { Members } from "./members.js";
import { acquire, type Key, queued } from "./protocol.js";
import { Listen, Pause, type Steps, To } from "./steps.js";
import { times, type Wait } from "./waits.js";

// How often, at least, the waits at a member find out together whether it has fallen silent, ms.
const CHECK = 500;
// The first pause of those whom the member tells nothing, which grows up to CHECK.
const FIRST_PAUSE = 100;
// How often it is looked whether a queue moves: the first pause, and the longest.
const FIRST_LOOK = 30;
const LONGEST_LOOK = 1000;
// Not more often than so many times what the look took: where answers are late, so are those that make it
// move.
const LOOK_FACTOR = 8;
/** Whoever's turn has come at a member keeps its part there for less time, in ms, while others refuse it.
 * What is older was left behind. */
export const HEAD_KEEPS = 2000;

/** Of all that wait for one resource at one member, one at a time looks whether its queue moves. They leave
 * it together: the heads of two queues keep each other from a majority. */
export class Lookout {
  readonly waits = new Set<Wait>();
  /** How often they were told to leave. */
  left = 0;
  #pause = FIRST_LOOK;
  #before = "";
  /** When to look again; nobody else while somebody looks. */
  #at = now() + FIRST_LOOK;

  constructor(
    private readonly members: Members,
    private readonly queue: number,
    private readonly key: Key,
  ) {}

  wakeAt(): number {
    return this.#at;
  }

  /** Looks whether those who hold the lock there hold it nowhere else. Found twice in a row: a hold begins
   * and ends at one member after the other. */
  *look(isLast: boolean): Steps<void> {
    if (now() < this.#at) return;
    this.#at = Number.POSITIVE_INFINITY;
    const begun = now();
    let there = "";
    try {
      const holders = yield* this.members.holders(this.key);
      const found = holders[this.queue] ?? new Map<string, number>();
      // From the last queue it is a long way back.
      const isOfNow = isLast && [...found.values()].some((held) => held < HEAD_KEEPS);
      if (!isOfNow && !this.members.mayMove(this.queue, holders)) there = [...found.keys()].join(" ");
    } finally {
      this.#pause = Math.min(this.#pause * 2, LONGEST_LOOK);
      this.#at = now() + Math.max(this.#pause, LOOK_FACTOR * (now() - begun));
    }
    if (there !== "" && there === this.#before) this.sendAway();
    this.#before = there;
  }

  /** Lets all leave the queue. */
  sendAway(): void {
    this.left += 1;
    for (const wait of this.waits) wait.bell.ring();
  }
}

/** One token in the queue of one member. */
export class Waiter {
  #notify = true;
  /** For how long the member keeps the position, ms. */
  #keep = times.keep;
  #unheard = FIRST_PAUSE;

  constructor(
    private readonly members: Members,
    private readonly queue: number,
    private readonly request: Request,
    private readonly token: string,
    /** How long an answer may take, ms. */
    private readonly limit: number,
  ) {}

  /** Waits until the turn has come: answers true. Null: the time is over, the wait was cancelled, or the
   * queue is to be left. An error: the member does not grant. */
  *wait(end: number, isLast: boolean): Steps<unknown> {
    const wait: Wait = yield new To(this.queue, new Listen());
    const lookout = this.members.lookout(this.queue, this.request);
    lookout.waits.add(wait);
    try {
      // What is published before the subscription would be lost. Without one, waits go by the clock alone.
      if (!wait.desk.tried) yield new Pause(wait, Math.min(this.limit, CHECK));
      return yield* this.#asking(wait, lookout, end, isLast);
    } finally {
      wait.close();
      lookout.waits.delete(wait);
      if (lookout.waits.size === 0) this.members.forgetLookout(this.queue, this.request);
    }
  }

  /** Asks for the lock, and again whenever it may have been granted, or the position would be lost. */
  *#asking(wait: Wait, lookout: Lookout, end: number, isLast: boolean): Steps<unknown> {
    const { left } = lookout;
    let answeredAt = now();
    while (true) {
      wait.bell.clear();
      let pause: number;
      try {
        if ((yield this.#ask(wait)) !== null) return true;
        answeredAt = now();
        pause = wait.desk.ready && this.#notify ? this.#checksAfter(wait) : this.#backoff();
      } catch (why) {
        if (word(why) === "NOPERM" && this.#notify) {
          // No right to the channel: waits by the clock alone.
          this.#notify = false;
          continue;
        }
        if (word(why) === "ERR" && this.#keep > this.request.lease) {
          // Not longer than the server's `dlock.max-ttl`, which the lease is not either.
          this.#keep = this.request.lease;
          continue;
        }
        if (why instanceof NoAnswerError) {
          // It is busy: it may still keep the position.
          if (this.members.isSilent(this.queue) || now() > answeredAt + times.keep) {
            // Who waits there, too, finds out.
            wait.desk.wakeAll();
            return why;
          }
          pause = this.#backoff();
        } else if (word(why) === "WRONGTYPE") {
          pause = this.request.retryDelay;
        } else {
          const refused = refusal(why, this.request.name);
          if (!word(why) || (refused !== undefined && !(refused instanceof GraceError))) throw refused ?? why;
          return why;
        }
      }
      const again = Math.min(now() + pause, end);
      while (!wait.bell.isRung && now() < again) {
        yield new Pause(wait, Math.max(Math.min(again, lookout.wakeAt()) - now(), 0));
        if (!wait.bell.isRung) yield* lookout.look(isLast);
      }
      if (wait.granted) return true;
      if (wait.cancelled || lookout.left !== left || now() >= end) return null;
      if (this.members.isSilent(this.queue)) {
        wait.desk.wakeAll();
        return new NoAnswerError("the master of the queue is silent");
      }
    }
  }

  #ask({ desk, number }: Wait): To {
    const { key, lease, terms } = this.request;
    const position = queued(this.#keep, desk.channel, number, this.#notify);
    return new To(this.queue, acquire(key, this.token, lease, [...terms, ...position]));
  }

  /** How long to wait for a message. So many waits share the check whether the member has fallen silent. */
  #checksAfter({ desk }: Wait): number {
    const longest = Math.min(Math.min(this.limit, CHECK) * desk.waits.size, this.#keep / 3);
    return (0.5 + Math.random() / 2) * longest;
  }

  #backoff(): number {
    const pause = this.#unheard;
    this.#unheard = Math.min(pause * 2, CHECK);
    return pause;
  }
}
