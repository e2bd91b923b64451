// The public classes: `Lock`, and `Hold` for each acquisition.

import os from "node:os";
import { now } from "./clock.js";
import { errorWord, LockError, NotDurableError, NotHeldError, ResourceLockedError } from "./errors.js";
import { type Acquired, type Ended, events, type NotAcquired, publish } from "./events.js";
import type { Client } from "./links.js";
import {
  checkFlag,
  checkKey,
  checkLease,
  checkNames,
  checkSent,
  checkSignal,
  checkTime,
  checkWhole,
} from "./options.js";
import { enclosingHolds, namedOwner, withOwner } from "./owner.js";
import { type Args, guard, type Key, type Word } from "./protocol.js";
import { describe, type Holder, type Inspection } from "./reading.js";
import { Renewal } from "./renewal.js";
import { type Granted, otherHolder, type Request } from "./requests.js";
import { run } from "./run.js";
import { prefixed, Quorum, type Service, type ShownHolder, serviceFor } from "./service.js";
import { Sleep, type Steps, Watch } from "./steps.js";
import { times } from "./waits.js";

/** The replicas that must have a grant. */
export interface Durable {
  /** Number of replicas, 0 or more. 0: the append only file of the server must have the grant instead (WAITAOF, of
   * Redis 7.2 and Valkey). */
  replicas: number;
  /** Time limit in ms, 1 or more. */
  timeout: number;
}

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
   * is lost closes nothing. If the release reaches only a minority of a quorum, the hold at the other
   * members ends by its lease. Needs dlock 0.1.0 or later on the server. A whole number, at most
   * `dlock.max-ttl`: otherwise an acquisition, and `adopt`, throws a `LockError`. Default: 0. */
  atLeast?: number | undefined;
  /** Longest time of a hold in ms, a whole number: then it counts as lost, and is no longer renewed, so that work that
   * hangs does not keep the lock for ever. Default: none. */
  maxHold?: number | undefined;
  /** Time in ms for which the lock stays closed after a hold that was not released: it expired, or its connection
   * broke. Meanwhile, late writes of the dead holder can arrive. A wait on a single server then takes one trip more. A
   * whole number. Default: 0. */
  delay?: number | undefined;
  /** Whether the hold also ends when the client's connection closes, as it does when the process dies. It is then lost
   * at each reconnect. Default: false. */
  ephemeral?: boolean | undefined;
  /** Text by which people recognise the holder, at most 255 bytes, which the commands for operators and the errors of
   * other clients show. Default: the name of the host and the process id. */
  label?: string | undefined;
  /** Acquires the lock only if this many replicas report the grant in time. Otherwise the lock is released, and the
   * error is a `NotDurableError`. Needs `+wait` or `+waitaof`, and a connection of its own meanwhile. In a cluster,
   * it is about the replicas of the master of the key. Default: none. */
  durable?: Durable | undefined;
  /** Whether a call within the routine of a `using` that holds this lock, in the same mode, enters that hold again
   * instead of waiting for it. The hold ends with the last release. Sends no request. Default: false. */
  reentrant?: boolean | undefined;
  /** Owner of each acquisition, by which the server detects deadlocks: 1 to 255 bytes; null for none. Two
   * acquisitions may have the same owner only if they are nested: the first one is released after the second
   * one. Default: nested calls of `using` have one owner, which is right if each routine awaits the `using`
   * calls within it; `acquire` and `tryAcquire` send none. */
  owner?: string | null | undefined;
}

export interface AcquireOptions {
  /** When it is aborted, the acquisition ends, and leaves neither a hold nor a queue position behind. Null counts as
   * none. */
  signal?: AbortSignal | null | undefined;
  /** Wait timeout in ms. Default: none. */
  timeout?: number | undefined;
  /** Owner of this acquisition. Default: the lock's `owner`. */
  owner?: string | null | undefined;
}

const ACQUIRE_OPTIONS = ["timeout", "signal", "owner"];
const LOCK_OPTIONS = [
  "ttl",
  "renew",
  "shared",
  "permits",
  "fenced",
  "retryDelay",
  "atLeast",
  "maxHold",
  "delay",
  "ephemeral",
  "label",
  "durable",
  "reentrant",
  "owner",
];
const elsewhere = (names: readonly string[], place: string) =>
  Object.fromEntries(names.map((name) => [name, place]));
