// The errors of this package, and the error words of the server.

import type { Holder } from "./reading.js";

/** Base class of the errors about locks. */
export class LockError extends Error {
  /** Key of the lock; undefined if the error is not about one lock. */
  readonly key: string | undefined;

  constructor(message: string, key?: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    this.key = key;
  }
}

/** Another client still held the lock when the wait timed out, or the lock was still closed (`atLeast`, `delay`), or an
 * operator ended the wait. */
export class ResourceLockedError extends LockError {
  /** One of the holders at the end of the wait; undefined if there was none, or if the server did not show it: the
   * user needs `+dlock.inspect`. */
  holder: Holder | undefined;
}

/** The hold is lost: its lease ended, or another client ended it. */
export class NotHeldError extends LockError {}

/** The wait would close a cycle of owners that wait for each other. Release your locks, then retry. */
export class DeadlockError extends LockError {}

/** The server may have forgotten holds, and grants no new ones yet. */
export class GraceError extends LockError {
  /** Retry after this many ms; 1000 if the server's message has no number. */
  left = 1000;
}

/** The server's wait queue is full. Retry later. */
export class QueueFullError extends LockError {}

/** Too few replicas confirmed the grant in time: see the option `durable`. The lock was released. */
export class NotDurableError extends LockError {}

/** The gate has seen a greater fence, so that the command was not run: see `fenced`. */
export class StaleFenceError extends LockError {
  constructor(
    message: string,
    gate: string,
    readonly fence: number,
    /** The greatest fence that the gate has seen. */
    readonly greatest: number,
    cause?: unknown,
  ) {
    super(message, gate, cause);
  }
}

/** The ttl is too short: the server, or a majority of a quorum, granted the lock several times, but each grant
 * arrived after the end of the lease. */
export class LateError extends LockError {}

/** The server did not answer in time. It may have carried out the request. */
export class NoAnswerError extends LockError {}

/** Too few members of the quorum could vote. Whether another client holds the lock is unknown; the message
 * says how each member answered. */
export class NoQuorumError extends LockError {}

/** Returns the error word of a server's error reply ("GRACE"), or "" for any other value. The client
 * libraries' own errors do not begin with a word in capitals. */
export function errorWord(reply: unknown): string {
  return (reply instanceof Error && /^[A-Z]{2,}(?= )/.exec(reply.message)?.[0]) || "";
}

// Error words of a server that cannot carry out the request at this moment.
const NOT_NOW = new Set([
  "BUSY",
  "CLUSTERDOWN",
  "LOADING",
  "MASTERDOWN",
  "MISCONF",
  "NOREPLICAS",
  "OOM",
  "READONLY",
  "UNBLOCKED",
]);

/** Returns whether an error reply says that the server cannot carry out the request at this moment. A wait
 * tries again until its timeout. */
export function isNotNow(why: unknown): boolean {
  return NOT_NOW.has(errorWord(why));
}

/** Returns whether the server has refused the user or the password of a connection. */
export function isLoginRefusal(why: unknown): boolean {
  return ["NOAUTH", "WRONGPASS"].includes(errorWord(why));
}

/** Returns whether an error reply says that the server is not a master any more. */
export function isNoMaster(why: unknown): boolean {
  return ["READONLY", "UNBLOCKED"].includes(errorWord(why));
}

/** Returns whether an error is a DEADLOCK of one owner with itself: "x -> x". */
export function isOwnDeadlock(why: unknown): boolean {
  if (errorWord(why) !== "DEADLOCK") return false;
  const cycle = (why as Error).message.slice("DEADLOCK ".length);
  const owner = cycle.slice(0, (cycle.length - " -> ".length) / 2);
  return cycle === `${owner} -> ${owner}`;
}

/** Returns the `LockError` for an error reply to ACQUIRE; undefined if no class above is for its error word. */
export function refusal(reply: unknown, key: string): LockError | undefined {
  const text = (reply as Error).message;
  switch (errorWord(reply)) {
    case "DEADLOCK": {
      const hint = isOwnDeadlock(reply)
        ? "this owner would wait for itself: release the lock first"
        : "release your locks, then retry";
      return new DeadlockError(`${text}, at the lock ${key}: ${hint}`, key, reply);
    }
    case "QUEUEFULL":
      return new QueueFullError(text, key, reply);
    case "GRACE": {
      const grace = new GraceError(text, key, reply);
      const left = /^GRACE (\d+)/.exec(text)?.[1];
      if (left !== undefined) grace.left = Number(left);
      return grace;
    }
    default:
      return undefined;
  }
}
