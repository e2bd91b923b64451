// Sends one command to one server, and reads its reply. A reply of an unexpected type is an error: the user's
// client may be a pipeline or a mock, which sends nothing, and its reply must not count as a grant.

import { now } from "./clock.js";
import { errorWord, isOwnDeadlock, LockError } from "./errors.js";
import { isHeldBy } from "./owner.js";
import {
  type Args,
  acquire,
  incidentsOf,
  inspect,
  inspectOne,
  type Key,
  probeDelay,
  pttl,
  queueOptions,
  release,
} from "./protocol.js";
import { endingOf, type Holder, type Inspection, incidents, inspection } from "./reading.js";
import type { Renewal, UnansweredLeases } from "./renewal.js";
import type { Owe, Send, Steps } from "./steps.js";
import { times, type Wait } from "./waits.js";

// Type of a lock's key, as TYPE names it.
const LOCK_TYPE = "dlock-key";
// The lock of another library can end between two requests, so that its key is free when the client asks for
// the type. ACQUIRE is then sent again, at most this many times.
const FREED_TRIES = 3;
// A wait repeats its request no more often than after this pause, however short the lease is, ms.
const SHORTEST_ASK = 1000;
// Waits that receive no messages together ask no more often than once after each such pause, ms.
const LEAST_PAUSE_PER_WAIT = 0.5;

/** A request for a lock. */
export interface Request {
  readonly key: Key;
  /** The key as text. */
  readonly name: string;
  /** Lease length in ms. */
  readonly lease: number;
  /** Options of ACQUIRE: SHARED or PERMITS. */
  readonly mode: Args;
  /** Options of ACQUIRE: EPHEMERAL, DELAY and LABEL. */
  readonly terms: Args;
  /** Whether `terms` has EPHEMERAL: the hold and the queue position end with their connection. */
  readonly isEphemeral: boolean;
  /** Whether `terms` has DELAY. */
  readonly hasDelay: boolean;
  /** OWNER of ACQUIRE; undefined for none. */
  readonly owner: string | undefined;
  /** Pause between two tries where the wait queue cannot help, in ms: another library holds the lock, or no
   * message can arrive. */
  readonly retryDelay: number;
  /** Least time in ms for which the lock is granted to no other client, counted from the grant; 0 for none. */
  readonly atLeast: number;
}

/** A hold: a lock that was granted to a token. The methods get the hold's `Renewal`, which tracks the
 * validity. */
export interface Granted {
  readonly token: string;
  /** Whether its caller never had the hold, so that `atLeast` does not count. */
  isUnused: boolean;
  /** The error with which so many servers have refused the delay of `atLeast` that the lock does not stay closed. */
  readonly delayRefusal: unknown;
  /** Null in a quorum, unless the lock is `fenced`. */
  readonly fence: number | null;
  /** End of the validity, on the clock of `now()`. */
  readonly validUntil: number;
  /** Set if a message has brought the grant: the lease in ms that the hold has at most until it is claimed. The first
   * successful `setLease` claims it. */
  readonly shortLease?: number | undefined;
  /** Sets the lease. Returns whether the token holds the lock. */
  setLease(hold: Renewal, lease: number): Steps<boolean>;
  isHeld(): Steps<boolean>;
  /** Returns why the servers no longer have the hold, as a text for people; undefined if they do not say it. */
  whyEnded(): Steps<string | undefined>;
  /** Watches the hold for its loss, and calls `onGone` when the server seems not to have it any more. Returns the
   * function that ends it; undefined if that is not possible. */
  watchLoss(onGone: () => void): Steps<(() => void) | undefined>;
  /** Makes an exclusive hold a shared one. Returns whether the token holds the lock. */
  downgrade(): Steps<boolean>;
  /** Makes a shared hold an exclusive one, and waits for the other sharers until `end`. Returns false if others still
   * share the lock then, and null if the token does not hold the lock any more. */
  upgrade(hold: Renewal, end: number): Steps<boolean | null>;
  /** Waits until `replicas` replicas of each server of a majority have the grant, or until its append only file has it
   * if `replicas` is 0, for at most `timeout` ms. Returns whether they have. */
  replicate(replicas: number, timeout: number): Steps<boolean>;
  /** Ends the hold. Returns whether the hold still existed; undefined if an earlier, unanswered release may
   * have ended it. A release without an answer is repeated in the background until the hold has expired. */
  release(hold: Renewal): Steps<boolean | undefined>;
}