const ACQUIRE_PLACES = elsewhere(["timeout", "signal"], "acquire and using");
const LOCK_PLACES = elsewhere(LOCK_OPTIONS, "new Lock");
const TRY_PLACES = { ...LOCK_PLACES, timeout: "acquire and using" };

// Longest text of a label or an owner, bytes.
const LONGEST_TEXT = 255;
const MOST_PERMITS = 2 ** 31 - 1;
// Pause between two looks at a lock that is not free, ms.
const LOOK_PAUSE = 500;

let label: string | undefined;

function defaultLabel(): string {
  label ??= `${os.hostname()}:${process.pid}`.slice(-LONGEST_TEXT);
  return label;
}

/** @internal */
export function checkLockOptions(options: LockOptions): void {
  checkNames(options, LOCK_OPTIONS, ACQUIRE_PLACES);
}

/** @internal */
export function checkAcquireOptions(options: AcquireOptions): void {
  checkNames(options, ACQUIRE_OPTIONS, LOCK_PLACES);
  checkWait(options);
}

/** @internal */
export function checkTryOptions(options: AcquireOptions): void {
  checkNames(options, ["signal", "owner"], TRY_PLACES);
  checkWait(options);
}

function checkWait(options: AcquireOptions): void {
  checkSignal(options.signal);
  if (options.timeout !== undefined) checkTime("timeout", options.timeout);
}

/** @internal Returns the owner that an acquisition names. */
export function ownerOf(options: AcquireOptions, { owner }: LockOptions): string | null | undefined {
  return options.owner === undefined ? owner : options.owner;
}

function endOf({ timeout }: AcquireOptions): number {
  return timeout === undefined ? Number.POSITIVE_INFINITY : now() + timeout;
}

/** Returns the options of ACQUIRE for the mode. */
function modeOf({ shared = false, permits }: LockOptions): Args {
  if (shared && permits !== undefined) {
    throw new TypeError("shared and permits exclude each other: leave one out");
  }
  if (permits === undefined) return shared ? ["SHARED"] : [];
  if (!Number.isSafeInteger(permits) || permits < 1 || permits > MOST_PERMITS) {
    throw new RangeError(`permits: ${permits}; it must be a whole number from 1 to ${MOST_PERMITS}`);
  }
  return ["PERMITS", String(permits)];
}

/** Returns the options of ACQUIRE beside the mode. */
function termsOf({ ephemeral = false, delay = 0, label = defaultLabel() }: LockOptions): Args {
  checkSent("delay", delay, 0);
  if (typeof label !== "string" || Buffer.byteLength(label) > LONGEST_TEXT) {
    throw new RangeError(`label: it must be a string of at most ${LONGEST_TEXT} bytes`);
  }
  const terms = ephemeral ? ["EPHEMERAL"] : [];
  if (delay > 0) terms.push("DELAY", String(delay));
  if (label !== "") terms.push("LABEL", label);
  return terms;
}

function checkDurable(durable: Durable | undefined): void {
  if (durable === undefined) return;
  if (typeof durable !== "object" || durable === null) {
    throw new TypeError(`durable: ${durable}; it must be an object, such as { replicas: 1, timeout: 500 }`);
  }
  checkNames(durable, ["replicas", "timeout"]);
  const { replicas, timeout } = durable;
  if (!Number.isSafeInteger(replicas) || replicas < 0) {
    throw new RangeError(`durable.replicas: ${replicas}; it must be a whole number, 0 or more`);
  }
  checkWhole("durable.timeout", timeout);
}

/** A lock on one server, or on a majority of a quorum. The object itself holds nothing: each acquisition
 * returns a `Hold`, and any number of callers may share a `Lock`. */
export class Lock {
  readonly #service: Service;
  readonly #request: Request;
  readonly #options: LockOptions;

