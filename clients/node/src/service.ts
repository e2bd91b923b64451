// The servers of a lock: a single one, or a majority of several.

import { Channel } from "./channel.js";
import { now } from "./clock.js";
import { LockError } from "./errors.js";
import { type Client, notAClient } from "./links.js";
import { Members } from "./members.js";
import { checkNames } from "./options.js";
import { confirm, type Key, withPrefix } from "./protocol.js";
import { QueueChoice } from "./queue-choice.js";
import { QuorumAttempt } from "./quorum-attempt.js";
import { QuorumHold } from "./quorum-hold.js";
import type { Holder, Inspection } from "./reading.js";
import {
  type Acquisition,
  fenceOf,
  firstHolder,
  type Granted,
  isFree,
  isLocked,
  type Request,
  requireDelay,
  stateOf,
} from "./requests.js";
import type { Servers } from "./run.js";
import { SingleAttempt, SingleHold } from "./single.js";
import { type Answers, Ask, type Steps } from "./steps.js";
import { times } from "./waits.js";

// Name of this library in CLIENT LIST. `dlock doctor` compares the names of all clients.
const LIBRARY = "dlock-client";

/** A holder that servers show, and whether a majority of them does. */
export interface ShownHolder {
  readonly holder: Holder | undefined;
  readonly byMajority: boolean;
}

export interface Service extends Servers {
  attempt(request: Request, fenced: boolean): Acquisition;
  /** Throws unless the server, or a majority of a quorum, accepts RELEASE .. DELAY with the request's `atLeast`. */
  requireDelay(request: Request): Steps<void>;
  /** Returns a hold that another object acquired. */
  adopted(request: Request, token: string, validUntil: number, fence: number | null): Granted;
  /** Returns the fence of the hold of a token, null if it has none, and undefined if there is no such hold. */
  fenceOf(request: Request, token: string): Steps<number | null | undefined>;
  /** Returns the state of the lock, with one holder at most; null if it is free, or if no server shows it. */
  stateOf(key: Key): Steps<Inspection | null>;
  /** Returns the holder that most servers show first, and whether a majority does; no holder if they show none. Throws if
   * no majority answers. */
  holderOf(key: Key, name: string): Steps<ShownHolder>;
  /** Returns whether the lock has no holder, no waiter and no delay. */
  isFree(key: Key, name: string): Steps<boolean>;
  isLocked(key: Key, name: string): Steps<boolean>;
}

export class Single implements Service {
  readonly channels: readonly [Channel];

  constructor(client: Client) {
    this.channels = [Channel.of(client)];
    this.channels[0].announceDefault(LIBRARY);
  }

  attempt(request: Request): Acquisition {
    return new SingleAttempt(request, this.channels[0]);
  }

  requireDelay(request: Request): Steps<void> {
    return requireDelay(request, this.channels[0]);
  }

  adopted(request: Request, token: string, validUntil: number, fence: number | null): Granted {
    return new SingleHold(request, this.channels[0], token, fence, validUntil, now());
  }

  *fenceOf({ key, lease }: Request, token: string): Steps<number | undefined> {
    // A fence of 1 raises nothing: CONFIRM returns the fence of the hold.
    return fenceOf(yield confirm(key, token, 1, lease)) ?? undefined;
  }

  stateOf(key: Key): Steps<Inspection | null> {
    return stateOf(key);
  }

  *holderOf(key: Key): Steps<ShownHolder> {
    return { holder: yield* firstHolder(key), byMajority: true };
  }

  isFree(key: Key): Steps<boolean> {
    return isFree(key);
  }

  isLocked(key: Key, name: string): Steps<boolean> {
    return isLocked(key, name);
  }
}

export interface QuorumOptions {
  /** Time limit of one member's answer, in ms, 1 or more. Default: 250. While a majority answers, the
   * client does not wait for a member that missed the limit, until the member answers again. */
  nodeTimeout?: number | undefined;
}

/** A quorum of independent masters, three or five, with one client each. All programs that use a lock must
 * name the same masters. */
export class Quorum implements Service {
  readonly channels: readonly Channel[];
  /** @internal Time limit of an answer, ms. */
  readonly limit: number;
  readonly #members: Members;
  readonly #choice: QueueChoice;

  /** Throws a `TypeError` if `clients` is empty or contains anything but clients. Throws a `RangeError` if
   * `nodeTimeout` is not a number, or less than 1. */
  constructor(clients: Iterable<Client>, options: QuorumOptions = {}) {
    checkNames(options, ["nodeTimeout"]);
    const { nodeTimeout = times.nodeTimeout } = options;
    if (typeof nodeTimeout !== "number" || !(nodeTimeout >= 1)) {
      throw new RangeError(`nodeTimeout: ${nodeTimeout}; it must be a number of milliseconds, 1 or more`);
    }
    if (typeof clients === "string" || typeof clients?.[Symbol.iterator] !== "function") {
      throw new TypeError("a quorum needs a list of clients: new Quorum([one, two, three])");
    }
    this.limit = nodeTimeout;
    this.channels = [...clients].map((client) => Channel.of(client));
    if (this.channels.length === 0) throw new TypeError("a quorum needs at least one member");
    this.#members = new Members(this.channels);
    this.#choice = new QueueChoice(this.#members);
    this.#members.onIdentified = () => this.#announce();
    this.#announce();
  }

