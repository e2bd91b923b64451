// The public classes: `Lock`, and `Hold` for each acquisition.

import { now } from "./clock.js";
import { NotHeldError, ResourceLockedError } from "./errors.js";
import type { Client } from "./links.js";
import { namedOwner, withOwner } from "./owner.js";
import type { Args, Key } from "./protocol.js";
import { Renewal } from "./renewal.js";
import type { Granted, Request } from "./requests.js";
import { run } from "./run.js";
import { prefixed, type Quorum, type Service, serviceFor } from "./service.js";
import { type Steps, Watch } from "./steps.js";

export interface LockOptions {
  /** Lease in ms, a whole number, 1 or more. Default: 30,000. */
  ttl?: number | undefined;
  /** Whether to renew the lease in the background, after each third of it, until the release. Default:
   * true. */
  renew?: boolean | undefined;
  /** Whether any number of sharers may hold the lock together. They exclude exclusive holders. Default:
   * false. */
  shared?: boolean | undefined;
  /** Makes the lock a semaphore with this many holders at most. Not for a quorum. */
  permits?: number | undefined;
  /** For a quorum: whether to get a fence that rises over all members, at the cost of one more round trip.
   * Default: false. */
  fenced?: boolean | undefined;
  /** Pause between two tries where the wait queue cannot help, in ms: while a lock of redis-py or
   * node-redlock is at the key, or if the user may not subscribe. Default: 100. */
  retryDelay?: number | undefined;
  /** Least time in ms for which the lock is granted to no other client, counted from the grant: if the release
   * comes earlier, the lock stays closed for the rest. For jobs that end faster than clocks differ. A hold that
   * ends by its lease closes nothing. If the release reaches only a minority of a quorum, the hold at the other
   * members ends by its lease. Needs dlock 0.1.0 or later on the server: otherwise an acquisition throws a
   * `LockError`. A whole number, at most `dlock.max-ttl`. Default: 0. */
  atLeast?: number | undefined;
  /** Owner of each acquisition, by which the server detects deadlocks: 1 to 255 bytes; null for none. Two
   * acquisitions may have the same owner only if they are nested: the first one is released after the second
   * one. Default: nested calls of `using` have one owner, which is right if each routine awaits the `using`
   * calls within it; `acquire` and `tryAcquire` send none. */
  owner?: string | null | undefined;
}

export interface AcquireOptions {
  /** When it is aborted, the acquisition ends, and leaves neither a hold nor a queue position behind. */
  signal?: AbortSignal | undefined;
  /** Wait timeout in ms. Default: none. */
  timeout?: number | undefined;
  /** Owner of this acquisition. Default: the lock's `owner`. */
  owner?: string | null | undefined;
}

/** Throws a `RangeError` unless `ms` is a number. A string would be appended to the clock's time as text. */
function checkTime(name: string, ms: number): void {
  if (typeof ms !== "number" || Number.isNaN(ms)) {
    throw new RangeError(`${name}: ${ms}; it must be a number of milliseconds`);
  }
}

/** Throws a `RangeError` unless `ms` is a whole number, 1 or more. */
export function checkLease(name: string, ms: number): void {
  if (!Number.isSafeInteger(ms) || ms < 1) {
    throw new RangeError(`${name}: ${ms}; it must be a whole number of milliseconds, 1 or more`);
  }
}

/** Throws a `TypeError` unless `options` is an object. Without this check, `acquire(500)` would ignore the
 * number. */
function checkOptions(options: object): void {
  if (typeof options !== "object" || options === null) {
    throw new TypeError(`options: ${options}; they must be an object, such as { timeout: 500 }`);
  }
}

function checkKey(key: unknown): void {
  if (typeof key !== "string" && !(key instanceof Uint8Array)) {
    throw new TypeError(`key: ${key}; it must be a string or a Buffer`);
  }
}

function checkSignal(signal: AbortSignal | null | undefined): void {
  if (signal !== undefined && signal !== null && typeof signal.throwIfAborted !== "function") {
    throw new TypeError(`signal: ${signal}; it must be an AbortSignal`);
  }
}

/** A lock on one server, or on a majority of a quorum. The object itself holds nothing: each acquisition
 * returns a `Hold`, and any number of callers may share a `Lock`. */
export class Lock {
  readonly #service: Service;
  readonly #request: Request;
  readonly #isRenewed: boolean;
  readonly #isFenced: boolean;
  readonly #owner: string | null | undefined;

