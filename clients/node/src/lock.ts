import type { Granted, Request } from "./attempt.js";
import { now } from "./clock.js";
import { NotHeldError, ResourceLockedError } from "./errors.js";
import type { Client } from "./links.js";
import type { Args, Key } from "./protocol.js";
import { Renewal } from "./renewal.js";
import { run } from "./run.js";
import { prefixed, Quorum, type Service, Single } from "./service.js";
import { type Steps, Watch } from "./steps.js";

export interface LockOptions {
  /** The lease, in milliseconds: 30,000. */
  ttl?: number | undefined;
  /** Renew the lease after each third of it, until the release: true. */
  renew?: boolean | undefined;
  /** Any number of sharers, or one exclusive holder. */
  shared?: boolean | undefined;
  /** A semaphore: at most so many holders. Not for a quorum. */
  permits?: number | undefined;
  /** For a quorum: a fence that rises over all members, for one more round trip. */
  fenced?: boolean | undefined;
  /** How often to ask where the wait queue cannot help, in milliseconds: 100. That is where another kind of
   * lock holds the key, or the user may not subscribe. */
  retryDelay?: number | undefined;
}

export interface AcquireOptions {
  /** Gives up when it is aborted, and leaves nothing behind. */
  signal?: AbortSignal | undefined;
  /** How long to wait, in milliseconds. Without it, as long as it takes. */
  timeout?: number | undefined;
}

/** A string, for one, would be counted with all the same, and `now() + "5000"` is over at once. */
function checkTime(name: string, ms: number): void {
  if (typeof ms !== "number" || Number.isNaN(ms)) {
    throw new RangeError(`${name}: ${ms}; it must be a number of milliseconds`);
  }
}

function checkTtl(ttl: number): void {
  if (!Number.isSafeInteger(ttl) || ttl < 1) {
    throw new RangeError(`ttl: ${ttl}; it must be a whole number of milliseconds, 1 or more`);
  }
}

/** A lock of one server, or of a majority of a quorum. An object holds nothing by itself: each acquisition is
 * a `Hold`, and any number of them may wait at the same time. */
export class Lock {
  readonly #service: Service;
  readonly #request: Request;
  readonly #renewed: boolean;
  readonly #fenced: boolean;

  constructor(client: Client | Quorum, key: Key, options: LockOptions = {}) {
    const { ttl = 30_000, renew = true, shared = false, permits, fenced = false, retryDelay = 100 } = options;
    checkTtl(ttl);
    checkTime("retryDelay", retryDelay);
    if (shared && permits !== undefined)
      throw new TypeError("shared and permits exclude each other: leave one out");
    const terms: Args = shared ? ["SHARED"] : permits === undefined ? [] : ["PERMITS", String(permits)];
    this.#service = client instanceof Quorum ? client : new Single(client);
    this.#request = { key: prefixed(this.#service, key), name: String(key), lease: ttl, terms, retryDelay };
    this.#renewed = renew;
    this.#fenced = fenced;
  }

  /** Waits in the queue, first come, first served. `ResourceLockedError` once the timeout is over. */
  async acquire(options: AcquireOptions = {}): Promise<Hold> {
    const hold = await this.#acquire(true, options);
    if (hold === null) {
      const { name } = this.#request;
      throw new ResourceLockedError(`${name}: not acquired in time, or an operator ended the wait`, name);
    }
    return hold;
  }

  /** One try: null if somebody else holds the lock, or waits for it. */
  tryAcquire(options: Pick<AcquireOptions, "signal"> = {}): Promise<Hold | null> {
    return this.#acquire(false, options);
  }

  /** Acquires the lock, runs the routine, and releases the lock. */
  async using<T>(routine: (hold: Hold) => T | Promise<T>, options: AcquireOptions = {}): Promise<T> {
    const hold = await this.acquire(options);
    let result: T;
    try {
      result = await routine(hold);
    } catch (why) {
      // The routine's own error says more than that of a release.
      await hold.release().catch(() => {});
      throw why;
    }
    await hold.release();
    return result;
  }

