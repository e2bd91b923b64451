// Several locks, all or none.

import { now } from "./clock.js";
import type { Client } from "./links.js";
import {
  type AcquireOptions,
  checkAcquireOptions,
  checkLockOptions,
  checkTryOptions,
  type Hold,
  Lock,
  type LockOptions,
  ownerOf,
} from "./lock.js";
import { checkKey } from "./options.js";
import { namedOwner, withOwner } from "./owner.js";
import type { Key } from "./protocol.js";
import type { Quorum } from "./service.js";

/** Several holds that were acquired together. */
export class Holds implements AsyncDisposable, Iterable<Hold> {
  #signal: AbortSignal | undefined;

  /** @internal */
  constructor(
    /** In the order of the acquisitions. */
    readonly holds: readonly Hold[],
  ) {}

  [Symbol.iterator](): Iterator<Hold> {
    return this.holds[Symbol.iterator]();
  }

  /** The fences of the holds, in their order. */
  get fences(): readonly (number | null)[] {
    return this.holds.map((hold) => hold.fence);
  }

  /** Time in ms for which all locks are certainly held without another renewal; 0 if one is lost or released. */
  get validFor(): number {
    return Math.min(...this.holds.map((hold) => hold.validFor));
  }

  /** Aborted when one of the holds is lost. Its `aborted` reads the clock first. */
  get signal(): AbortSignal {
    this.#signal ??= signalOf(this.holds);
    return this.#signal;
  }

  /** Releases all locks, the last one first. Throws the first error; the other locks are released, too. */
  async release(): Promise<void> {
    const outcomes = await Promise.allSettled([...this.holds].reverse().map((hold) => hold.release()));
    for (const outcome of outcomes) if (outcome.status === "rejected") throw outcome.reason;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }
}

/** Returns a signal that is aborted as soon as one of the holds is lost. Its `aborted` and `throwIfAborted` ask the
 * signals of the holds, which compare each lease with the clock first. So they are right even after the event loop was
 * blocked. */
export function signalOf(holds: readonly Hold[]): AbortSignal {
  const signals = holds.map((hold) => hold.signal);
  const signal = AbortSignal.any(signals);
  return Object.defineProperties(signal, {
    aborted: { get: () => signals.some(({ aborted }) => aborted) },
    throwIfAborted: {
      value: () => {
        for (const each of signals) each.throwIfAborted();
      },
    },
  });
}

/** Several locks, of which an acquisition gets all or none: see `lockAll` and `lockPath`. The object itself holds
 * nothing. */
export class Locks {
  readonly #locks: readonly Lock[];
  readonly #options: LockOptions;

  /** @internal */
  constructor(locks: readonly Lock[], options: LockOptions) {
    this.#locks = locks;
    this.#options = options;
  }

  /** The keys, in the order in which they are acquired. */
  get keys(): readonly string[] {
    return this.#locks.map((lock) => lock.key);
  }

  /** Acquires all locks, one after the other. The timeout is for all together. The first ones are renewed during the
   * wait for the others; if one is lost meanwhile, throws its `NotHeldError`. Otherwise throws as `Lock.acquire`. */
  async acquire(options: AcquireOptions = {}): Promise<Holds> {
    checkAcquireOptions(options);
    return this.#waitFor(options, namedOwner(ownerOf(options, this.#options)));
  }

  /** Acquires all locks without waiting for other clients. Returns null if another client holds one of them, or waits
   * for it. */
  async tryAcquire(options: Omit<AcquireOptions, "timeout"> = {}): Promise<Holds | null> {
    checkTryOptions(options);
    return this.#acquire(false, options, namedOwner(ownerOf(options, this.#options)));
  }