  /** Sets the library name of the members' connections, with the digest of the run ids once it is known. */
  #announce(): void {
    const size = this.channels.length;
    const digest = this.#members.digest();
    const members = digest === undefined ? `q${size}` : `q${size}-${digest}`;
    for (const channel of this.channels) channel.announce(size === 1 ? LIBRARY : `${LIBRARY}(${members})`);
  }

  /** @internal */
  attempt(request: Request, fenced: boolean): Acquisition {
    if (request.mode.includes("PERMITS")) {
      throw new TypeError("permits need a single server: majorities cannot count them");
    }
    return new QuorumAttempt(this.#members, this.#choice, request, fenced, this.limit);
  }

  /** @internal */
  *requireDelay(request: Request): Steps<void> {
    if (request.atLeast === 0) return;
    const members = this.#members;
    yield* members.identifyMembers(Number.POSITIVE_INFINITY);
    const without = yield* members.requireDelay(request);
    if (members.all().length - without.size >= members.majority) return;
    throw members.undecided(
      new Map(members.all().map((member) => [member, without.get(member)])),
      request.name,
    );
  }

  /** @internal */
  adopted(request: Request, token: string, validUntil: number, _fence: number | null): Granted {
    return QuorumHold.adopted(this.#members, request, token, validUntil);
  }

  /** @internal */
  // biome-ignore lint/correctness/useYield: the extension of the hold shows whether it exists
  *fenceOf(): Steps<null> {
    return null;
  }

  /** @internal */
  *stateOf(key: Key): Steps<Inspection | null> {
    const states = (answers: Answers) =>
      [...answers.values()].filter((state) => state && !(state instanceof Error)) as Inspection[];
    const withHolder = (answers: Answers) => states(answers).find(({ holders }) => holders.length > 0);
    const answers: Answers = yield new Ask(
      this.#members.all(),
      () => stateOf(key),
      (found) => withHolder(found) !== undefined,
    );
    const longestClosed = states(answers).sort((one, other) => other.delay - one.delay)[0];
    return withHolder(answers) ?? longestClosed ?? null;
  }

  /** @internal */
  *holderOf(key: Key, name: string): Steps<ShownHolder> {
    const { majority } = this.#members;
    const shown = (answers: Answers) =>
      [...answers.values()].filter((answer) => !(answer instanceof Error)) as (Holder | undefined)[];
    const mostShown = (answers: Answers) => {
      const holders = shown(answers).filter((holder) => holder !== undefined);
      const count = ({ token }: Holder) => holders.filter((other) => other.token === token).length;
      const [holder] = holders.sort((one, other) => count(other) - count(one));
      return { holder, byMajority: holder !== undefined && count(holder) >= majority };
    };
    const answers: Answers = yield new Ask(
      this.#members.all(),
      (member) => this.#members.ask(member, firstHolder(key)),
      (found) => mostShown(found).byMajority,
    );
    if (shown(answers).length >= majority) return mostShown(answers);
    const held = [...answers].map(
      ([member, answer]) => [member, answer instanceof Error ? answer : answer !== undefined] as const,
    );
    throw this.#members.undecided(new Map(held), name);
  }

  /** @internal */
  *isFree(key: Key, name: string): Steps<boolean> {
    const free = yield* this.#members.vote((member) => this.#members.ask(member, isFree(key)));
    if (typeof free === "boolean") return free;
    throw this.#members.undecided(free, name);
  }

  /** @internal */
  *isLocked(key: Key, name: string): Steps<boolean> {
    const locked = yield* this.#members.vote((member) => this.#members.ask(member, isLocked(key, name)));
    if (typeof locked === "boolean") return locked;
    throw this.#members.undecided(locked, name);
  }
}

/** Returns the service for the `client` argument of a lock. Throws a `TypeError` if it is not a client. */
export function serviceFor(client: Client | Quorum): Service {
  if (client instanceof Quorum) return client;
  if (Array.isArray(client)) throw notAClient(client);
  return new Single(client);
}

/** Returns the key with the `keyPrefix` of the clients. Throws a `LockError` if the members' prefixes
 * differ. */
export function prefixed(service: Service, key: Key): Key {
  const prefixes = new Set(service.channels.map((channel) => channel.link.prefix));
  if (prefixes.size > 1) {
    throw new LockError("the members' clients have different key prefixes: give them one");
  }
  const [prefix = ""] = prefixes;
  return withPrefix(prefix, key);
}