  /** Throws a `TypeError` unless `client` is a `Quorum` or a client of ioredis or node-redis. Throws a
   * `TypeError` or a `RangeError` for an invalid key or option, and a `LockError` if the clients of a quorum
   * have different key prefixes. Sends nothing. */
  constructor(client: Client | Quorum, key: Key, options: LockOptions = {}) {
    checkKey(key);
    checkLockOptions(options);
    const { ttl = 30_000, retryDelay = 100, atLeast = 0, delay = 0, maxHold, ephemeral = false } = options;
    checkLease("ttl", ttl);
    checkTime("retryDelay", retryDelay);
    checkSent("atLeast", atLeast, 0);
    if (maxHold !== undefined) checkWhole("maxHold", maxHold);
    for (const name of ["renew", "shared", "fenced", "ephemeral", "reentrant"] as const) {
      checkFlag(name, options[name]);
    }
    checkDurable(options.durable);
    namedOwner(options.owner);
    this.#service = serviceFor(client);
    this.#request = {
      key: prefixed(this.#service, key),
      name: String(key),
      lease: ttl,
      mode: modeOf(options),
      terms: termsOf(options),
      isEphemeral: ephemeral,
      hasDelay: delay > 0,
      owner: undefined,
      retryDelay,
      atLeast,
    };
    this.#options = { ...options };
  }

  /** Name of the lock, as it was given. */
  get key(): string {
    return this.#request.name;
  }

  /** Acquires the lock. Waits in the queue, first come, first served.
   *
   * Throws `ResourceLockedError` if another client still holds the lock after the timeout, or if the lock is still
   * closed then (`atLeast`, `delay`): the error says which client, or for how long.
   * Throws `NoAnswerError` if the server does not answer, `NoQuorumError` if too few members of a quorum can vote, and
   * `LockError` if data is at the key. Throws `DeadlockError`, `QueueFullError`, `GraceError`, `LateError` and
   * `NotDurableError` as these classes describe. If the signal is aborted, throws its reason. */
  async acquire(options: AcquireOptions = {}): Promise<Hold> {
    checkAcquireOptions(options);
    return this.#waitFor(options, namedOwner(this.#ownerName(options)));
  }

