// Time: a clock that also advances while the machine is suspended, the validity of a lease, and time limits.

import os from "node:os";
import { performance } from "node:perf_hooks";

// `performance.now` stops while the machine is suspended, and a laptop that wakes up must not believe that it
// still holds a lock. If the wall clock jumps by more than STEP (ms), the machine was suspended or the wall
// clock was set. The uptime shows which: it advances while the machine is suspended.
const STEP = 20;
/** Total time for which the machine was suspended, ms. */
let suspended = 0;
/** Wall clock minus `performance.now` at the last jump, ms. */
let offset = Date.now() - performance.now();
const uptimeOffset = uptime() - performance.now();

function uptime(): number {
  return os.uptime() * 1000;
}

/** Returns the time in ms. This clock also advances while the machine is suspended, and ignores changes of
 * the wall clock. */
export function now(): number {
  const at = performance.now();
  const newOffset = Date.now() - at;
  if (Math.abs(newOffset - offset) > STEP) {
    offset = newOffset;
    const suspendedByUptime = uptime() - at - uptimeOffset;
    // Uptimes are rounded to 10 ms, so a difference of less than STEP may be a rounding error.
    if (suspendedByUptime > suspended + STEP) suspended = suspendedByUptime;
  }
  return at + suspended;
}

/** Returns the part of a lease of `ttl` ms that its holder may rely on, in ms: 1 % less, as the rates of two
 * clocks differ, and 2 ms less, for the resolution of the clocks. */
export function validity(ttl: number): number {
  return ttl - ttl / 100 - 2;
}

// Step of the times at which repeated requests are sent, ms.
const GRID = 100;
// A pause or lease that is shorter than this many steps is not rounded.
const LEAST_STEPS = 10;

/** Returns the time of a repeated request, rounded down so that the requests of many waits and holds fall on the same
 * moments and are written together. `period`: the pause or lease from which `at` was derived, ms. */
export function onGrid(at: number, period: number): number {
  return period < LEAST_STEPS * GRID ? at : Math.floor(at / GRID) * GRID;
}

/** Thrown by `withTimeout` when the time is over. */
export class TimedOut {}

/** Thrown by `withTimeout` when the caller's signal is aborted. */
export class Aborted {
  constructor(readonly reason: unknown) {}
}

/** The callbacks of one abort signal. They share one listener, as Node warns of more than ten listeners. */
class AbortCallbacks extends Set<() => void> {
  readonly callAll = () => {
    for (const callback of this) callback();
  };
}

const callbacksOf = new WeakMap<AbortSignal, AbortCallbacks>();

function addCallback(signal: AbortSignal, callback: () => void): void {
  const all = callbacksOf.get(signal) ?? new AbortCallbacks();
  callbacksOf.set(signal, all);
  if (all.size === 0) signal.addEventListener("abort", all.callAll);
  all.add(callback);
}

function removeCallback(signal: AbortSignal, callback: () => void): void {
  const all = callbacksOf.get(signal);
  if (all?.delete(callback) && all.size === 0) signal.removeEventListener("abort", all.callAll);
}

/** Settles a promise with the outcome of some work, or with `TimedOut` after `ms`, or with `Aborted` when `signal` is
 * aborted; the work itself continues. One object, and no function of its own for each event: thousands of waits have one
 * each. */
export class Timed<T> {
  readonly promise: Promise<T>;
  #resolve!: (outcome: T) => void;
  #reject!: (why: unknown) => void;
  #timer: NodeJS.Timeout | undefined;
  #isSettled = false;
  readonly #ms: number;
  readonly #signal: AbortSignal | undefined;
  readonly #aborted: (() => void) | undefined;

  constructor(ms: number, signal?: AbortSignal) {
    this.promise = new Promise<T>((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.#ms = Math.min(Math.max(ms, 0), 2 ** 31 - 1);
    this.#signal = signal;
    if (signal?.aborted) {
      this.#settle();
      this.#reject(new Aborted(signal.reason));
      return;
    }
    if (signal !== undefined) {
      this.#aborted = () => this.reject(new Aborted(signal.reason));
      addCallback(signal, this.#aborted);
    }
    // Last: had the constructor failed after it, the timer would reject a promise that nothing handles.
    this.#startTimer();
  }

  #startTimer(): void {
    this.#timer = setTimeout(Timed.#timerFired, this.#ms, this as unknown as Timed<unknown>);
  }

  // After a blocked event loop, timers fire before arrived data is read. `setImmediate` lets an answer that has arrived
  // in time be read first.
  static #timerFired(timed: Timed<unknown>): void {
    setImmediate(Timed.#timeIsOver, timed);
  }

  static #timeIsOver(timed: Timed<unknown>): void {
    if (timed.#isSettled) return;
    if (timed.mayGoOn()) timed.#startTimer();
    else timed.timedOut();
  }

  /** Called at the end of the time: if it returns true, the time begins anew. */
  protected mayGoOn(): boolean {
    return false;
  }

  protected timedOut(): void {
    this.reject(new TimedOut());
  }

  get isSettled(): boolean {
    return this.#isSettled;
  }

  resolve(outcome: T): void {
    if (this.#settle()) this.#resolve(outcome);
  }

  reject(why: unknown): void {
    if (this.#settle()) this.#reject(why);
  }

  #settle(): boolean {
    if (this.#isSettled) return false;
    this.#isSettled = true;
    clearTimeout(this.#timer);
    if (this.#aborted !== undefined) removeCallback(this.#signal!, this.#aborted);
    return true;
  }
}

/** Returns the outcome of `work`. Throws `TimedOut` after `ms`, and `Aborted` when `signal` is aborted. */
export function withTimeout<T>(work: Promise<T>, ms: number, signal?: AbortSignal): Promise<T> {
  const timed = new Timed<T>(ms, signal);
  work.then(
    (outcome) => timed.resolve(outcome),
    (why) => timed.reject(why),
  );
  return timed.promise;
}

/** Returns the outcome of `work`. Calls `act` every `ms` until then. */
export function whilePending<T>(work: Promise<T>, ms: number, act: () => void): Promise<T> {
  const timer = setInterval(act, ms);
  timer.unref();
  return work.finally(() => clearInterval(timer));
}
