// The API of node-redlock 5 over dlock: `import Redlock from "dlock/redlock"`. The same methods, settings and
// errors, but waiters wait in the server's queue instead of polling.

import { EventEmitter } from "node:events";
import { setTimeout as pause } from "node:timers/promises";
import { now, validity } from "./clock.js";
import { errorWord, LockError, NoAnswerError, NoQuorumError, ResourceLockedError } from "./errors.js";
import type { IoredisClient, NodeRedisClient } from "./links.js";
import { type Hold, Lock as OneLock } from "./lock.js";
import { checkLease } from "./options.js";
import { withOwner } from "./owner.js";
import { Quorum, serviceFor } from "./service.js";
import { signalOf as commonSignalOf, inOrder } from "./several.js";

/** What node-redlock accepts, and node-redis. Both have `quit`. */
type Client = IoredisClient | NodeRedisClient;

export { ResourceLockedError };

/** Settings of node-redlock. Times are in ms. */
export interface Settings {
  /** Not used: the drift is always 1 % of the lease plus 2 ms. */
  readonly driftFactor: number;
  /** The wait timeout is `retryCount * retryDelay`. -1 means no timeout, 0 means one try. Also the number of
   * retries of an extension that gets no answer. */
  readonly retryCount: number;
  /** In ms, see `retryCount`. Also the pause between two tries while the wait queue cannot help, because a
   * lock of node-redlock or redis-py is at the key. */
  readonly retryDelay: number;
  /** Not used. */
  readonly retryJitter: number;
  /** In ms. Only checked: it must be at least 100 ms below the duration of `using`, which renews after each
   * third of the duration. */
  readonly automaticExtensionThreshold: number;
}

const defaults: Settings = {
  driftFactor: 0.01,
  retryCount: 10,
  retryDelay: 200,
  retryJitter: 100,
  automaticExtensionThreshold: 500,
};

/** The votes of one attempt. Either all clients are in `votesFor`, or all are in `votesAgainst`: the outcome
 * of each client is not recorded. */
export interface ExecutionStats {
  readonly membershipSize: number;
  readonly quorumSize: number;
  readonly votesFor: Set<Client>;
  readonly votesAgainst: Map<Client, Error>;
}

/** Result of a release: one attempt. */
export interface ExecutionResult {
  readonly attempts: readonly Promise<ExecutionStats>[];
}

/** An operation failed. `cause` is the reason. `attempts` has one attempt, in which all clients are in
 * `votesAgainst`. Only for an extension of a lock that was already released or extended, `attempts` is empty. */
export class ExecutionError extends LockError {
  constructor(
    message: string,
    readonly attempts: readonly Promise<ExecutionStats>[],
    cause?: unknown,
  ) {
    super(message, undefined, cause);
  }
}

/** Aborted when the hold of a resource is lost. `error` is the reason; undefined until the loss. */
export type RedlockAbortSignal = AbortSignal & { readonly error?: Error };

/** Resources that were acquired together. */
export class Lock {
  constructor(
    readonly redlock: Redlock,
    readonly resources: string[],
    /** The tokens in the order of `resources`, separated by commas. Another process can construct a `Lock`
     * with this value, and extend or release it. An extension that gets no answer may still shorten the lease
     * later. Only the `Lock` that sent it takes this into account: extend again only through that `Lock`. */
    readonly value: string,
    readonly attempts: readonly Promise<ExecutionStats>[],
    /** End of the validity, as `Date.now()`. 0 after a release or an extension. */
    public expiration: number,
  ) {}

  /** The fences in the order of `resources`; null in a quorum. */
  get fences(): readonly (number | null)[] {
    return this.redlock.holds(this).map((hold) => hold.fence);
  }

  release(): Promise<ExecutionResult> {
    return this.redlock.release(this);
  }

  extend(duration: number): Promise<Lock> {
    return this.redlock.extend(this, duration);
  }
}

/** A lock service of one server or of a quorum. Emits `error` for each operation that fails; a listener is
 * optional. */
export class Redlock extends EventEmitter {
  readonly clients: Set<Client>;
  readonly settings: Settings;
  readonly #service: Client | Quorum;
  readonly #holds = new WeakMap<Lock, readonly Hold[]>();

