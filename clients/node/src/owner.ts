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

/** The name of an owner, 1 to 255 bytes. */
export class Owner {
  readonly id: string;
  /** True once the server may have a hold or a wait of this owner that outlasts the routine that began it: a
   * hold was lost, an acquisition failed, a release was not confirmed, or a routine ended before an inner
   * `using`. No later acquisition uses a retired owner. Otherwise the server could find that the owner waits
   * for its own old hold, and report a deadlock, although that hold ends soon by itself. */
  isRetired = false;

  constructor(id: string = freshToken()) {
    if (typeof id !== "string" || id === "" || Buffer.byteLength(id) > 255) {
      throw new RangeError("owner: it must be a string of 1 to 255 bytes, or null for none");
    }
    this.id = id;
  }

  /** Returns the owner that a user has named; undefined for none. */
  static named(name: string | null | undefined): Owner | undefined {
    return name === undefined || name === null ? undefined : new Owner(name);
  }
}

/** The routine of one `using`. */
class Context {
  /** Number of calls of `using` in the routine that have not ended. */
  branches = 0;
  hasEnded = false;

  /** `owner` is undefined if the user chose none (null). */
  constructor(readonly owner: Owner | undefined) {}
}

const contexts = new AsyncLocalStorage<Context>();

/** Runs `acquire`, `routine` and `release` with one owner. If `name` is a string, it is the owner; null means
 * no owner. If `name` is undefined, a call in the routine of an outer `using` has the owner of the outer one.
 * There are three exceptions: the outer one has no owner, its owner is retired, or another `using` in the
 * same routine has not ended. Then, and outside of a routine, the owner is new. */
export async function withOwner<H, T>(
  name: string | null | undefined,
  acquire: (owner: Owner | undefined) => Promise<H>,
  routine: (hold: H) => T | Promise<T>,
  release: (hold: H) => Promise<unknown>,
): Promise<T> {
  const outer = contexts.getStore();
  const owner = name === undefined ? inherited(outer) : Owner.named(name);
  const context = new Context(owner);
  if (outer !== undefined) outer.branches += 1;
  let mayBeHeld = false;
  try {
    const hold = await acquire(owner);
    mayBeHeld = true;
    let result: T;
    try {
      result = await contexts.run(context, async () => routine(hold));
    } catch (why) {
      // Throws the routine's error, and not that of the release.
      mayBeHeld = await release(hold).then(
        () => false,
        () => true,
      );
      throw why;
    }
    await release(hold);
    mayBeHeld = false;
    return result;
  } finally {
    context.hasEnded = true;
    if (outer !== undefined) outer.branches -= 1;
    // The release may not be confirmed, or a `using` that the routine did not await may still wait.
    if (owner !== undefined && (mayBeHeld || context.branches > 0)) owner.isRetired = true;
  }
}

function inherited(outer: Context | undefined): Owner {
  const isOnlyBranch = outer !== undefined && !outer.hasEnded && outer.branches === 0;
  if (!isOnlyBranch || outer.owner === undefined || outer.owner.isRetired) return new Owner();
  return outer.owner;
}
