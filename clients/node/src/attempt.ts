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
// Grace may end earlier than the server said: it is asked again after so long at most, ms.
const GRACE_CHECK = 2000;

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
  /** Elsewhere, where it may be released as well. */
  readonly adopted?: boolean;
}

/** Acquires, at most until `end`; not waiting at all if `waits` is false. */
export interface Acquisition {
  /** Whether something may have to be taken back. */
  readonly asked: boolean;
  run(waits: boolean, end: number): Steps<Granted | null>;
  owe(): Owe;
}

const contended = new Contended();

/** One acquisition, with one token. */
export class Attempt implements Acquisition {
  asked = false;
  readonly #token = freshToken();
  /** Once it waits. */
  #wait: Wait | undefined;
  #notify = true;
  /** For how long the server keeps the position, ms. */
  #keep = times.keep;

  constructor(
    private readonly request: Request,
    private readonly server: { readonly closed: boolean },
  ) {}

  owe(): Owe {
    const { key, lease } = this.request;
    const owed = new OwedRelease(key, this.#token, Math.max(lease, times.keep) + times.keep);
    return new Owe(new Map([[0, owed]]), () => owed.ended !== undefined);
  }

  /** After a null, nothing is left on the server. */
  *run(waits: boolean, end: number): Steps<Granted | null> {
    try {
      return yield* this.#asking(waits, end);
    } finally {
      this.#wait?.close();
    }
  }

  *#asking(waits: boolean, end: number): Steps<Granted | null> {
    const { key, name, lease, retryDelay } = this.request;
    let sent: number | undefined;
    let answeredAt = now();
    let late = 0;
    const queues = waits && answeredAt < end && !this.server.closed;
    if (queues && contended.has(name)) yield* this.#listen(end);
    while (true) {
      let pause = retryDelay;
      // A request sent again keeps the first send as its start: the server may count from that one.
      sent ??= now();
      this.asked = true;
      try {
        const fence: number | null = yield acquire(key, this.#token, lease, this.#terms());
        answeredAt = now();
        const validUntil = sent + trusted(lease);
        sent = undefined;
        if (fence !== null) {
          if (answeredAt < validUntil) return { token: this.#token, fence, validUntil };
          late += 1;
          if (late === LATE) throw new LateError(`${name}: the ttl is too short for this server`, name);
          continue;
        }
        if (waits) {
          contended.note(name);
          if (this.#wait === undefined && answeredAt < end) {
            yield* this.#listen(end);
            continue;
          }
        }
        if (this.#notify && this.#wait?.desk.ready) pause = Math.min(times.ask, this.#keep / 3);
      } catch (why) {
        if (why instanceof NoAnswerError) {
          // A waiter outlasts what its position outlasts, but not its client.
          if (this.#wait === undefined || this.server.closed || now() - answeredAt > times.keep) throw why;
        } else if (word(why) === "NOPERM" && this.#wait !== undefined && this.#notify) {
          // No right to the channel: waits by the clock alone.
          this.#notify = false;
          continue;
        } else if (word(why) === "ERR" && this.#wait !== undefined && this.#keep > lease) {
          // Not longer than the server's `dlock.max-ttl`, which the lease is not either.
          this.#keep = lease;
          continue;
        } else {
          pause = this.#refused(why, waits, end);
          sent = undefined;
        }
      }
      const left = end - now();
      if (!waits || left <= 0) break;
      pause = Math.min(pause, left);
      yield this.#wait === undefined ? new Sleep(pause) : new Pause(this.#wait, pause);
      if (this.#wait?.cancelled) break;
    }
    if (this.#wait !== undefined) {
      try {
        yield release(key, this.#token);
      } catch (why) {
        if (!(why instanceof NoAnswerError)) throw why;
        yield this.owe();
      }
    }
    return null;
  }

  *#listen(end: number): Steps<void> {
    const wait: Wait = yield new Listen();
    this.#wait = wait;
    // What is published before the subscription would be lost. Where there is none, waits go by the clock
    // alone, and only the first one finds that out.
    if (!wait.desk.tried) yield new Pause(wait, Math.min(times.connect, end - now()));
  }

  #terms(): Args {
    const { terms } = this.request;
    if (this.#wait === undefined) return terms;
    this.#wait.bell.clear();
    return [...terms, ...queued(this.#keep, this.#wait.desk.channel, this.#wait.number, this.#notify)];
  }

  /** After how long to ask again; or throws. */
  #refused(answer: unknown, waits: boolean, end: number): number {
    // Somebody holds it by `SET NX PX`, and does not know of the queue.
    if (word(answer) === "WRONGTYPE") return this.request.retryDelay;
    const refused = answer instanceof LockError ? undefined : refusal(answer, this.request.name);
    if (refused instanceof GraceError && waits && now() + refused.left < end) {
      return Math.min(refused.left, GRACE_CHECK);
    }
    throw refused ?? answer;
  }
}