  /** Throws a `TypeError` unless `client` is a `Quorum` or a client of ioredis or node-redis. Throws a
   * `TypeError` or a `RangeError` for an invalid key or option, and a `LockError` if the clients of a quorum
   * have different key prefixes. Sends nothing. */
  constructor(client: Client | Quorum, key: Key, options: LockOptions = {}) {
    checkKey(key);
    checkOptions(options);
    const { ttl = 30_000, renew = true, shared = false, permits, fenced = false } = options;
    const { retryDelay = 100, atLeast = 0 } = options;
    checkLease("ttl", ttl);
    checkTime("retryDelay", retryDelay);
    if (atLeast !== 0) checkLease("atLeast", atLeast);
    namedOwner(options.owner);
    if (shared && permits !== undefined) {
      throw new TypeError("shared and permits exclude each other: leave one out");
    }
    const mode: Args = shared ? ["SHARED"] : permits === undefined ? [] : ["PERMITS", String(permits)];
    this.#service = serviceFor(client);
    this.#request = {
      key: prefixed(this.#service, key),
      name: String(key),
      lease: ttl,
      mode,
      owner: undefined,
      retryDelay,
      atLeast,
    };
    this.#isRenewed = renew;
    this.#isFenced = fenced;
    this.#owner = options.owner;
  }

  /** Acquires the lock. Waits in the queue, first come, first served.
   *
   * Throws `ResourceLockedError` if another client still holds the lock after the timeout, `NoAnswerError` if
   * the server does not answer, `NoQuorumError` if too few members of a quorum can vote, and `LockError` if
   * data is at the key. Throws `DeadlockError`, `QueueFullError`, `GraceError` and `LateError` as these
   * classes describe. If the signal is aborted, throws its reason. */
  async acquire(options: AcquireOptions = {}): Promise<Hold> {
    return this.#waitFor(options, namedOwner(this.#ownerName(options)));
  }

  /** Acquires the lock without waiting for other clients. Returns null if another client holds it, or waits
   * for it. Throws as `acquire` does. */
  async tryAcquire(options: Omit<AcquireOptions, "timeout"> = {}): Promise<Hold | null> {
    return this.#acquire(false, options, namedOwner(this.#ownerName(options)));
  }

  /** Acquires the lock, runs `routine` and releases the lock. Returns the result of the routine. Throws as
   * `acquire` does, the error of the routine, or `NotHeldError` if the hold was lost meanwhile.
   *
   * Nested calls have one owner, so that calls which wait for each other's locks get a `DeadlockError`. Await
   * each `using` that the routine begins. If this lock is released while an inner `using` still waits,
   * another client that waits for this lock can get a `DeadlockError` although there is no deadlock. This
   * happens if the inner `using` is in a `Promise.all` and another of its promises fails (use
   * `Promise.allSettled` instead). It also happens if the inner `using` loses a `Promise.race` (use the
   * `timeout` option instead), or if the routine calls `hold.release()`. The option `owner: null` of the
   * inner `using` also prevents the error. */
  async using<T>(routine: (hold: Hold) => T | Promise<T>, options: AcquireOptions = {}): Promise<T> {
    const acquire = (owner: string | undefined) => this.#waitFor(options, owner);
    return withOwner(this.#ownerName(options), acquire, routine, (hold) => hold.release());
  }

  /** @internal Returns the hold of a token that another `Lock` acquired. The hold is not renewed. */
  adopt(token: string, validFor: number): Hold {
    const granted = this.#service.adopted(this.#request, token, now() + validFor);
    const renewal = this.#renewal(granted, false);
    return new Hold(this.#service, this.#request.name, granted, renewal);
  }

  /** Returns whether any client holds the lock. */
  async locked(): Promise<boolean> {
    return run(this.#service.isLocked(this.#request.key, this.#request.name), this.#service);
  }

  #ownerName(options: AcquireOptions): string | null | undefined {
    checkOptions(options);
    return options.owner === undefined ? this.#owner : options.owner;
  }

  async #waitFor(options: AcquireOptions, owner: string | undefined): Promise<Hold> {
    const hold = await this.#acquire(true, options, owner);
    if (hold !== null) return hold;
    const { name } = this.#request;
    throw new ResourceLockedError(
      `${name}: another client still held the lock when the wait timed out, or an operator ended the wait`,
      name,
    );
  }

  async #acquire(waits: boolean, options: AcquireOptions, owner: string | undefined): Promise<Hold | null> {
    const { signal, timeout } = options;
    checkSignal(signal);
    if (timeout !== undefined) checkTime("timeout", timeout);
    const end = timeout === undefined ? Number.POSITIVE_INFINITY : now() + timeout;
    return run(this.#acquiring(waits, end, owner), this.#service, signal);
  }

  *#acquiring(waits: boolean, end: number, owner: string | undefined): Steps<Hold | null> {
    const attempt = this.#service.attempt({ ...this.#request, owner }, this.#isFenced);
    let granted: Granted | null;
    try {
      granted = yield* attempt.run(waits, end);
    } catch (why) {
      // A server may have granted a request that it has not answered.
      const releases = attempt.takeBack();
      if (releases !== undefined) yield releases;
      throw why;
    }
    if (granted === null) return null;
    const renewal = this.#renewal(granted, this.#isRenewed, owner);
    yield new Watch(renewal);
    return new Hold(this.#service, this.#request.name, granted, renewal);
  }

  #renewal(granted: Granted, isRenewed: boolean, owner?: string): Renewal {
    const { name, lease } = this.#request;
    const setLease = (renewal: Renewal, lease: number) => granted.setLease(renewal, lease);
    return new Renewal(name, lease, granted.validUntil, isRenewed, setLease, owner, granted.shortLease);
  }
}

