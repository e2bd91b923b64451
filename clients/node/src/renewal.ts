// How long a hold is valid, when it is renewed, when it is lost; releases that are owed. Does no I/O and
// starts no timer: whoever watches a `Task` asks it when to wake it, and carries out the steps that it then
// wants.

import { now, trusted } from "./clock.js";
import { NotHeldError, word } from "./errors.js";
import { type Args, type Key, release } from "./protocol.js";
import { Sleep, type Steps, type Task } from "./steps.js";

/** One hold, as its owner may believe in it. */
export class Renewal implements Task {
  forget: (() => void) | undefined;
  /** Released. */
  over = false;
  loss: NotHeldError | undefined;
  onLost: (() => void) | undefined;
  /** How often each member is told to release it. */
  releases = 1;
  #retryAt: number | undefined;
  #failure = "";
  // The shortest lease of an EXTEND without an answer: the server may still carry it out.
  #orphan = Number.POSITIVE_INFINITY;
  // A renewal, or an extension by the owner: they take turns, for two could be answered in either order.
  #isExtending = false;

  constructor(
    private readonly name: string,
    /** ms */
    public lease: number,
    public validUntil: number,
    public renewed: boolean,
    /** The steps that set the lease, and say whether the token holds the lock. */
    private readonly ask: (hold: Renewal, lease: number) => Steps<boolean>,
  ) {}

  /** Looks at the clock first: past its validity a hold is lost, whether or not anything has noticed. */
  isLost(): boolean {
    if (this.loss === undefined && !this.over && now() >= this.validUntil) {
      this.lose(`its lease ended${this.#failure}`);
    }
    return this.loss !== undefined;
  }

  lose(why: string): void {
    if (this.loss !== undefined || this.over) return;
    this.loss = new NotHeldError(`the lock ${this.name} is lost: ${why}`, this.name);
    this.forget?.();
    this.onLost?.();
  }

  end(): void {
    this.over = true;
    this.forget?.();
  }

  finished(): boolean {
    return this.over || this.loss !== undefined;
  }

  /** A renewed hold is declared lost a tenth of its lease early: the time that its owner has to stop. */
  #lostAt(): number {
    return this.validUntil - (this.renewed ? this.lease / 10 : 0);
  }

  wakeAt(): number {
    if (!this.renewed || this.#isExtending) return this.#lostAt();
    // After a third of the lease: it leaves room for more tries.
    return Math.min(this.#retryAt ?? this.validUntil - (this.lease * 2) / 3, this.#lostAt());
  }

  wake(): Steps<void> | undefined {
    if (now() >= this.#lostAt()) {
      this.lose(this.renewed ? `not renewed in time${this.#failure}` : "its lease ended");
      return undefined;
    }
    if (this.#isExtending) return undefined;
    this.#isExtending = true;
    return this.#renew();
  }

  *#renew(): Steps<void> {
    try {
      yield* this.extend(this.lease);
      this.#retryAt = undefined;
    } catch (why) {
      this.#failure = `: ${(why as Error).message}`;
      this.#retryAt = now() + ((0.5 + Math.random() / 2) * this.lease) / 10;
    } finally {
      this.#isExtending = false;
    }
  }

  /** An extension by the owner, in its turn. Answers whether the token holds the lock. */
  *extending(lease: number): Steps<boolean> {
    while (this.#isExtending) yield new Sleep(5);
    this.#isExtending = true;
    try {
      const held = yield* this.extend(lease);
      this.lease = lease;
      return held;
    } finally {
      this.#isExtending = false;
      this.forget?.();
    }
  }

  *extend(lease: number): Steps<boolean> {
    if (this.isLost()) return false;
    const sent = now();
    // A shorter lease counts as soon as it is asked for: the answer may be lost.
    this.validUntil = Math.min(this.validUntil, sent + trusted(lease));
    let held: boolean;
    try {
      held = yield* this.ask(this, lease);
    } catch (why) {
      if (!word(why)) this.#orphan = Math.min(this.#orphan, lease);
      throw why;
    }
    // Its owner has been told, or could know, and may have stopped.
    if (this.isLost()) return false;
    if (!held) {
      this.lose("it was taken away");
      return false;
    }
    this.validUntil = sent + trusted(Math.min(lease, this.#orphan));
    return true;
  }
}

/** A command that has no answer yet: sent until it has one, or until all that it could end has ended. */
export class Owed implements Task {
  forget: (() => void) | undefined;
  answered: (() => void) | undefined;
  /** How much it ended, once there is an answer. */
  ended: number | undefined;
  /** A try had no answer: it may have ended what the next one did not find. */
  unanswered = false;
  readonly #until: number;
  #next = now();
  #pause = 50;

  constructor(
    private readonly command: Args,
    lasts: number,
    private times = 1,
  ) {
    this.#until = now() + lasts;
  }

  finished(): boolean {
    return this.times === 0 || now() > this.#until;
  }

  wakeAt(): number {
    return this.#next;
  }

  wake(): Steps<void> {
    this.#next = Number.POSITIVE_INFINITY;
    return this.#send();
  }

  *#send(): Steps<void> {
    try {
      this.ended = (this.ended ?? 0) + (yield* orWrongType(this.command, 0));
      this.times -= 1;
      this.answered?.();
    } catch (why) {
      this.unanswered ||= !word(why);
      this.#pause = Math.min(this.#pause * 2, 2000);
    }
    this.#next = now() + this.#pause;
  }
}

export class OwedRelease extends Owed {
  /** Twice by default: the server may have read an ACQUIRE without an answer after the first RELEASE, from
   * another connection. */
  constructor(key: Key, token: string, lasts: number, times = 2) {
    super(release(key, token), lasts, times);
  }
}

/** The answer, or this where the key holds something else than a lock. */
export function* orWrongType(command: Args, otherwise: number): Steps<number> {
  try {
    return yield command;
  } catch (answer) {
    if (word(answer) === "WRONGTYPE") return otherwise;
    throw answer;
  }
}