  /** @internal The hold of a token that was acquired elsewhere. It is not renewed. */
  adopt(token: string, validFor: number): Hold {
    const request = this.#request;
    const granted = this.#service.adopted(token, now() + validFor);
    const ask = this.#service.extension(request, granted);
    const renewal = new Renewal(request.name, request.lease, granted.validUntil, false, ask);
    return new Hold(this.#service, request, granted, renewal);
  }

  /** Whether anybody holds the lock. */
  locked(): Promise<boolean> {
    return run(this.#service.locked(this.#request.key), this.#service);
  }

  async #acquire(waits: boolean, { signal, timeout }: AcquireOptions): Promise<Hold | null> {
    if (timeout !== undefined) checkTime("timeout", timeout);
    const end = timeout === undefined ? Number.POSITIVE_INFINITY : now() + timeout;
    return run(this.#acquiring(waits, end), this.#service, signal);
  }

  *#acquiring(waits: boolean, end: number): Steps<Hold | null> {
    const { name, lease } = this.#request;
    const attempt = this.#service.attempt(this.#request, this.#fenced);
    let granted: Granted | null;
    try {
      granted = yield* attempt.run(waits, end);
    } catch (why) {
      // The server may have granted what it did not answer.
      if (attempt.asked) yield attempt.owe();
      throw why;
    }
    if (granted === null) return null;
    const ask = this.#service.extension(this.#request, granted);
    const renewal = new Renewal(name, lease, granted.validUntil, this.#renewed, ask);
    yield new Watch(renewal);
    return new Hold(this.#service, this.#request, granted, renewal);
  }
}

/** A lock that is held. Release it, or declare it with `await using`. */
export class Hold implements AsyncDisposable {
  /** The key of the lock. */
  readonly key: string;
  /** A number greater than that of every earlier hold: store it with what you write, and refuse lower ones.
   * Null in a quorum without `fenced`. */
  readonly fence: number | null;
  readonly #service: Service;
  readonly #key: Key;
  readonly #granted: Granted;
  readonly #renewal: Renewal;
  #controller: AbortController | undefined;
  #releasing = false;
  #released = false;

  /** @internal */
  constructor(service: Service, request: Request, granted: Granted, renewal: Renewal) {
    this.key = request.name;
    this.fence = granted.fence;
    this.#service = service;
    this.#key = request.key;
    this.#granted = granted;
    this.#renewal = renewal;
  }

  /** @internal Who holds it, for the server. */
  get token(): string {
    return this.#granted.token;
  }

  /** For how many milliseconds more it is certainly held, if it is not renewed; 0 if it is lost or released. */
  get validFor(): number {
    if (this.#renewal.isLost() || this.#renewal.over) return 0;
    return this.#renewal.validUntil - now();
  }

  /** Aborted when the hold is lost: it was not renewed in time, or somebody took it away. For a renewed hold,
   * a tenth of the lease before the end. `aborted` looks at the clock first, whatever has kept the event loop
   * busy. */
  get signal(): AbortSignal {
    this.#controller ??= this.#control(new AbortController());
    return this.#controller.signal;
  }

  #control(controller: AbortController): AbortController {
    const { signal } = controller;
    const renewal = this.#renewal;
    const native = Object.getOwnPropertyDescriptor(AbortSignal.prototype, "aborted")!.get!;
    Object.defineProperties(signal, {
      aborted: { get: () => renewal.isLost() && native.call(signal) },
      throwIfAborted: {
        value: () => {
          if (renewal.isLost()) throw renewal.loss;
        },
      },
    });
    renewal.onLost = () => controller.abort(renewal.loss);
    if (renewal.isLost()) controller.abort(renewal.loss);
    return controller;
  }

  /** Asks whether it is still held. */
  async held(): Promise<boolean> {
    if (this.#renewal.isLost() || this.#renewal.over) return false;
    const held = await run(this.#service.holds(this.#key, this.#granted.token), this.#service);
    return held && !this.#renewal.isLost();
  }

  /** Sets the lease to `ttl` milliseconds from now, and to that at each renewal. `NotHeldError` if the hold
   * is lost. */
  async extend(ttl: number = this.#renewal.lease): Promise<void> {
    checkTtl(ttl);
    // The clock first: a lost hold is not revived.
    const lost = this.#renewal.isLost() || this.#renewal.over;
    if (lost || !(await run(this.#renewal.extending(ttl), this.#service))) throw this.#notHeld();
  }

  /** @internal Ends its renewal, with most of a lease left. */
  async settle(): Promise<void> {
    this.#renewal.renewed = false;
    if (this.validFor < (this.#renewal.lease * 9) / 10) await this.extend();
  }

  /** Releases the lock. `NotHeldError` if it was lost before. A second call does nothing. */
  async release(): Promise<void> {
    if (this.#released) return;
    // An earlier one that got no answer may have ended it.
    const again = this.#releasing;
    this.#releasing = true;
    this.#renewal.isLost();
    this.#renewal.end();
    const ended = await run(this.#service.release(this.#key, this.#granted, this.#renewal), this.#service);
    this.#released = true;
    // Without an answer it is no loss, if it was none before.
    const unknown = (ended === undefined || again) && this.#renewal.loss === undefined;
    if (!ended && !unknown) throw this.#notHeld();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  #notHeld(): NotHeldError {
    return (
      this.#renewal.loss ??
      new NotHeldError(`the lock ${this.key} is not held: it expired, or was taken away`, this.key)
    );
  }
}
