import os from "node:os";
import { performance } from "node:perf_hooks";

// `performance.now` stands still while the machine is suspended, and a laptop that wakes up must not believe
// that it still holds a lock. The wall clock shows that something happened (or was only set anew); the uptime
// says how much.
const STEP = 20;
let suspended = 0;
let offset = Date.now() - performance.now();
const uptimeOffset = uptime() - performance.now();

function uptime(): number {
  return os.uptime() * 1000;
}

/** Milliseconds of a clock that runs on while the machine is suspended. */
export function now(): number {
  const at = performance.now();
  const found = Date.now() - at;
  if (Math.abs(found - offset) > STEP) {
    offset = found;
    const missing = uptime() - at - uptimeOffset;
    // Uptimes are rounded.
    if (missing > suspended + STEP) suspended = missing;
  }
  return at + suspended;
}

/** How much of a lease counts: less a hundredth, for clocks whose rates differ, and 2 ms for their
 * resolution. */
export function trusted(ttl: number): number {
  return ttl - ttl / 100 - 2;
}
