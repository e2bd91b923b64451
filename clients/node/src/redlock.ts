// In place of node-redlock 5: `import Redlock from "dlock/redlock"`. The same methods, settings and errors;
// who waits, waits in the server's queue instead of polling.

import { EventEmitter } from "node:events";
import { now } from "./clock.js";
import { LockError, ResourceLockedError } from "./errors.js";
import type { Client } from "./links.js";
import { type Hold, Lock as OneLock } from "./lock.js";
import { Quorum } from "./service.js";

export { ResourceLockedError };

export interface Settings {
  /** Not used: a hundredth of the lease and 2 ms, always. */
  readonly driftFactor: number;
  /** With `retryDelay`, how long to wait: retryCount * retryDelay. -1 for as long as it takes, 0 for one try. */
  readonly retryCount: number;
  /** Also how often to ask where the queue cannot help, in milliseconds. */
  readonly retryDelay: number;
  /** Not used. */
  readonly retryJitter: number;
  /** Only for `using`, which renews after a third of the duration: the least time that may be left then. */
  readonly automaticExtensionThreshold: number;
}

const defaults: Settings = {
  driftFactor: 0.01,
  retryCount: 10,
  retryDelay: 200,
  retryJitter: 100,
  automaticExtensionThreshold: 500,
};

export interface ExecutionStats {
  readonly membershipSize: number;
  readonly quorumSize: number;
  readonly votesFor: Set<Client>;
  readonly votesAgainst: Map<Client, Error>;
}

export interface ExecutionResult {
  readonly attempts: readonly Promise<ExecutionStats>[];
}

/** Something did not succeed on a majority. The reason is the `cause`, and every vote of the one attempt. */
export class ExecutionError extends LockError {
  constructor(
    message: string,
    readonly attempts: readonly Promise<ExecutionStats>[],
    cause?: unknown,
  ) {
    super(message, undefined, cause);
  }
}

export type RedlockAbortSignal = AbortSignal & { readonly error?: Error };

/** The resources that were acquired together. */
export class Lock {
  /** @internal */
  constructor(
    readonly redlock: Redlock,
    readonly resources: readonly string[],
    /** @internal */
    readonly holds: readonly Hold[],
    readonly attempts: readonly Promise<ExecutionStats>[],
    /** Until when it is certainly held, as `Date.now()`; 0 once it is released or extended. */
    public expiration: number,
  ) {}

  /** The fences, in the order of `resources`; null in a quorum. */
  get fences(): readonly (number | null)[] {
    return this.holds.map((hold) => hold.fence);
  }

  release(): Promise<ExecutionResult> {
    return this.redlock.release(this);
  }

  extend(duration: number): Promise<Lock> {
    return this.redlock.extend(this, duration);
  }
}

export class Redlock extends EventEmitter {
  readonly clients: ReadonlySet<Client>;
  readonly settings: Settings;
  readonly #service: Client | Quorum;

  constructor(clients: Iterable<Client>, settings: Partial<Settings> = {}) {
    super();
    // Nobody has to listen.
    this.on("error", () => {});
    this.clients = new Set(clients);
    const [first] = this.clients;
    if (first === undefined) throw new TypeError("Redlock needs at least one client");
    this.settings = { ...defaults, ...settings };
    this.#service = this.clients.size === 1 ? first : new Quorum(this.clients);
  }

  async quit(): Promise<void> {
    await Promise.all([...this.clients].map((client) => client.quit()));
  }

  acquire(resources: readonly string[], duration: number, settings?: Partial<Settings>): Promise<Lock> {
    return this.#acquire(resources, duration, { ...this.settings, ...settings }, false);
  }

