// In place of node-redlock 5: `import Redlock from "dlock/redlock"`. The same methods, settings and errors;
// who waits, waits in the server's queue instead of polling.

import { EventEmitter } from "node:events";
import { setTimeout as pause } from "node:timers/promises";
import { now } from "./clock.js";
import { LockError, NoAnswerError, NoQuorumError, ResourceLockedError, word } from "./errors.js";
import type { Client } from "./links.js";
import { type Hold, Lock as OneLock } from "./lock.js";
import { Quorum } from "./service.js";

export { ResourceLockedError };

export interface Settings {
  /** Not used: a hundredth of the lease and 2 ms, always. */
  readonly driftFactor: number;
  /** With `retryDelay`, how long to wait: retryCount * retryDelay. -1 for as long as it takes, 0 for one try.
   * An extension without an answer is tried again so often. */
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
  constructor(
    readonly redlock: Redlock,
    readonly resources: string[],
    /** Who holds them: the token of each resource, with commas between. */
    readonly value: string,
    readonly attempts: readonly Promise<ExecutionStats>[],
    /** Until when it is certainly held, as `Date.now()`; 0 once it is released or extended. */
    public expiration: number,
  ) {}

  /** The fences, in the order of `resources`; null in a quorum. */
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

export class Redlock extends EventEmitter {
  readonly clients: Set<Client>;
  readonly settings: Settings;
  readonly #service: Client | Quorum;
  readonly #holds = new WeakMap<Lock, readonly Hold[]>();

  constructor(clients: Iterable<Client>, settings: Partial<Settings> = {}) {
    super();
    // Nobody has to listen.
    this.on("error", () => {});
    this.clients = new Set(clients);
    const [first] = this.clients;
    if (first === undefined) throw new TypeError("Redlock needs at least one client");
    this.settings = merged(defaults, settings);
    this.#service = this.clients.size === 1 ? first : new Quorum(this.clients);
  }

  async quit(): Promise<void> {
    await Promise.all([...this.clients].map((client) => client.quit()));
  }

  acquire(resources: readonly string[], duration: number, settings?: Partial<Settings>): Promise<Lock> {
    return this.#acquire(resources, duration, merged(this.settings, settings), false);
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
    const value = holds.map((hold) => hold.token).join(",");
    const lock = new Lock(this, [...resources], value, [this.#stats()], Date.now() + validFor);
    this.#holds.set(lock, holds);
    return lock;
  }

  /** @internal Those of a lock in the order of its resources, also if it was made from the value of another. */
  holds(lock: Lock): readonly Hold[] {
    let holds = this.#holds.get(lock);
    if (holds === undefined) {
      const tokens = lock.value.split(",");
      const adopted = new Map(
        lock.resources.map((resource, at) => {
          const one = new OneLock(this.#service, resource);
          return [resource, one.adopt(tokens[at] ?? "", lock.expiration - Date.now())];
        }),
      );
      holds = lock.resources.map((resource) => adopted.get(resource)!);
      this.#holds.set(lock, holds);
    }
    return holds;
  }

  /** Releases the lock. `ExecutionError` if it was lost before, or if too few answered: it goes on then, in the
   * background. */
  async release(lock: Lock, _settings?: Partial<Settings>): Promise<ExecutionResult> {
    lock.expiration = 0;
    const [failure] = await this.#failures(lock, (hold) => hold.release());
    if (failure !== undefined) throw this.#failed("The lock could not be released", failure.reason);
    return { attempts: [this.#stats()] };
  }

  /** Sets the lease to the duration. The answer takes the lock's place. */
  async extend(lock: Lock, duration: number, settings?: Partial<Settings>): Promise<Lock> {
    const { retryCount, retryDelay } = merged(this.settings, settings);
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
    return this.#locked(lock.resources, this.holds(lock));
  }

  async #failures(lock: Lock, act: (hold: Hold) => Promise<void>): Promise<PromiseRejectedResult[]> {
    const outcomes = await Promise.allSettled([...new Set(this.holds(lock))].map(act));
    return outcomes.filter((outcome) => outcome.status === "rejected");
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
    const settings = merged(this.settings, rest[0] as Partial<Settings> | undefined);
    if (settings.automaticExtensionThreshold > duration - 100) {
      throw new RangeError("the duration must be at least 100 ms above automaticExtensionThreshold");
    }
    const lock = await this.#acquire(resources, duration, settings, true);
    let result: T;
    try {
      result = await routine(firstLost(this.holds(lock)));
    } catch (why) {
      // The routine's own error says more than that of a release.
      await lock.release().catch(() => {});
      throw why;
    }
    await lock.release();
    return result;
  }

  #failed(what: string, cause: unknown): unknown {
    // What is wrong with the call itself is no vote; what a server refuses is one.
    if (!(cause instanceof Error && (cause instanceof LockError || word(cause)))) return cause;
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

/** What is not set may be there as undefined, or null. */
function merged(base: Settings, given: Partial<Settings> = {}): Settings {
  const set = Object.entries(given).filter(([, value]) => typeof value === "number");
  return { ...base, ...Object.fromEntries(set) };
}

function isUnanswered(why: unknown): boolean {
  return why instanceof NoAnswerError || why instanceof NoQuorumError;
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
