// The waits of one client, and its record of contended locks.
//
// One subscription serves every wait of a client. Each request of a wait has a message of its own: an id, which the
// server publishes with the outcome of the wait, and a secret, which it publishes with a grant only. Messages can be
// lost, so a wait also repeats its request after a pause. This file does no I/O: `channel.ts` receives the messages.

import { randomBytes } from "node:crypto";
import { now, validity } from "./clock.js";
import { freshSecret, type Published, readPublished } from "./protocol.js";

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
  /** A hold that is older is watched for its loss: see `loss-watcher.ts`. */
  watch: 100,
};

// Waits that are woken together ask again within this time for each of them, and within LONGEST_SPREAD, ms.
const SPREAD_PER_WAIT = 0.25;
const LONGEST_SPREAD = 1000;

/** A flag that wakes its waiter, of which there is one at a time: `ring` sets it, `clear` clears it. */
export class Bell {
  /** Woken by the flag. */
  pause: { resolve(): void } | undefined;
  #rung = false;

  get isRung(): boolean {
    return this.#rung;
  }

  ring(): void {
    this.#rung = true;
    this.pause?.resolve();
  }

  clear(): void {
    this.#rung = false;
    this.pause = undefined;
  }
}

/** A grant by its message: the token holds the lock. */
export interface MessageGrant {
  readonly fence: number;
  /** End of the validity, on the clock of `now()`. */
  readonly validUntil: number;
  /** When the message arrived, on the clock of `now()`. */
  readonly receivedAt: number;
}

interface Call {
  readonly id: string;
  readonly secret: string;
  readonly number: number;
  /** Number of the connection over which it is sent. */
  readonly connection: number;
  readonly validUntil: number;
}

/** One wait, and the messages about it. */
export class Wait {
  readonly bell = new Bell();
  cancelled = false;
  /** Number of the connection of the call whose message has said so. */
  cancelledOn = 0;
  /** Pause before the next request, ms, after all waits of the client were woken at the same moment. */
  delay = 0;
  /** The requests whose messages can still count, the last one at the end. */
  #calls: Call[] = [];
  #lastNumber = 0;
  /** The last request that was answered with null. */
  #lastNull = 0;
  #granted: (MessageGrant & { readonly call: number }) | undefined;

  constructor(private readonly registry: WaitRegistry) {}

  get channel(): string {
    return this.registry.channel;
  }

  get isSubscribed(): boolean {
    return this.registry.isSubscribed;
  }

  get hasTriedToSubscribe(): boolean {
    return this.registry.hasTriedToSubscribe;
  }

  /** Number of waits of the client. */
  get companions(): number {
    return this.registry.size;
  }

  wakeAll(): void {
    this.registry.wakeAll();
  }

  /** The grant that a message has brought; undefined if there is none, or if a later request was answered with
   * null: then that hold has ended, unless the server has read another copy of its request since. */
  get granted(): MessageGrant | undefined {
    return this.#granted !== undefined && this.#granted.call >= this.#lastNull ? this.#granted : undefined;
  }

  /** Call it just before a request is sent. Returns the message of this request. A grant that the message brings
   * is valid for `lease` ms from now, less drift: the server reads the request later, and retains the hold for at
   * least as long. `connection`: the number of that over which the request is sent. */
  beginCall(lease: number, connection = 0): string {
    const at = now();
    this.#keepCalls(({ validUntil }) => at < validUntil);
    this.#lastNumber += 1;
    // Fresh for each request: a client that may publish on the channel can also read it, and the first message of a
    // wait shows its id, that of a grant also its secret.
    const id = `${freshSecret()}.${this.#lastNumber}`;
    const secret = freshSecret();
    this.#calls.push({ id, secret, number: this.#lastNumber, connection, validUntil: at + validity(lease) });
    this.registry.addCall(id, this);
    return `${id} ${secret}`;
  }

  /** Call it when the last request was answered with null. The message of that request may come before the answer.
   * A message of an earlier one is no grant any more, but wakes the wait. */
  noteNull(): void {
    this.#lastNull = this.#lastNumber;
  }

  /** Receives what was published with the id of a request. Only the first such message of a request counts: it
   * shows the id to others. A grant without the secret is forged. */
  receive({ id, outcome, fence, secret }: Published): void {
    const call = this.#calls.find((call) => call.id === id)!;
    this.#keepCalls((kept) => kept !== call);
    if (
      fence !== undefined &&
      secret === call.secret &&
      (this.#granted === undefined || this.#granted.call < call.number)
    ) {
      this.#granted = { fence, validUntil: call.validUntil, receivedAt: now(), call: call.number };
    }
    if (outcome === "cancelled") {
      this.cancelled = true;
      this.cancelledOn = call.connection;
    }
    if (outcome === "refused") this.registry.onRefused();
    this.bell.ring();
  }

  #keepCalls(isKept: (call: Call) => boolean): void {
    for (const call of this.#calls) if (!isKept(call)) this.registry.removeCall(call.id);
    this.#calls = this.#calls.filter(isKept);
  }

  /** Returns `delay`, and sets it to 0. */
  takeDelay(): number {
    const { delay } = this;
    this.delay = 0;
    return delay;
  }

  close(): void {
    this.#keepCalls(() => false);
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
  readonly #waits = new Set<Wait>();
  /** By id: the wait of the request. */
  readonly #calls = new Map<string, Wait>();
  #idleSince = now();

  /** `onRefused`: called when the server has said that it can no longer grant. */
  constructor(readonly onRefused: () => void = () => {}) {}

  open(): Wait {
    const wait = new Wait(this);
    this.#waits.add(wait);
    return wait;
  }

  addCall(id: string, wait: Wait): void {
    this.#calls.set(id, wait);
  }

  removeCall(id: string): void {
    this.#calls.delete(id);
  }

  remove(wait: Wait): void {
    this.#waits.delete(wait);
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

  onMessage(payload: string): void {
    this.receivedAt = now();
    const published = readPublished(payload);
    if (published !== undefined) this.#calls.get(published.id)?.receive(published);
  }

  /** Makes all waits ask again, at random moments of a period that grows with their number. */
  wakeAll(): void {
    const period = Math.min(this.#waits.size * SPREAD_PER_WAIT, LONGEST_SPREAD);
    for (const wait of this.#waits) {
      wait.delay = Math.random() * period;
      wait.bell.ring();
    }
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
