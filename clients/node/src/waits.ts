// Waits in the queues of one server. One subscription serves all waits of a client: each wait has a number,
// which the server publishes with the outcome of the wait. A message can be lost, so a wait also asks again
// by its own clock. Does no I/O: `channel.ts` subscribes.

import { randomBytes } from "node:crypto";
import { now } from "./clock.js";

/** Times in ms. Tests change them. */
export const times = {
  /** Time limit of an answer of a single server. */
  answer: 5_000,
  /** Default time limit of an answer of a member of a quorum. */
  nodeTimeout: 250,
  /** The caller waits for releases that are owed for at most this. */
  patience: 500,
  /** The server keeps a position for this long after each request for it. A grant to a waiter that has died
   * lasts no longer either. */
  keep: 10_000,
  /** A wait asks again after this time without a message. */
  ask: 3_333,
  /** The start of a wait is delayed by at most this for the subscription. */
  connect: 1_000,
  /** After this time without a message the client sends PING to its subscriber; without an answer it connects
   * anew. */
  silence: 3_000,
  /** The subscriber stays connected for this long after the last wait. */
  idle: 10_000,
};

/** A flag with a wake-up: set by `ring`, until `clear`. */
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

/** A wait, and the last message about it. */
export class Wait {
  readonly bell = new Bell();
  granted = false;
  cancelled = false;

  constructor(
    readonly registry: WaitRegistry,
    readonly number: string,
  ) {}

  close(): void {
    this.registry.remove(this);
  }
}

/** The waits of one client, and the state of its subscription. */
export class WaitRegistry {
  readonly channel = `dlock:${randomBytes(15).toString("base64url")}`;
  /** Whether the subscription is live. */
  isSubscribed = false;
  /** Whether the first attempt to subscribe has ended, in success or failure. */
  isSettled = false;
  /** When the subscriber last received something. */
  heardAt = now();
  readonly #waits = new Map<string, Wait>();
  #idleSince = now();
  #lastNumber = 0;

  open(): Wait {
    this.#lastNumber += 1;
    const wait = new Wait(this, String(this.#lastNumber));
    this.#waits.set(wait.number, wait);
    return wait;
  }

  remove(wait: Wait): void {
    this.#waits.delete(wait.number);
    this.#idleSince = now();
  }

  get size(): number {
    return this.#waits.size;
  }

  isIdle(): boolean {
    return this.#waits.size === 0 && now() - this.#idleSince > times.idle;
  }

  onSubscribed(): void {
    this.isSubscribed = true;
    this.isSettled = true;
    this.heardAt = now();
    // Earlier messages are lost: all waits ask again.
    this.wakeAll();
  }

  onDisconnected(): void {
    this.isSubscribed = false;
    this.isSettled = true;
    this.wakeAll();
  }

  onMessage(message: string): void {
    this.heardAt = now();
    const [number, outcome] = message.split(" ", 2);
    const wait = this.#waits.get(number ?? "");
    if (wait === undefined) return;
    wait.granted = outcome === "granted";
    wait.cancelled = outcome === "cancelled";
    wait.bell.ring();
  }

  wakeAll(): void {
    for (const wait of this.#waits.values()) wait.bell.ring();
  }
}

// A key stays contended for this long after it was found taken, ms.
const CONTENDED = 1000;
// A memory of more keys is emptied.
const MAX_KEYS = 1000;

/** The keys that were found taken a short while ago: the next acquisition of one of them enters the queue
 * with its first request. */
export class ContendedKeys {
  readonly #until = new KeyMemory<number>();

  has(name: string): boolean {
    return (this.#until.get(name) ?? 0) > now();
  }

  note(name: string): void {
    this.#until.set(name, now() + CONTENDED);
  }
}

/** A map of at most `MAX_KEYS` keys. */
export class KeyMemory<T> extends Map<string, T> {
  override set(name: string, value: T): this {
    if (this.size >= MAX_KEYS && !this.has(name)) this.clear();
    return super.set(name, value);
  }
}
