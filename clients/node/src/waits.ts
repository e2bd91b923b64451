// The waits of one client, and its record of contended locks.
//
// One subscription serves every wait of a client: each wait has a number, and the server publishes the number
// with the outcome of the wait. Messages can be lost, so a wait also repeats its request after a pause. This
// file does no I/O: `channel.ts` receives the messages.

import { randomBytes } from "node:crypto";
import { now } from "./clock.js";

/** Times in ms. Tests change them. */
export const times = {
  /** Time limit of an answer of a single server. */
  answer: 5_000,
  /** Default time limit of one member's answer in a quorum. */
  nodeTimeout: 250,
  /** Longest time that a caller waits for releases that are repeated in the background (see `owed.ts`). */
  patience: 500,
  /** Time that the server retains a queue position after each request for it. A grant to the waiter lasts no
   * longer, unless the waiter sends another request. */
  keep: 10_000,
  /** Pause between two requests of a wait while no message arrives. */
  ask: 3_333,
  /** A wait pauses at most this long until its client has subscribed for the first time. */
  connect: 1_000,
  /** After this time without a message the client sends a PING over the subscriber's connection. If the PING
   * has no answer, the subscriber reconnects. */
  silence: 3_000,
  /** Time that the subscriber stays connected after the last wait. */
  idle: 10_000,
};

/** A flag that wakes its waiter: `ring` sets it, `clear` clears it. */
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

  /** Resolves when the flag is set. Has one waiter at a time. */
  rung(): Promise<void> {
    return this.#rung ? Promise.resolve() : new Promise((resolve) => (this.#wake = resolve));
  }
}

/** One wait, and the last message about it. */
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
  hasTriedToSubscribe = false;
  /** When the subscriber last received something. */
  receivedAt = now();
  readonly #waits = new Map<string, Wait>();
  #idleSince = now();
  #lastNumber = 0;

  /** `onRefused`: called when the server has said that it can no longer grant. */
  constructor(private readonly onRefused: () => void = () => {}) {}

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
    this.hasTriedToSubscribe = true;
    this.receivedAt = now();
    // Messages that were sent before the subscription are lost, so every wait asks the server.
    this.wakeAll();
  }

  onDisconnected(): void {
    this.isSubscribed = false;
    this.hasTriedToSubscribe = true;
    this.wakeAll();
  }

  onMessage(message: string): void {
    this.receivedAt = now();
    const [number, outcome] = message.split(" ", 2);
    const wait = this.#waits.get(number ?? "");
    if (wait === undefined) return;
    wait.granted = outcome === "granted";
    wait.cancelled = outcome === "cancelled";
    if (outcome === "refused") this.onRefused();
    wait.bell.ring();
  }

  wakeAll(): void {
    for (const wait of this.#waits.values()) wait.bell.ring();
  }
}

// Time for which a key counts as contended after it was found taken, ms.
const CONTENDED_FOR = 1000;
// Greatest number of keys in a `KeyMemory`.
const MAX_KEYS = 1000;

/** The keys that were found taken within the last `CONTENDED_FOR` ms. A client that may wait for such a key
 * queues at once. If it asked all members of a quorum first, some of them might grant it the lock, and the
 * waiter whose turn it is would lack their votes for a moment. */
export class ContendedKeys {
  readonly #until = new KeyMemory<number>();

  has(name: string): boolean {
    return (this.#until.get(name) ?? 0) > now();
  }

  note(name: string): void {
    this.#until.set(name, now() + CONTENDED_FOR);
  }
}

/** A map of at most `MAX_KEYS` keys. A full map is emptied before it stores a further key. */
export class KeyMemory<T> extends Map<string, T> {
  override set(name: string, value: T): this {
    if (this.size >= MAX_KEYS && !this.has(name)) this.clear();
    return super.set(name, value);
  }
}