  async #acquire(
    resources: readonly string[],
    duration: number,
    { retryCount, retryDelay }: Settings,
    renew: boolean,
  ): Promise<Lock> {
    const end = now() + (retryCount < 0 ? Number.POSITIVE_INFINITY : retryCount * retryDelay);
    // All in one order: two that want the same resources never wait for each other.
    const names = [...new Set(resources)].sort();
    const held = new Map<string, Hold>();
    try {
      for (const resource of names) {
        // What was acquired first is renewed while the rest is waited for.
        const options = { ttl: duration, renew: renew || names.length > 1, retryDelay };
        const lock = new OneLock(this.#service, resource, options);
        const signal = firstLost([...held.values()]);
        const timeout = end === Number.POSITIVE_INFINITY ? undefined : Math.max(end - now(), 0);
        const hold = await (retryCount === 0
          ? lock.tryAcquire({ signal })
          : lock.acquire({ timeout, signal }));
        if (hold === null) throw new ResourceLockedError(`${resource}: somebody else holds it`, resource);
        held.set(resource, hold);
      }
      if (!renew) await Promise.all([...held.values()].map((hold) => hold.settle()));
    } catch (why) {
      await Promise.allSettled([...held.values()].map((hold) => hold.release()));
      throw this.#failed("The resources could not be locked", why);
    }
    return this.#locked(
      resources,
      resources.map((resource) => held.get(resource)!),
    );
  }

  #locked(resources: readonly string[], holds: readonly Hold[]): Lock {
    const validFor = Math.min(...holds.map((hold) => hold.validFor));
    return new Lock(this, resources, holds, [this.#stats()], Date.now() + validFor);
  }

  /** Releases the lock. `ExecutionError` if it was lost before, or if too few answered. */
  async release(lock: Lock): Promise<ExecutionResult> {
    lock.expiration = 0;
    await this.#each(lock, "released", (hold) => hold.release());
    return { attempts: [this.#stats()] };
  }

  /** Sets the lease to the duration. The answer takes the lock's place. */
  async extend(lock: Lock, duration: number): Promise<Lock> {
    await this.#each(lock, "extended", (hold) => hold.extend(duration));
    lock.expiration = 0;
    return this.#locked(lock.resources, lock.holds);
  }

  async #each(lock: Lock, done: string, act: (hold: Hold) => Promise<void>): Promise<void> {
    const outcomes = await Promise.allSettled([...new Set(lock.holds)].map(act));
    for (const outcome of outcomes) {
      if (outcome.status === "rejected") throw this.#failed(`The lock could not be ${done}`, outcome.reason);
    }
  }

  /** Runs the routine while the resources are locked, and renews the lock. The signal is aborted when it is
   * lost. */
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
    const settings: Settings = { ...this.settings, ...(rest[0] as Partial<Settings> | undefined) };
    if (settings.automaticExtensionThreshold > duration - 100) {
      throw new RangeError("the duration must be at least 100 ms above automaticExtensionThreshold");
    }
    const lock = await this.#acquire(resources, duration, settings, true);
    let result: T;
    try {
      result = await routine(firstLost(lock.holds));
    } catch (why) {
      // The routine's own error says more than that of a release.
      await lock.release().catch(() => {});
      throw why;
    }
    await lock.release();
    return result;
  }

  #failed(what: string, cause: unknown): unknown {
    // What is wrong with the call itself, or with the server, is not a vote.
    if (!(cause instanceof LockError)) return cause;
    this.emit("error", cause);
    return new ExecutionError(`${what}: ${cause.message}`, [this.#stats(cause)], cause);
  }

  async #stats(against?: Error): Promise<ExecutionStats> {
    const votes = [...this.clients];
    return {
      membershipSize: votes.length,
      quorumSize: Math.floor(votes.length / 2) + 1,
      votesFor: new Set(against === undefined ? votes : []),
      votesAgainst: new Map(against === undefined ? [] : votes.map((client) => [client, against])),
    };
  }
}

/** A signal that is aborted when the first of the holds is lost. It looks at the clock first, as theirs do. */
function firstLost(holds: readonly Hold[]): RedlockAbortSignal {
  const signals = holds.map((hold) => hold.signal);
  const signal = AbortSignal.any(signals);
  const lost = () => signals.find(({ aborted }) => aborted);
  return Object.defineProperties(signal, {
    aborted: { get: () => lost() !== undefined },
    error: { get: () => lost()?.reason },
  });
}

export default Redlock;