  /** Throws a `TypeError` if there is no client, or if one of `clients` is not a client. */
  constructor(clients: Iterable<Client>, settings: Partial<Settings> = {}) {
    super();
    // Without a listener, EventEmitter would throw the error.
    this.on("error", () => {});
    if (typeof clients === "string" || typeof clients?.[Symbol.iterator] !== "function") {
      throw new TypeError("Redlock needs a list of clients: new Redlock([one, two, three])");
    }
    this.clients = new Set(clients);
    const [first] = this.clients;
    if (first === undefined) throw new TypeError("Redlock needs at least one client");
    this.settings = merged(defaults, settings);
    this.#service = this.clients.size === 1 ? first : new Quorum(this.clients);
    // Throws if one of `clients` is not a client.
    serviceFor(this.#service);
  }

  /** Closes all clients. */
  async quit(): Promise<void> {
    await Promise.all([...this.clients].map((client) => client.quit()));
  }

  /** Locks all resources for `duration` ms, or none of them. Throws `ExecutionError` if that fails, and a
   * `TypeError` or `RangeError` for invalid resources or an invalid duration. */
  acquire(resources: readonly string[], duration: number, settings?: Partial<Settings>): Promise<Lock> {
    return this.#acquire(resources, duration, merged(this.settings, settings), false, null);
  }

  async #acquire(
    resources: readonly string[],
    duration: number,
    { retryCount, retryDelay }: Settings,
    renew: boolean,
    owner: string | null,
  ): Promise<Lock> {
    if (!Array.isArray(resources) || !resources.every((resource) => typeof resource === "string")) {
      throw new TypeError('the resources must be an array of strings, such as ["invoice:42"]');
    }
    checkLease("duration", duration);
    const end = now() + (retryCount < 0 ? Number.POSITIVE_INFINITY : retryCount * retryDelay);
    const names = inOrder(resources as string[]);
    const held = new Map<string, Hold>();
    try {
      for (const resource of names) {
        // The first resources are renewed during the wait for the others.
        const options = { ttl: duration, renew: renew || names.length > 1, retryDelay, owner };
        const lock = new OneLock(this.#service, resource, options);
        const signal = signalOf([...held.values()]);
        const timeout = end === Number.POSITIVE_INFINITY ? undefined : Math.max(end - now(), 0);
        const hold = await (retryCount === 0
          ? lock.tryAcquire({ signal })
          : lock.acquire({ timeout, signal }));
        if (hold === null) throw new ResourceLockedError(`${resource}: another client holds it`, resource);
        held.set(resource, hold);
      }
      if (!renew) await Promise.all([...held.values()].map((hold) => hold.endRenewal()));
    } catch (why) {
      await Promise.allSettled([...held.values()].map((hold) => hold.release()));
      throw this.#failed("The resources could not be locked", why);
    }
    return this.#locked(
      resources,
      resources.map((resource) => held.get(resource)!),
      duration,
    );
  }