/** An acquisition: one attempt to get the lock, with any number of requests. */
export interface Acquisition {
  /** Acquires the lock. Waits for other clients until `end`, or not at all if `waits` is false. Returns null
   * if another client has the lock; then neither a hold nor a queue position is left on the servers. */
  run(waits: boolean, end: number): Steps<Granted | null>;
  /** Returns the step that releases whatever the servers may have granted; undefined if no request was
   * sent. */
  takeBack(): Owe | undefined;
}

/** An acquisition fails after this many grants that arrived after the end of their leases. */
export const MAX_LATE = 3;

/** Outcome of ACQUIRE: the fence, null if the lock is taken, or "foreign" if a lock of another library is at
 * the key. A foreign lock has no wait queue. */
export type Acquired = number | null | "foreign";

/** Sends ACQUIRE, and records it in `unanswered` until its answer arrives. Throws a `LockError` that names
 * the type if data is at the key. */
export function* tryAcquire(
  request: Request,
  token: string,
  unanswered: UnansweredLeases,
  positionOptions: Args = [],
): Steps<Acquired> {
  const { key, name, lease, mode, terms, owner } = request;
  let ownerOption = owner === undefined ? [] : ["OWNER", owner];
  for (let tries = 0; ; ) {
    const options = [...mode, ...terms, ...ownerOption, ...positionOptions];
    try {
      return fenceOf(yield unanswered.send(acquire(key, token, lease, options), lease));
    } catch (why) {
      if (ownerOption.length > 0 && isOwnDeadlock(why) && !isHeldBy(owner!, name)) {
        // The server still has a hold or a queue position that an earlier acquisition of the owner has given
        // up. It ends by itself, so that this is no deadlock.
        ownerOption = [];
        continue;
      }
      if (errorWord(why) !== "WRONGTYPE") throw why;
      if (yield* isForeignLock(key)) return "foreign";
      const type = yield* typeOf(key);
      if (type !== "none" && type !== LOCK_TYPE) throw occupied(name, type, why);
      // The key has changed since the command: it is free now, or holds a lock of dlock.
      tries += 1;
      if (tries === FREED_TRIES) return "foreign";
    }
  }
}

/** A server's connection, and the longest delay of a RELEASE that it has accepted over this connection. */
export interface DelayServer {
  readonly address: string;
  readonly connections: number;
  knownDelay?: { readonly connection: number; readonly longest: number } | undefined;
}

/** Returns whether the server is known to accept RELEASE .. DELAY with `atLeast` over its present connection. */
export function acceptsDelay({ atLeast }: Request, { knownDelay, connections }: DelayServer): boolean {
  return atLeast === 0 || (knownDelay?.connection === connections && atLeast <= knownDelay.longest);
}

/** Throws a `LockError` if the server refuses RELEASE .. DELAY with `atLeast`. Asks once for each connection, and
 * again for a longer delay. */
export function* requireDelay(request: Request, server: DelayServer): Steps<void> {
  if (acceptsDelay(request, server)) return;
  const { key, name, atLeast } = request;
  const { connections: connection } = server;
  const refused = yield* delayRefusal(key, atLeast);
  if (refused !== undefined) {
    const isOlder = (yield* delayRefusal(key, 0)) !== undefined;
    const text = isOlder
      ? `needs a server with dlock 0.1.0 or later: ${server.address} is older`
      : `is ${atLeast} ms, but ${server.address} allows no more than its dlock.max-ttl`;
    throw new LockError(`${name}: atLeast ${text}`, name, refused);
  }
  server.knownDelay = { connection, longest: atLeast };
}

/** Returns the error with which the server refuses a RELEASE with this delay; undefined if it accepts it. */
function* delayRefusal(key: Key, delay: number): Steps<unknown> {
  try {
    yield probeDelay(key, delay);
  } catch (why) {
    if (errorWord(why) === "ERR") return why;
    // A string may be at the key, and is no error of this command.
    if (errorWord(why) !== "WRONGTYPE") throw why;
  }
  return undefined;
}

