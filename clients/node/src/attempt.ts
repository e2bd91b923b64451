// One acquisition from a single server: a try, the queue, the claim.

import { now, trusted } from "./clock.js";
import { Contended } from "./contended.js";
import { GraceError, LateError, LockError, NoAnswerError, refusal, word } from "./errors.js";
import type { Holders } from "./members.js";
import { type Args, acquire, freshToken, type Key, queued, release } from "./protocol.js";
import { OwedRelease } from "./renewal.js";
import { Listen, Owe, Pause, Sleep, type Steps } from "./steps.js";
import { times, type Wait } from "./waits.js";

/** The lock is asked for this often if each answer takes longer than the lease. */
export const LATE = 3;

/** What is asked for. */
export interface Request {
  readonly key: Key;
  readonly name: string;
  /** ms */
  readonly lease: number;
  /** The mode, as ACQUIRE's options. */
  readonly terms: Args;
  /** How often to ask where the queue cannot help, ms: a lock of another kind, no messages. */
  readonly retryDelay: number;
}

export interface Granted {
  readonly token: string;
  readonly fence: number | null;
  readonly validUntil: number;
  /** In a quorum. */
  readonly holders?: Holders;
}

/** Acquires, at most until `end`; not waiting at all if `waits` is false. */
export interface Acquisition {
  /** Whether something may have to be taken back. */
  readonly asked: boolean;
  run(waits: boolean, end: number): Steps<Granted | null>;
  owe(): Owe;
  close(): void;
}

/** A member of a quorum, in whose queue one waits. The others go on without it. */
export interface Place {
  isSilent(): boolean;
  /** So often, at least, the waits there find out together whether it has fallen silent, ms. */
  readonly check: number;
  /** Whether its queue does not move, and another might. */
  readonly isStuck: ((wait: Wait) => Steps<boolean>) | undefined;
}

const contended = new Contended();

/** One acquisition, with one token. */
export class Attempt implements Acquisition {
  asked = false;
  /** Where it waits, once it does. */
  wait: Wait | undefined;
  #notify = true;
  /** For how long the server keeps the position, ms. */
  #keep = times.keep;

  constructor(
    private readonly request: Request,
    private readonly token = freshToken(),
    private readonly place?: Place,
  ) {}

  owe(): Owe {
    const { key, lease } = this.request;
    const owed = new OwedRelease(key, this.token, Math.max(lease, times.keep) + times.keep);
    return new Owe(new Map([[0, owed]]), () => owed.ended !== undefined);
  }

  close(): void {
    this.wait?.close();
  }

  /** After a null, nothing is left on the server. */
  *run(waits: boolean, end: number): Steps<Granted | null> {
    const { key, name, lease, retryDelay } = this.request;
    let sent: number | undefined;
    let answeredAt = now();
    let late = 0;
    if (waits && (this.place !== undefined || contended.has(name))) yield* this.#listen();
    while (true) {
      let pause = retryDelay;
      // A request sent again keeps the first send as its start: the server may count from that one.
      sent ??= now();
      this.asked = true;
      try {
        const fence: number | null = yield acquire(key, this.token, lease, this.#terms());
        answeredAt = now();
        const validUntil = sent + trusted(lease);
        sent = undefined;
        if (fence !== null) {
          if (answeredAt < validUntil) return { token: this.token, fence, validUntil };
          late += 1;
          if (late === LATE) throw new LateError(`${name}: the ttl is too short for this server`, name);
          continue;
        }
        if (waits) {
          contended.note(name);
          if (this.wait === undefined && answeredAt < end) {
            yield* this.#listen();
            continue;
          }
        }
        if (this.#notify && this.wait?.desk.ready) pause = this.#asksAgainAfter(this.wait);
      } catch (why) {
        if (why instanceof NoAnswerError) {
          // A waiter outlasts what its position outlasts.
          if (this.wait === undefined || now() - answeredAt > times.keep) throw why;
          this.#leaveTheSilent(why);
        } else if (word(why) === "NOPERM" && this.wait !== undefined && this.#notify) {
          // No right to the channel: waits by the clock alone.
          this.#notify = false;
          continue;
        } else if (word(why) === "ERR" && this.wait !== undefined && this.#keep > lease) {
          // Not longer than the server's `dlock.max-ttl`, which the lease is not either.
          this.#keep = lease;
          continue;
        } else {
          pause = this.#refused(why, waits, end);
          sent = undefined;
        }
      }
      pause = Math.min(pause, end - now());
      if (!waits || pause <= 0) break;
      yield this.wait === undefined ? new Sleep(pause) : new Pause(this.wait, pause);
      if (this.wait?.cancelled) break;
      if (this.place !== undefined && this.wait !== undefined) {
        this.#leaveTheSilent(new NoAnswerError(`${name}: the master of the queue is silent`, name));
        if (this.place.isStuck !== undefined && (yield* this.place.isStuck(this.wait))) break;
      }
    }
    if (this.wait !== undefined) {
      try {
        yield release(key, this.token);
      } catch (why) {
        if (!(why instanceof NoAnswerError)) throw why;
        yield this.owe();
      }
    }
    return null;
  }

  /** How long to wait for a message. At a member, so many waits share the check whether it is silent. */
  #asksAgainAfter({ desk }: Wait): number {
    const longest = Math.min(times.ask, this.#keep / 3);
    if (this.place === undefined) return longest;
    return (0.5 + Math.random() / 2) * Math.min(this.place.check * desk.waits.size, longest);
  }

  /** All waits leave a silent member at the same time. */
  #leaveTheSilent(why: NoAnswerError): void {
    if (!this.place?.isSilent()) return;
    this.wait?.desk.wakeAll();
    throw why;
  }

  *#listen(): Steps<void> {
    const wait: Wait = yield new Listen();
    this.wait = wait;
    // What is published before the subscription would be lost. Without one, waits go by the clock alone.
    if (!wait.desk.ready) yield new Pause(wait, Math.min(times.connect, this.place?.check ?? times.connect));
  }

  #terms(): Args {
    const { terms } = this.request;
    if (this.wait === undefined) return terms;
    this.wait.bell.clear();
    return [...terms, ...queued(this.#keep, this.wait.desk.channel, this.wait.number, this.#notify)];
  }

  /** After how long to ask again; or throws. */
  #refused(answer: unknown, waits: boolean, end: number): number {
    // Somebody holds it by `SET NX PX`, and does not know of the queue.
    if (word(answer) === "WRONGTYPE") return this.request.retryDelay;
    const refused = answer instanceof LockError ? undefined : refusal(answer, this.request.name);
    const mayWait = waits && this.place === undefined;
    if (refused instanceof GraceError && mayWait && now() + refused.left < end) return refused.left;
    throw refused ?? answer;
  }
}
