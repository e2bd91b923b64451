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

/** Returns the outcome of `work`. Throws `TimedOut` after `ms`, and `Aborted` when `signal` is aborted; the
 * work itself continues. If `mayGoOn` is given and returns true at the end of the time, the time begins anew. */
export function withTimeout<T>(
  work: Promise<T>,
  ms: number,
  signal?: AbortSignal,
  mayGoOn?: () => boolean,
): Promise<T> {
  return new Promise((resolve, reject) => {
    // After a blocked event loop, timers fire before arrived data is read. `setImmediate` lets an answer that
    // has arrived in time be read first.
    const startTimer = () => setTimeout(() => setImmediate(timedOut), Math.min(Math.max(ms, 0), 2 ** 31 - 1));
    const timedOut = () => {
      if (isSettled) return;
      if (mayGoOn?.()) timer = startTimer();
      else settle(() => reject(new TimedOut()));
    };
    const aborted = () => settle(() => reject(new Aborted(signal?.reason)));
    const settle = (outcome: () => void) => {
      isSettled = true;
      clearTimeout(timer);
      if (signal) removeCallback(signal, aborted);
      outcome();
    };
    let isSettled = false;
    let timer = startTimer();
    work.then(
      (answer) => settle(() => resolve(answer)),
      (why) => settle(() => reject(why)),
    );
    if (signal?.aborted) aborted();
    else if (signal) addCallback(signal, aborted);
  });
}