  /** Acquires all locks, runs `routine` and releases the locks: see `Lock.using`. */
  async using<T>(routine: (holds: Holds) => T | Promise<T>, options: AcquireOptions = {}): Promise<T> {
    checkAcquireOptions(options);
    const acquire = (owner: string | undefined) => this.#waitFor(options, owner);
    return withOwner(ownerOf(options, this.#options), acquire, routine, (holds) => holds.release());
  }

  async #waitFor(options: AcquireOptions, owner: string | undefined): Promise<Holds> {
    // `acquire` of each lock throws if another client has it.
    return (await this.#acquire(true, options, owner))!;
  }

  async #acquire(
    waits: boolean,
    { timeout, signal }: AcquireOptions,
    owner = null as string | null,
  ): Promise<Holds | null> {
    const end = timeout === undefined ? undefined : now() + timeout;
    const holds: Hold[] = [];
    try {
      for (const lock of this.#locks) {
        const signals = [...(signal ? [signal] : []), ...holds.map((hold) => hold.signal)];
        const common = { owner, signal: signals.length === 0 ? undefined : AbortSignal.any(signals) };
        const left = end === undefined ? undefined : Math.max(end - now(), 0);
        const hold = waits ? await lock.acquire({ ...common, timeout: left }) : await lock.tryAcquire(common);
        if (hold === null) break;
        holds.push(hold);
      }
      for (const hold of holds) hold.signal.throwIfAborted();
    } catch (why) {
      await abandon(holds);
      throw why;
    }
    if (holds.length === this.#locks.length) return new Holds(holds);
    await abandon(holds);
    return null;
  }
}

/** Releases holds that their caller never had. A release without an answer continues in the background. */
async function abandon(holds: readonly Hold[]): Promise<void> {
  await Promise.allSettled([...holds].reverse().map((hold) => hold.abandon()));
}

/** Returns the keys without duplicates, in the order of their bytes: the same for all clients in all languages, so that
 * two clients with some of the same locks never wait for each other. */
export function inOrder<K extends Key>(keys: Iterable<K>): K[] {
  const byBytes = new Map([...keys].map((key) => [Buffer.from(key).toString("latin1"), key]));
  return [...byBytes.values()].sort((one, other) => Buffer.compare(Buffer.from(one), Buffer.from(other)));
}

/** Returns several locks with the same options, of which an acquisition gets all or none. They are acquired one after
 * the other, in the order of their names, the same for all clients. A name that occurs twice is locked once. */
export function lockAll(client: Client | Quorum, keys: Iterable<Key>, options: LockOptions = {}): Locks {
  if (typeof keys === "string" || typeof keys?.[Symbol.iterator] !== "function") {
    throw new TypeError('keys: they must be an array, such as ["account:1", "account:2"]');
  }
  const all = [...keys];
  for (const key of all) checkKey(key);
  if (all.length === 0) throw new TypeError("keys: there must be at least one");
  return new Locks(
    inOrder(all).map((key) => new Lock(client, key, options)),
    options,
  );
}

/** Returns the locks of a path such as "a/b/c": the ancestors "a" and "a/b" shared, and the path itself exclusive, or
 * shared if the options say so. So a path excludes all that are above or below it, and no others. `atLeast` and `delay`
 * keep the path and all below it closed, not its ancestors. The keys are "{a}",
 * "{a}/b" and "{a}/b/c": all in one slot of a cluster, and the same in all languages. */
export function lockPath(
  client: Client | Quorum,
  path: string,
  options: Omit<LockOptions, "permits"> = {},
): Locks {
  const parts = typeof path === "string" ? path.split("/") : [];
  if (parts.length === 0 || parts.some((part) => part === "" || /[{}]/.test(part))) {
    throw new TypeError(
      `path: ${path}; it must be a string such as "a/b/c", whose parts are not empty and have no braces`,
    );
  }
  const keys = parts.map((_, at) => [`{${parts[0]}}`, ...parts.slice(1, at + 1)].join("/"));
  checkLockOptions(options);
  if ((options as LockOptions).permits !== undefined) {
    throw new TypeError("permits: a path is exclusive or shared: leave permits out");
  }
  const { atLeast: _, delay: __, ...ofAncestors } = options;
  const locks = keys.map(
    (key, at) => new Lock(client, key, at === keys.length - 1 ? options : { ...ofAncestors, shared: true }),
  );
  return new Locks(locks, options);
}
