// Waiting in the queue. One subscription serves every wait of a client: each wait has a number, and the
// server publishes it with what became of the wait. Messages can be lost, so a wait also asks again by its
// own clock. Does no I/O: `channel.ts` listens.

import { randomBytes } from "node:crypto";
import { now } from "./clock.js";

/** Times, in ms. Tests change them. */
export const times = {
  /** For how long the server keeps a position that is not asked for again. If the waiter dies, a grant to it
   * lasts no longer than that either. */
  keep: 10_000,
  /** How often a wait asks again although no message came. */
  ask: 3_333,
  /** How long a wait begins later for the subscription's sake. */
  connect: 1_000,
  /** Without any message for this long, the listener sends a PING; if that has no answer either, it connects
   * anew. */
  silence: 3_000,
  /** The listener stays for this long after the last wait. */
  idle: 10_000,
};

/** Set, until somebody who waits for it has seen it. */
export class Bell {
  #rung = false;
  #wake: (() => void) | undefined;

  get isRung(): boolean {
    return this.#rung;
  }

  ring(): void {
    this.#rung = true;
    this.#wake?.();
  }

  clear(): void {
    this.#rung = false;
  }

  rung(): Promise<void> {
    return this.#rung ? Promise.resolve() : new Promise((resolve) => (this.#wake = resolve));
  }
}

/** A wait, and what was heard of it. */
export class Wait {
  readonly bell = new Bell();
  granted = false;
  cancelled = false;

  constructor(
    readonly desk: Desk,
    readonly number: string,
  ) {}

  close(): void {
    this.desk.waits.delete(this.number);
    this.desk.idleSince = now();
  }
}

/** The waits of one client. */
export class Desk {
  readonly channel = `dlock:${randomBytes(15).toString("base64url")}`;
  readonly waits = new Map<string, Wait>();
  /** Whether the subscription is live. */
  ready = false;
  /** Whether that is known: it came about, or failed. */
  tried = false;
  heardAt = now();
  idleSince = now();
  #numbers = 0;

  open(): Wait {
    this.#numbers += 1;
    const wait = new Wait(this, String(this.#numbers));
    this.waits.set(wait.number, wait);
    return wait;
  }

  isIdle(): boolean {
    return this.waits.size === 0 && now() - this.idleSince > times.idle;
  }

  subscribed(): void {
    this.ready = true;
    this.tried = true;
    this.heardAt = now();
    // What was published before is lost: everybody asks.
    this.wakeAll();
  }

  disconnected(): void {
    this.ready = false;
    this.tried = true;
    this.wakeAll();
  }

  heard(message: string): void {
    this.heardAt = now();
    const [number, what] = message.split(" ", 2);
    const wait = this.waits.get(number ?? "");
    if (wait === undefined) return;
    wait.granted = what === "granted";
    wait.cancelled = what === "cancelled";
    wait.bell.ring();
  }

  wakeAll(): void {
    for (const wait of this.waits.values()) wait.bell.ring();
  }
}