  #locked(resources: readonly string[], holds: readonly Hold[], duration: number): Lock {
    // A lock without resources lasts for the duration, as in node-redlock.
    const validFor = Math.min(validity(duration), ...holds.map((hold) => hold.validFor));
    const value = holds.map((hold) => hold.token).join(",");
    const lock = new Lock(this, [...resources], value, [this.#stats()], Date.now() + validFor);
    this.#holds.set(lock, holds);
    return lock;
  }

  /** @internal Returns the holds of a lock in the order of its resources. Adopts them if the lock was
   * constructed with the value of another lock. */
  holds(lock: Lock): readonly Hold[] {
    let holds = this.#holds.get(lock);
    if (holds === undefined) {
      const tokens = lock.value.split(",");
      const adopted = new Map(
        lock.resources.map((resource, at) => {
          const one = new OneLock(this.#service, resource);
          return [resource, one.adopted(tokens[at] ?? "", lock.expiration - Date.now())];
        }),
      );
      holds = lock.resources.map((resource) => adopted.get(resource)!);
      this.#holds.set(lock, holds);
    }
    return holds;
  }

  /** Releases the lock. Throws `ExecutionError` if the lock was lost before, or if too few servers answered.
   * In the second case the release continues in the background. */
  async release(lock: Lock, _settings?: Partial<Settings>): Promise<ExecutionResult> {
    lock.expiration = 0;
    const [failure] = await this.#failures(lock, (hold) => hold.release());
    if (failure !== undefined) throw this.#failed("The lock could not be released", failure.reason);
    return { attempts: [this.#stats()] };
  }

  /** Sets the lease to `duration` ms. Returns a new lock, which replaces `lock`. Throws `ExecutionError` if
   * that fails. */
  async extend(lock: Lock, duration: number, settings?: Partial<Settings>): Promise<Lock> {
    const { retryCount, retryDelay } = merged(this.settings, settings);
    checkLease("duration", duration);
    if (lock.expiration === 0) throw new ExecutionError("The lock was released, or extended before", []);
    for (let tries = 0; ; tries += 1) {
      const failures = await this.#failures(lock, (hold) => hold.extend(duration));
      if (failures.length === 0) break;
      const final = failures.find(({ reason }) => !isUnanswered(reason));
      if (final !== undefined || (retryCount >= 0 && tries >= retryCount)) {
        throw this.#failed("The lock could not be extended", (final ?? failures[0]!).reason);
      }
      await pause(retryDelay);
    }
    lock.expiration = 0;
    return this.#locked(lock.resources, this.holds(lock), duration);
  }

  /** Calls `act` for each hold of the lock. Returns the calls that failed. */
  async #failures(lock: Lock, act: (hold: Hold) => Promise<void>): Promise<PromiseRejectedResult[]> {
    const outcomes = await Promise.allSettled([...new Set(this.holds(lock))].map(act));
    return outcomes.filter((outcome) => outcome.status === "rejected");
  }

  /** Locks the resources, runs the routine and releases the lock. The lease is renewed until then. The signal
   * is aborted when the hold of a resource is lost. */
  using<T>(
    resources: readonly string[],
    duration: number,
    settings: Partial<Settings>,
    routine: (signal: RedlockAbortSignal) => Promise<T>,
  ): Promise<T>;
  using<T>(
    resources: readonly string[],
    duration: number,
    routine: (signal: RedlockAbortSignal) => Promise<T>,
  ): Promise<T>;
  async using<T>(
    resources: readonly string[],
    duration: number,
    ...rest: (Partial<Settings> | ((signal: RedlockAbortSignal) => Promise<T>))[]
  ): Promise<T> {
    const routine = rest.pop() as (signal: RedlockAbortSignal) => Promise<T>;
    const settings = merged(this.settings, rest[0] as Partial<Settings> | undefined);
    if (settings.automaticExtensionThreshold > duration - 100) {
      throw new RangeError("the duration must be at least 100 ms above automaticExtensionThreshold");
    }
    return withOwner(
      undefined,
      (owner) => this.#acquire(resources, duration, settings, true, owner ?? null),
      (lock) => routine(signalOf(this.holds(lock))),
      (lock) => lock.release(),
    );
  }

  /** Emits the cause of a failed operation. Returns the error to throw. */
  #failed(what: string, cause: unknown): unknown {
    // Errors of invalid calls (TypeError, RangeError) come from no server: they are thrown as they are.
    if (!(cause instanceof Error && (cause instanceof LockError || errorWord(cause)))) return cause;
    this.emit("error", cause);
    return new ExecutionError(`${what}: ${cause.message}`, [this.#stats(cause)], cause);
  }

  /** Returns the votes of an attempt that succeeded, or that failed for the reason `against`. */
  async #stats(against?: Error): Promise<ExecutionStats> {
    const clients = [...this.clients];
    return {
      membershipSize: clients.length,
      quorumSize: Math.floor(clients.length / 2) + 1,
      votesFor: new Set(against === undefined ? clients : []),
      votesAgainst: new Map(against === undefined ? [] : clients.map((client) => [client, against])),
    };
  }
}

/** Returns `base` with the settings of `given` that are numbers: ignores undefined and null. */
function merged(base: Settings, given?: Partial<Settings> | null): Settings {
  const set = Object.entries(given ?? {}).filter(([, value]) => typeof value === "number");
  return { ...base, ...Object.fromEntries(set) };
}

function isUnanswered(why: unknown): boolean {
  return why instanceof NoAnswerError || why instanceof NoQuorumError;
}

/** Returns the signal of the holds, with node-redlock's `error`. */
function signalOf(holds: readonly Hold[]): RedlockAbortSignal {
  const signal = commonSignalOf(holds);
  const lost = () => holds.find((hold) => hold.signal.aborted)?.signal;
  return Object.defineProperties(signal, { error: { get: () => lost()?.reason } });
}

export default Redlock;