  /** Acquires the lock without waiting for other clients. Returns null if another client holds it, or waits
   * for it. Throws as `acquire` does. */
  async tryAcquire(options: Omit<AcquireOptions, "timeout"> = {}): Promise<Hold | null> {
    checkTryOptions(options);
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
    checkAcquireOptions(options);
    const acquire = (owner: string | undefined) => this.#waitFor(options, owner);
    return withOwner(this.#ownerName(options), acquire, routine, (hold) => hold.release());
  }

  /** Takes over the hold of a token from another process, which must no longer use it: see `Hold.forget`. Sets the
   * lease, and renews it as the options say. The hold keeps its mode, which must be that of this lock (`shared`,
   * `permits`): this is not checked. Throws `NotHeldError` if the servers have no hold of this token: the error says why,
   * if the servers do. Throws a `TypeError` if this lock is `ephemeral` or `durable`. After another error the hold ends
   * with its lease. The fence is that of the hold; null in a quorum, even with `fenced`. */
  async adopt(token: string, options: Pick<AcquireOptions, "signal"> = {}): Promise<Hold> {
    checkNames(options, ["signal"]);
    checkSignal(options.signal);
    if (typeof token !== "string" || token === "") throw new TypeError("token: it must be that of a hold");
    for (const name of ["ephemeral", "durable"] as const) {
      if (this.#options[name]) throw new TypeError(`adopt: the hold is there already, so leave out ${name}`);
    }
    return run(this.#adopting(token), this.#service, options.signal);
  }

  *#adopting(token: string): Steps<Hold> {
    const { name, lease } = this.#request;
    yield* this.#service.requireDelay(this.#request);
    const fence = yield* this.#service.fenceOf(this.#request, token);
    const granted = this.#service.adopted(this.#request, token, now() + lease, fence ?? null);
    const renewal = this.#renewal(granted, true);
    if (fence === undefined || !(yield* renewal.extending(lease))) {
      const reason = yield* granted.whyEnded();
      const why = reason === undefined ? "" : `: ${reason}`;
      throw new NotHeldError(`${name}: the server has no hold of this token${why}`, name);
    }
    renewal.isRenewed = this.#options.renew ?? true;
    renewal.watch(granted, now() + times.watch);
    yield new Watch(renewal);
    return new Hold(this.#service, this.#request, granted, renewal);
  }

  /** @internal Returns the hold of a token that another `Lock` acquired. The hold is not renewed. */
  adopted(token: string, validFor: number): Hold {
    const granted = this.#service.adopted(this.#request, token, now() + validFor, null);
    return new Hold(this.#service, this.#request, granted, this.#renewal(granted, false));
  }

  /** Returns whether any client holds the lock. */
  async locked(): Promise<boolean> {
    return run(this.#service.isLocked(this.#request.key, this.#request.name), this.#service);
  }

  /** Returns one of the holders; undefined if there is none, or if the server does not show it: the user needs
   * `+dlock.inspect`. Throws as `locked` does if the server, or a majority of a quorum, does not answer. */
  async holder(): Promise<Holder | undefined> {
    return (await this.#shown()).holder;
  }

  /** @internal Returns the holder that a majority shows. */
  async leader(): Promise<Holder | undefined> {
    const { holder, byMajority } = await this.#shown();
    return byMajority ? holder : undefined;
  }

  async #shown(): Promise<ShownHolder> {
    return run(this.#service.holderOf(this.#request.key, this.#request.name), this.#service);
  }

  /** Returns the state of the lock, with one holder at most; null if it is free, or if the server does not show it. */
  async #state(): Promise<Inspection | null> {
    return run(this.#service.stateOf(this.#request.key), this.#service);
  }

  /** Waits until the lock has no holder, no waiter and no delay. Returns true then, and false after the timeout.
   * Acquires nothing: another client may have the lock by the time of the return. Looks at random times, twice a second
   * at least. Needs `+dlock.inspect`. */
  async waitUntilFree(options: Omit<AcquireOptions, "owner"> = {}): Promise<boolean> {
    checkNames(options, ["timeout", "signal"], LOCK_PLACES);
    checkWait(options);
    const end = endOf(options);
    while (true) {
      let failure: unknown;
      try {
        if (
          await run(
            this.#service.isFree(this.#request.key, this.#request.name),
            this.#service,
            options.signal,
          )
        ) {
          return true;
        }
      } catch (why) {
        // The server may be away for a moment.
        if (!(why instanceof LockError) || errorWord(why)) throw why;
        failure = why;
      }
      const left = end - now();
      if (left <= 0 && failure !== undefined) throw failure;
      if (left <= 0) return false;
      const pause = Math.min((0.5 + Math.random() / 2) * LOOK_PAUSE, left);
      await run(sleeping(pause), this.#service, options.signal);
    }
  }

  #ownerName(options: AcquireOptions): string | null | undefined {
    return ownerOf(options, this.#options);
  }

  async #waitFor(options: AcquireOptions, owner: string | undefined): Promise<Hold> {
    // A timeout of 0 is one try, which joins no queue.
    const hold = await this.#acquire(options.timeout !== 0, options, owner);
    if (hold !== null) return hold;
    const { name } = this.#request;
    const state = await this.#state();
    const holder = state?.holders[0];
    let found = "another client still held the lock";
    if (holder !== undefined) found = describe(holder);
    else if (state !== null && state.delay > 0)
      found = `no client held the lock, but it was still closed for ${state.delay} ms`;
    throw lockedError(`${name}: ${found} when the wait timed out, or an operator ended it`, name, holder);
  }

  async #acquire(waits: boolean, options: AcquireOptions, owner: string | undefined): Promise<Hold | null> {
    const entered = this.#options.reentrant ? this.#enter() : undefined;
    if (entered !== undefined) return entered;
    const key = this.#request.name;
    const began = now();
    let error: unknown;
    try {
      const hold = await run(this.#acquiring(waits, endOf(options), owner), this.#service, options.signal);
      if (hold !== null) {
        publish(
          events.acquired,
          () => ({ key, fence: hold.fence, waited: now() - began }) satisfies Acquired,
        );
        return hold;
      }
    } catch (why) {
      error = why;
    }
    publish(events.notAcquired, () => ({ key, waited: now() - began, error }) satisfies NotAcquired);
    if (error !== undefined) throw error;
    return null;
  }

  /** Returns a further `Hold` of the lock if an enclosing `using` of this call holds it; else undefined. */
  #enter(): Hold | undefined {
    for (const hold of enclosingHolds()) {
      const entered = hold instanceof Hold ? hold.enter(this.#service, this.#request) : undefined;
      if (entered !== undefined) return entered;
    }
    return undefined;
  }

  *#acquiring(waits: boolean, end: number, owner: string | undefined): Steps<Hold | null> {
    const attempt = this.#service.attempt({ ...this.#request, owner }, this.#options.fenced ?? false);
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
    const renewal = this.#renewal(granted, this.#options.renew ?? true, owner);
    renewal.watch(granted, now() + times.watch);
    yield new Watch(renewal);
    if (this.#options.durable !== undefined) yield* this.#replicate(granted, renewal, this.#options.durable);
    return new Hold(this.#service, this.#request, granted, renewal);
  }

  /** Waits until the replicas have the grant. Otherwise releases it, and throws. */
  *#replicate(granted: Granted, renewal: Renewal, { replicas, timeout }: Durable): Steps<void> {
    const { name } = this.#request;
    let why: unknown;
    try {
      // A grant by message is claimed first.
      if (
        (yield* renewal.extending(renewal.lease)) &&
        (yield* granted.replicate(replicas, timeout)) &&
        !renewal.isLost()
      ) {
        return;
      }
      why = renewal.loss;
    } catch (failure) {
      why = failure;
    }
    renewal.end();
    granted.isUnused = true;
    try {
      yield* granted.release(renewal);
    } catch (failure) {
      // The release is repeated in the background.
      if (!(failure instanceof LockError) && !errorWord(failure)) throw failure;
    }
    // Anything but an error about the lock or of the server is the caller's, such as an abort.
    if (why !== undefined && !(why instanceof LockError) && !errorWord(why)) throw why;
    const copies = replicas === 0 ? "the append only file has" : `${replicas} replicas have`;
    const cause = why === undefined ? "" : `: ${(why as Error).message}`;
    const text = `${name}: not acquired: it is not certain that ${copies} the grant${cause}`;
    throw new NotDurableError(text, name, why);
  }

  #renewal(granted: Granted, isRenewed: boolean, owner?: string): Renewal {
    const { name, lease } = this.#request;
    const renewal = new Renewal(
      name,
      lease,
      granted.validUntil,
      isRenewed,
      (renewal, lease) => granted.setLease(renewal, lease),
      owner,
      granted.shortLease,
      () => granted.whyEnded(),
    );
    if (this.#options.maxHold !== undefined) renewal.endsAt = now() + this.#options.maxHold;
    return renewal;
  }
}

function lockedError(text: string, key: string, holder: Holder | undefined): ResourceLockedError {
  const error = new ResourceLockedError(text, key);
  error.holder = holder;
  return error;
}

function* sleeping(ms: number): Steps<void> {
  yield new Sleep(ms);
}

/** One acquisition of a lock. Release it, or declare it with `await using`. */
export class Hold implements AsyncDisposable {
  /** Key of the lock. */
  readonly key: string;
  /** A number greater than the fence of every earlier hold. Store it with the data that the lock protects,
   * and reject writes with a lower fence. Null in a quorum without `fenced`. */
  readonly fence: number | null;
  readonly #service: Service;
  readonly #request: Request;
  readonly #granted: Granted;
  readonly #renewal: Renewal;
  /** The number of `Hold`s that share the hold and are not released: more than 1 if it was entered again. */
  readonly #entries: { count: number };
  #controller: AbortController | undefined;
  #isReleasing = false;
  #isReleased = false;
  readonly #began = now();

  /** @internal */
  constructor(
    service: Service,
    request: Request,
    granted: Granted,
    renewal: Renewal,
    entries: { count: number } = { count: 1 },
  ) {
    this.key = request.name;
    this.fence = granted.fence;
    this.#service = service;
    this.#request = request;
    this.#granted = granted;
    this.#renewal = renewal;
    this.#entries = entries;
    if (events.lost.hasSubscribers && entries.count === 1) {
      renewal.whenLost(() => publish(events.lost, () => this.#endedBy(renewal.loss)));
    }
  }

  #endedBy(error: unknown): Ended {
    return { key: this.key, fence: this.fence, held: now() - this.#began, error };
  }

  /** @internal Returns another `Hold` of the same hold; undefined if it is not the hold of this lock in this mode, or
   * is no longer held. */
  enter(service: Service, { key, mode }: Request): Hold | undefined {
    const [own, other] = [this.#service.channels, service.channels];
    const isSameLock =
      own.length === other.length &&
      own.every((channel, at) => channel === other[at]) &&
      Buffer.from(key).equals(Buffer.from(this.#request.key)) &&
      mode.join(" ") === this.#request.mode.join(" ");
    if (!isSameLock || this.#isReleasing || this.validFor === 0) return undefined;
    this.#entries.count += 1;
    return new Hold(this.#service, this.#request, this.#granted, this.#renewal, this.#entries);
  }

  /** The secret by which the servers know the hold, for `Lock.adopt` in another process. Keep it out of logs. */
  get token(): string {
    return this.#granted.token;
  }

  /** Time in ms for which the lock is certainly held without another renewal. 0 if the hold is lost or
   * released. */
  get validFor(): number {
    if (this.#isReleased || this.#renewal.isLost() || this.#renewal.isReleased) return 0;
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
    renewal.whenLost(() => controller.abort(renewal.loss));
    return controller;
  }

  /** Asks the server whether the hold still exists. Throws `NoAnswerError` or `NoQuorumError` if that is
   * unknown. */
  async held(): Promise<boolean> {
    if (this.validFor === 0) return false;
    const held = await run(this.#granted.isHeld(), this.#service);
    return held && !this.#renewal.isLost();
  }

  /** Sets the lease to `ttl` ms from now, a whole number, 1 or more. Later renewals use this lease, too.
   * Throws `NotHeldError` if the hold is lost, and `NoAnswerError` or `NoQuorumError` if the new lease is not
   * certain: then the shorter of the old and the new lease counts. */
  async extend(ttl: number = this.#renewal.lease): Promise<void> {
    checkLease("ttl", ttl);
    // Reads the clock first: a lost hold must not be extended.
    if (this.validFor === 0 || !(await run(this.#renewal.extending(ttl), this.#service)))
      throw this.#notHeld();
  }

  /** Makes an exclusive hold a shared one, so that other sharers get the lock, too. The fence stays. Throws
   * `NotHeldError` if the hold is lost. */
  async downgrade(): Promise<void> {
    await this.#claim();
    if (!(await run(this.#granted.downgrade(), this.#service))) throw await this.#lostElsewhere();
  }

  /** Makes a shared hold an exclusive one once no other sharer is left. It waits ahead of all other clients, and the
   * shared hold stays meanwhile. Throws `ResourceLockedError` after the timeout: the hold is shared then. Throws
   * `DeadlockError` if another sharer waits for an upgrade, and `NotHeldError` if the hold is lost. Not for a
   * quorum. */
  async upgrade(options: Omit<AcquireOptions, "owner"> = {}): Promise<void> {
    checkNames(options, ["timeout", "signal"], LOCK_PLACES);
    checkWait(options);
    await this.#claim();
    const upgraded = await run(
      this.#granted.upgrade(this.#renewal, endOf(options)),
      this.#service,
      options.signal,
    );
    if (upgraded === null) throw await this.#lostElsewhere();
    if (!upgraded) {
      const other = await run(otherHolder(this.#request.key, this.token), this.#service);
      const found = other === undefined ? "others still shared the lock" : describe(other);
      throw lockedError(`${this.key}: ${found} when the wait for the upgrade timed out`, this.key, other);
    }
  }

  /** A grant by message must be claimed before the hold changes. */
  async #claim(): Promise<void> {
    if (this.validFor === 0) throw this.#notHeld();
    if (this.#entries.count > 1) {
      throw new LockError(
        `${this.key}: the hold was entered again: leave the inner sections first`,
        this.key,
      );
    }
    await this.extend();
  }

  async #lostElsewhere(): Promise<NotHeldError> {
    await run(this.#renewal.loseElsewhere(), this.#service);
    return this.#notHeld();
  }

  /** Runs a command only if the server has the hold at this moment, in one step, and returns its reply: for data on the
   * server of the lock (in a cluster: in its slot). Throws `NotHeldError` otherwise; then the command was not run.
   * Throws `NoAnswerError` if it is unknown whether it was run. The keys of the command are sent as they are, without a
   * `keyPrefix`. The server refuses scripts, and commands that scripts may not run. ioredis may send the command again
   * after a reconnect. Not for a quorum: see `fenced`. */
  async guard(command: string, ...args: Word[]): Promise<unknown> {
    if (this.#service instanceof Quorum) {
      throw new TypeError("guard needs a single server: use fenced on the server of the data");
    }
    if (this.validFor === 0) throw this.#notHeld();
    try {
      return await this.#service.channels[0]!.ask(guard(this.#request.key, this.token, [command, ...args]));
    } catch (why) {
      if (errorWord(why) !== "NOTHELD") throw why;
      throw await this.#lostElsewhere();
    }
  }

  /** Gives the hold up without a release, and returns its token: another process can take it over with `Lock.adopt`
   * before its lease ends. Throws `NotHeldError` if the hold is lost, and `LockError` if it is `ephemeral`: it would end
   * with the connection of this process. */
  async forget(): Promise<string> {
    await this.#claim();
    if (this.#request.isEphemeral) {
      const text = "an ephemeral hold cannot be forgotten: it ends with its connection";
      throw new LockError(`${this.key}: ${text}`, this.key);
    }
    this.#isReleasing = true;
    this.#isReleased = true;
    this.#renewal.end();
    return this.token;
  }

  /** @internal Releases a hold that its caller never had, so that `atLeast` does not keep the lock closed. But an outer
   * caller has had a hold that was entered again. */
  async abandon(): Promise<void> {
    this.#granted.isUnused = this.#entries.count === 1;
    await this.release();
  }

  /** @internal Ends the renewal. Extends the lease a last time if less than nine tenths of it are left. */
  async endRenewal(): Promise<void> {
    this.#renewal.isRenewed = false;
    if (this.validFor < (this.#renewal.lease * 9) / 10) await this.extend();
  }

  /** Releases the lock. Does nothing after a release that was confirmed. Throws `NotHeldError` at once if the hold was
   * lost before, even if the server still has it: it is then released in the background. Throws `LockError` if the lock
   * was released but the server refuses to keep it closed for `atLeast`. Throws `NoAnswerError` or `NoQuorumError` if
   * the release is not confirmed within half a second after it failed: it is repeated in the background. */
  async release(): Promise<void> {
    if (this.#isReleased) return;
    // An earlier release without an answer may have ended the hold.
    const isRepeated = this.#isReleasing;
    this.#isReleasing = true;
    if (!isRepeated) {
      this.#entries.count -= 1;
      if (this.#entries.count > 0) {
        this.#isReleased = true;
        if (this.#renewal.isLost()) throw this.#notHeld();
        return;
      }
    }
    // Records a loss that the clock shows. After `end`, no loss is recorded any more.
    this.#renewal.isLost();
    this.#renewal.end();
    const releasing = run(this.#granted.release(this.#renewal), this.#service);
    if (this.#renewal.loss !== undefined) {
      this.#isReleased = true;
      // No answer changes what the caller is told, so that the release goes on in the background.
      releasing.catch(() => {});
      throw this.#renewal.loss;
    }
    // Undefined if a RELEASE without an answer may have ended the hold.
    const ended = await releasing;
    this.#isReleased = true;
    if (!(ended ?? true) && !isRepeated) {
      const reason = await run(this.#granted.whyEnded(), this.#service);
      const loss =
        reason === undefined
          ? this.#notHeld()
          : new NotHeldError(`the lock ${this.key} is not held: ${reason}`, this.key);
      publish(events.lost, () => this.#endedBy(loss));
      throw loss;
    }
    publish(events.released, () => this.#endedBy(undefined));
    const { delayRefusal } = this.#granted;
    if (delayRefusal !== undefined) {
      const text = `${this.key}: released, but it does not stay closed for atLeast`;
      throw new LockError(`${text}: ${(delayRefusal as Error).message}`, this.key, delayRefusal);
    }
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