/** One acquisition of a lock. Release it, or declare it with `await using`. */
export class Hold implements AsyncDisposable {
  /** Key of the lock. */
  readonly key: string;
  /** A number greater than the fence of every earlier hold. Store it with the data that the lock protects,
   * and reject writes with a lower fence. Null in a quorum without `fenced`. */
  readonly fence: number | null;
  readonly #service: Service;
  readonly #granted: Granted;
  readonly #renewal: Renewal;
  #controller: AbortController | undefined;
  #isReleasing = false;
  #isReleased = false;

  /** @internal */
  constructor(service: Service, key: string, granted: Granted, renewal: Renewal) {
    this.key = key;
    this.fence = granted.fence;
    this.#service = service;
    this.#granted = granted;
    this.#renewal = renewal;
  }

  /** @internal */
  get token(): string {
    return this.#granted.token;
  }

  /** Time in ms for which the lock is certainly held without another renewal. 0 if the hold is lost or
   * released. */
  get validFor(): number {
    if (this.#renewal.isLost() || this.#renewal.isReleased) return 0;
    return this.#renewal.validUntil - now();
  }

  /** Aborted when the hold is lost: it was not renewed in time, or another client ended it. A renewed hold
   * counts as lost a tenth of its lease before the lease ends. `aborted` reads the clock first, so it is right
   * even after the event loop was blocked. */
  get signal(): AbortSignal {
    this.#controller ??= this.#abortAtLoss(new AbortController());
    return this.#controller.signal;
  }

  #abortAtLoss(controller: AbortController): AbortController {
    const { signal } = controller;
    const renewal = this.#renewal;
    const nativeAborted = Object.getOwnPropertyDescriptor(AbortSignal.prototype, "aborted")!.get!;
    Object.defineProperties(signal, {
      aborted: { get: () => renewal.isLost() && nativeAborted.call(signal) },
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

  /** Asks the server whether the hold still exists. Throws `NoAnswerError` or `NoQuorumError` if that is
   * unknown. */
  async held(): Promise<boolean> {
    if (this.#renewal.isLost() || this.#renewal.isReleased) return false;
    const held = await run(this.#granted.isHeld(), this.#service);
    return held && !this.#renewal.isLost();
  }

  /** Sets the lease to `ttl` ms from now, a whole number, 1 or more. Later renewals use this lease, too.
   * Throws `NotHeldError` if the hold is lost, and `NoAnswerError` or `NoQuorumError` if the new lease is not
   * certain: then the shorter of the old and the new lease counts. */
  async extend(ttl: number = this.#renewal.lease): Promise<void> {
    checkLease("ttl", ttl);
    // Reads the clock first: a lost hold must not be extended.
    const isLost = this.#renewal.isLost() || this.#renewal.isReleased;
    if (isLost || !(await run(this.#renewal.extending(ttl), this.#service))) throw this.#notHeld();
  }

  /** @internal Ends the renewal. Extends the lease a last time if less than nine tenths of it are left. */
  async endRenewal(): Promise<void> {
    this.#renewal.isRenewed = false;
    if (this.validFor < (this.#renewal.lease * 9) / 10) await this.extend();
  }

  /** Releases the lock. Does nothing after a release that was confirmed. Throws `NotHeldError` if the hold
   * was lost before, even if the server still had it. Throws `NoAnswerError` or `NoQuorumError` if the release
   * is not confirmed within half a second after it failed: it is repeated in the background. */
  async release(): Promise<void> {
    if (this.#isReleased) return;
    // An earlier release without an answer may have ended the hold.
    const isRepeated = this.#isReleasing;
    this.#isReleasing = true;
    // Records a loss that the clock shows. After `end`, no loss is recorded any more.
    this.#renewal.isLost();
    this.#renewal.end();
    // Undefined if a RELEASE without an answer may have ended the hold.
    const ended = await run(this.#granted.release(this.#renewal), this.#service);
    this.#isReleased = true;
    // A hold that was lost before is an error even if the server still had it.
    if (this.#renewal.loss !== undefined || (!(ended ?? true) && !isRepeated)) throw this.#notHeld();
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
