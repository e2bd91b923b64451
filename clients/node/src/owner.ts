// Owners of acquisitions, for the server's search for deadlocks. The server expects that an owner which waits
// for a lock releases none of its other locks until the wait has ended. The lock of a `using` is released
// only after its routine has ended. So a `using` within that routine has the same owner.
// Inner calls that run side by side have different owners, because one may release its lock while the other
// waits.
//
// - `a.using(() => b.using(..))`: `a` and `b` have one owner.
// - `a.using(() => Promise.all([b.using(..), c.using(..)]))`: `b` has the owner of `a`, and `c` has an owner
//   of its own.
//
// If the outer lock is released while an inner `using` still waits, the server may report a deadlock that
// does not exist. The README lists the cases.

import { AsyncLocalStorage } from "node:async_hooks";
import { freshToken } from "./protocol.js";

/** A hold of this process. */
interface OwnedHold {
  isLost(): boolean;
}

// The holds of this process that have an owner and are not released, by owner and key.
const holds = new Map<string, Set<OwnedHold>>();

function nameOf(owner: string, key: string): string {
  return JSON.stringify([owner, key]);
}

/** Records a hold until `noteReleased`. */
export function noteHeld(owner: string, key: string, hold: OwnedHold): void {
  const name = nameOf(owner, key);
  const held = holds.get(name) ?? new Set();
  holds.set(name, held.add(hold));
}

export function noteReleased(owner: string, key: string, hold: OwnedHold): void {
  const name = nameOf(owner, key);
  const held = holds.get(name);
  if (held?.delete(hold) && held.size === 0) holds.delete(name);
}

/** Returns whether this process holds the key for the owner. */
export function isHeldBy(owner: string, key: string): boolean {
  // A copy, as a hold that is found to be lost leaves the set.
  return [...(holds.get(nameOf(owner, key)) ?? [])].some((hold) => !hold.isLost());
}

/** Returns the owner that a user has named; undefined for none. Throws a `RangeError` unless the name has 1 to
 * 255 bytes. */
export function namedOwner(name: string | null | undefined): string | undefined {
  if (name === undefined || name === null) return undefined;
  if (typeof name !== "string" || name === "" || Buffer.byteLength(name) > 255) {
    throw new RangeError("owner: it must be a string of 1 to 255 bytes, or null for none");
  }
  return name;
}

/** The routine of one `using`, and the calls of `using` that have begun in it. */
class Context {
  hasEnded = false;
  /** The holds of this `using`; none before the grant. */
  held: readonly unknown[] = [];
  /** Number of calls of `using` in the routine, or in the routine of such a call, that have not ended. */
  #branches = 0;

  /** `owner` is undefined if the user chose none (null). */
  constructor(
    readonly owner: string | undefined,
    readonly outer: Context | undefined,
  ) {
    if (outer !== undefined) outer.#branches += 1;
  }

  /** Whether a `using` that begins now runs beside no other one of this routine. */
  get isFree(): boolean {
    return !this.hasEnded && this.#branches === 0;
  }

  end(): void {
    this.hasEnded = true;
    this.#leaveIfOver();
  }

  #leaveIfOver(): void {
    if (!this.hasEnded || this.#branches > 0 || this.outer === undefined) return;
    this.outer.#branches -= 1;
    this.outer.#leaveIfOver();
  }
}

const contexts = new AsyncLocalStorage<Context>();

/** Runs `acquire`, `routine` and `release` with one owner. If `name` is a string, it is the owner; null means
 * no owner. If `name` is undefined, a call in the routine of an outer `using` has the owner of the outer one.
 * There are two exceptions: the outer one has no owner, or another `using` in the same routine has not ended.
 * Then, and outside of a routine, the owner is new. */
export async function withOwner<H, T>(
  name: string | null | undefined,
  acquire: (owner: string | undefined) => Promise<H>,
  routine: (hold: H) => T | Promise<T>,
  release: (hold: H) => Promise<unknown>,
): Promise<T> {
  const outer = contexts.getStore();
  const owner = name === undefined ? inherited(outer) : namedOwner(name);
  const context = new Context(owner, outer);
  try {
    const hold = await acquire(owner);
    let result: T;
    try {
      const isSeveral = hold instanceof Object && Symbol.iterator in hold;
      context.held = isSeveral ? [...(hold as Iterable<unknown>)] : [hold];
      result = await contexts.run(context, async () => routine(hold));
    } catch (why) {
      // Throws the routine's error, and not that of the release.
      await release(hold).catch(() => {});
      throw why;
    }
    await release(hold);
    return result;
  } finally {
    context.end();
  }
}

/** Returns the holds of the enclosing calls of `withOwner`, the innermost one first. */
export function enclosingHolds(): unknown[] {
  const all: unknown[] = [];
  for (let context = contexts.getStore(); context !== undefined; context = context.outer) {
    if (!context.hasEnded) all.push(...context.held);
  }
  return all;
}

function inherited(outer: Context | undefined): string {
  return (outer?.isFree ? outer.owner : undefined) ?? freshToken();
}