/** Sends RELEASE with a delay until `closedUntil`, on the clock of `now()`. If the server refuses the delay, calls
 * `onRefusal`, and sends RELEASE without it. Returns the number of holds that it has ended. */
export function* releaseAndClose(
  key: Key,
  token: string,
  closedUntil: number,
  onRefusal: (why: unknown) => void,
): Steps<number> {
  const delay = Math.max(Math.ceil(closedUntil - now()), 0);
  try {
    return yield* zeroIfReplaced(send(release(key, token, delay)));
  } catch (why) {
    if (delay === 0 || errorWord(why) !== "ERR") throw why;
    onRefusal(why);
    return yield* zeroIfReplaced(send(release(key, token)));
  }
}

/** A position in the wait queue of a server, and the options with which ACQUIRE asks for it. */
export class QueuePosition {
  /** Time for which the server retains the position after each request for it, ms. */
  keep = times.keep;
  #notify = true;

  constructor(
    readonly wait: Wait,
    private readonly lease: number,
  ) {}

  /** Lease in ms that a grant by message has at most until it is claimed. */
  get shortLease(): number {
    return Math.min(this.lease, this.keep);
  }

  /** Returns QUEUE and NOTIFY for an ACQUIRE that is sent at once, with a message of its own. `connection`: see
   * `Wait.beginCall`. */
  beginCall(connection?: number): Args {
    const message = this.wait.beginCall(this.shortLease, connection);
    return queueOptions(this.keep, this.wait.channel, message, this.#notify);
  }

  get receivesMessages(): boolean {
    return this.#notify && this.wait.isSubscribed;
  }

  /** Returns the pause before the next request of a wait that receives no messages, ms: longer than `pause` if the
   * client has so many waits that they would ask too often. */
  pauseWithoutMessages(pause: number): number {
    return Math.max(pause, (0.5 + Math.random() / 2) * this.wait.companions * LEAST_PAUSE_PER_WAIT);
  }

  /** Returns the pause before the next request of a wait that receives messages, ms: at most a third of the lease
   * of a grant by message, so that a usable part of it is left whenever the message comes. Waits that begin at the
   * same moment do not repeat their requests at the same moment. */
  pauseForMessage(): number {
    const third = Math.min(times.ask, this.keep / 3, Math.max(this.lease / 3, SHORTEST_ASK));
    return (0.85 + (Math.random() * 3) / 20) * third;
  }

  /** Changes the options if `why` is an error that other options may avoid. Returns whether it changed them:
   * then the caller asks again. */
  changeRefusedOption(why: unknown): boolean {
    if (errorWord(why) === "NOPERM" && this.#notify) {
      // The user may have no right to the channel: the wait continues without messages.
      this.#notify = false;
      return true;
    }
    if (errorWord(why) === "ERR" && this.keep > this.lease) {
      // `keep` may exceed the server's `dlock.max-ttl`, which also limits the lease.
      this.keep = this.lease;
      return true;
    }
    return false;
  }
}

/** Returns the fence in a reply to ACQUIRE or CONFIRM; null for a null reply. */
export function fenceOf(reply: unknown): number | null {
  if (reply === null) return null;
  const fence = integerOf(reply);
  if (fence > 0) return fence;
  throw new LockError(`the server answered with the fence ${fence}, which no hold has`);
}

/** Returns an integer reply. */
export function integerOf(reply: unknown): number {
  if (Number.isSafeInteger(reply)) return reply as number;
  throw unexpected(reply);
}

function unexpected(reply: unknown): LockError {
  const kind = reply === null ? "null" : Array.isArray(reply) ? "an array" : typeof reply;
  return new LockError(
    `the client returned ${kind} where the server answers with an integer: pass a client of ioredis or ` +
      "node-redis that sends each command at once and returns its reply",
  );
}

/** Carries out `steps`, which return an integer reply. Returns 0 if the key no longer holds a lock: another
 * command has replaced it. */
export function* zeroIfReplaced(steps: Steps<unknown>): Steps<number> {
  try {
    return integerOf(yield* steps);
  } catch (why) {
    if (errorWord(why) === "WRONGTYPE") return 0;
    throw why;
  }
}

/** Returns steps that send one command and return its reply. */
export function* send(command: Args | Send): Steps<unknown> {
  return yield command;
}

/** Returns the state of the lock, with one holder at most; null if it is free, or if the server does not show it. */
export function* stateOf(key: Key): Steps<Inspection | null> {
  return inspection(yield* replyIfAny(inspectOne(key)));
}

/** Returns the first holder of the lock; undefined if there is none, or if the server does not show it: the user may not
 * run INSPECT, or a lock of another library is at the key. */
export function* firstHolder(key: Key): Steps<Holder | undefined> {
  try {
    return inspection(yield inspectOne(key))?.holders[0];
  } catch (why) {
    if (["NOPERM", "WRONGTYPE"].includes(errorWord(why))) return undefined;
    throw why;
  }
}

/** Returns a holder without this token; undefined if there is none, or if the server does not show it. */
export function* otherHolder(key: Key, token: string): Steps<Holder | undefined> {
  return inspection(yield* replyIfAny(inspect(key)))?.holders.find((holder) => holder.token !== token);
}

/** Returns whether the lock has no holder, no waiter and no delay. */
export function* isFree(key: Key): Steps<boolean> {
  return (yield inspectOne(key)) === null;
}

/** Returns why the server no longer has a hold, as a text for people; undefined if it does not say it. */
export function* whyEnded(key: Key, token: string, fence: number | null): Steps<string | undefined> {
  return endingOf(incidents(yield* replyIfAny(incidentsOf(key))), token, fence);
}

/** Returns the reply to a command that only informs people; undefined if the user may not run it, a string is at the
 * key, or there is no answer. */
function* replyIfAny(command: Args): Steps<unknown> {
  try {
    return yield command;
  } catch (why) {
    if (errorWord(why) || why instanceof LockError) return undefined;
    throw why;
  }
}

/** Returns whether a lock of node-redlock or redis-py is at the key: a string of 32 hexadecimal digits. */
function* isForeignLock(key: Key): Steps<boolean> {
  try {
    return /^[0-9a-f]{32}$/.test(String(yield ["GET", key]));
  } catch (why) {
    // The value is not a string, or the user may not run GET.
    if (errorWord(why)) return false;
    throw why;
  }
}

/** Returns whether the lock is held. Throws a `LockError` that names the type if data is at the key. */
export function* isLocked(key: Key, name: string): Steps<boolean> {
  try {
    return integerOf(yield pttl(key)) !== -2;
  } catch (why) {
    if (errorWord(why) !== "WRONGTYPE") throw why;
    if ((yield* isForeignLock(key)) || (yield* isHonouredString(key))) return true;
    const type = yield* typeOf(key);
    if (type === "none") return false;
    if (type === LOCK_TYPE) return true;
    throw occupied(name, type, why);
  }
}

/** Returns whether the server counts the string at the key as a lock (`dlock.honour-strings`). */
function* isHonouredString(key: Key): Steps<boolean> {
  try {
    return (yield inspect(key)) !== null;
  } catch (why) {
    // The server does not count the string as a lock, or the user may not run INSPECT.
    if (errorWord(why)) return false;
    throw why;
  }
}

function occupied(name: string, type: string | undefined, cause: unknown): LockError {
  const remedy =
    type === "string"
      ? "if it is a lock of SET NX PX, set dlock.honour-strings on the server; if it is data, choose another key"
      : "choose another key, the same for all clients";
  const found = type === undefined ? "something else" : `a ${type}`;
  return new LockError(`WRONGTYPE ${name}: the key holds ${found}, not a lock: ${remedy}`, name, cause);
}

/** Returns the type of the key, as TYPE names it; undefined if the user may not run TYPE. */
function* typeOf(key: Key): Steps<string | undefined> {
  try {
    return String(yield ["TYPE", key]);
  } catch (why) {
    if (errorWord(why)) return undefined;
    throw why;
  }
}
