// Whom a lock asks: a single server, or a majority of several.

import { type Acquisition, Attempt, type Granted, type Request } from "./attempt.js";
import { Channel } from "./channel.js";
import { LockError, NoQuorumError, word } from "./errors.js";
import { Extension } from "./extension.js";
import type { Client } from "./links.js";
import { Holders, Members } from "./members.js";
import { type Args, extend, holds, type Key, pttl, release } from "./protocol.js";
import { QuorumAttempt } from "./quorum.js";
import { OwedRelease, orWrongType, type Renewal } from "./renewal.js";
import type { Where } from "./run.js";
import { type Answers, Ask, type Heard, Owe, type Steps } from "./steps.js";

export interface Service extends Where {
  attempt(request: Request, fenced: boolean): Acquisition;
  /** A hold that was acquired elsewhere. */
  adopted(token: string, validUntil: number): Granted;
  /** How to set the lease: whether the token holds the lock. */
  extension(request: Request, granted: Granted): (hold: Renewal, lease: number) => Steps<boolean>;
  holds(key: Key, token: string): Steps<boolean>;
  locked(key: Key): Steps<boolean>;
  /** Whether it ended a hold; undefined where one that had no answer may have done so. What has no answer goes
   * on in the background for as long as a hold can last. */
  release(key: Key, granted: Granted, hold: Renewal): Steps<boolean | undefined>;
}

export class Single implements Service {
  readonly channels: readonly Channel[];

  constructor(client: Client) {
    this.channels = [Channel.of(client)];
  }

  attempt(request: Request): Acquisition {
    return new Attempt(request, this.channels[0]!);
  }

  adopted(token: string, validUntil: number): Granted {
    return { token, fence: null, validUntil };
  }

  extension({ key }: Request, { token }: Granted) {
    return function* (_: Renewal, lease: number): Steps<boolean> {
      return (yield* orWrongType(extend(key, token, lease), 0)) > 0;
    };
  }

  *holds(key: Key, token: string): Steps<boolean> {
    return (yield* orWrongType(holds(key, token), 0)) > 0;
  }

  *locked(key: Key): Steps<boolean> {
    // A key of another type is a lock of `SET NX PX`, held by a stranger.
    return (yield* orWrongType(pttl(key), 0)) !== -2;
  }

  *release(key: Key, { token }: Granted, { lease }: Renewal): Steps<boolean | undefined> {
    const isAnew = reconnection(this.channels[0]!);
    try {
      return (yield* orWrongType(release(key, token), 0)) > 0 || (isAnew() ? undefined : false);
    } catch (why) {
      // A server that refuses to write keeps the hold.
      const owed = new OwedRelease(key, token, lease);
      yield new Owe(new Map([[0, owed]]), () => owed.ended !== undefined);
      throw why;
    }
  }
}

export interface QuorumOptions {
  /** How long an answer of one member may take, in milliseconds: 250. One that is silent for longer is not
   * waited for while a majority answers. */
  nodeTimeout?: number | undefined;
}

/** Independent masters, one client each: three or five. Everybody must name the same ones. */
export class Quorum implements Service {
  readonly channels: readonly Channel[];
  /** @internal */
  readonly limit: number;
  readonly #members: Members;

  constructor(clients: Iterable<Client>, { nodeTimeout = 250 }: QuorumOptions = {}) {
    if (typeof nodeTimeout !== "number" || !(nodeTimeout >= 1)) {
      throw new RangeError(`nodeTimeout: ${nodeTimeout}; it must be a number of milliseconds, 1 or more`);
    }
    this.limit = nodeTimeout;
    this.channels = [...clients].map((client) => Channel.of(client));
    if (this.channels.length === 0) throw new TypeError("a quorum needs at least one member");
    this.#members = new Members(this.channels);
  }

  attempt(request: Request, fenced: boolean): Acquisition {
    if (request.terms.includes("PERMITS")) {
      throw new TypeError("permits need a single server: majorities cannot count them");
    }
    return new QuorumAttempt(this.#members, request, fenced, this.limit);
  }

  adopted(token: string, validUntil: number): Granted {
    const holders = new Holders(this.#members);
    for (const member of this.#members.all()) holders.asked.add(member);
    return { token, fence: null, validUntil, holders, adopted: true };
  }

  extension(request: Request, granted: Granted) {
    const decided = (command: Args, heard?: Heard) => this.#decided(command, (answer) => answer === 1, heard);
    // Whoever has it elsewhere may release it, while this asked members for it again.
    if (granted.adopted) {
      return (_: Renewal, lease: number) => decided(extend(request.key, granted.token, lease));
    }
    const extension = new Extension(this.#members, request, granted, decided);
    return (hold: Renewal, lease: number) => extension.ask(hold, lease);
  }

  holds(key: Key, token: string): Steps<boolean> {
    return this.#decided(holds(key, token), (answer) => answer > 0);
  }

  locked(key: Key): Steps<boolean> {
    return this.#decided(pttl(key), (answer) => answer !== -2);
  }

  *release(key: Key, { token, holders }: Granted, { lease, releases }: Renewal): Steps<boolean | undefined> {
    const asked = [...holders!.asked];
    const owed = new Map(asked.map((member) => [member, new OwedRelease(key, token, lease, releases)]));
    const isAnew = this.channels.map(reconnection);
    const ended = (member: number, surely: boolean) => {
      const release = owed.get(member);
      // Nothing to end where nothing was asked for.
      if (release === undefined) return false;
      if (release.ended === undefined) return undefined;
      return release.ended > 0 || (!surely && (release.unanswered || isAnew[member]!()));
    };
    const released = (surely = false) =>
      this.#majority(this.#members.all().map((member) => ended(member, surely)));
    yield new Owe(owed, () => released() !== undefined);
    const answer = released();
    if (answer === undefined) {
      throw new NoQuorumError("The release is not confirmed yet: it goes on in the background");
    }
    return released(true) === true || (answer ? undefined : false);
  }

  /** What the votes come to once that is certain. */
  #majority(votes: readonly (boolean | undefined)[]): boolean | undefined {
    const { majority } = this.#members;
    if (votes.filter((vote) => vote === true).length >= majority) return true;
    return votes.length - votes.filter((vote) => vote === false).length < majority ? false : undefined;
  }

  *#decided(command: Args, yes: (answer: number) => boolean, heard?: Heard): Steps<boolean> {
    const all = this.#members.all();
    const vote = (answer: unknown) => {
      if (typeof answer === "number") return yes(answer);
      return word(answer) === "WRONGTYPE" ? false : undefined;
    };
    const decide = (answers: Answers) => this.#majority(all.map((member) => vote(answers.get(member))));
    const answers: Answers = yield new Ask(all, command, (found) => decide(found) !== undefined, heard);
    const decided = decide(answers);
    if (decided === undefined) {
      throw new NoQuorumError(`Too few masters answered: ${this.#members.report(answers)}`);
    }
    return decided;
  }
}

/** Whether the client has connected anew since. Some then send again what had no answer, and a RELEASE may
 * not find what the first one has ended. */
function reconnection(channel: Channel): () => boolean {
  const { connections } = channel;
  return () => channel.connections !== connections;
}

/** The key, as the client would send it. */
export function prefixed(service: Service, key: Key): Key {
  const prefixes = new Set(service.channels.map((channel) => channel.link.prefix));
  if (prefixes.size > 1)
    throw new LockError("the members' clients have different key prefixes: give them one");
  const [prefix = ""] = prefixes;
  return typeof key === "string" ? prefix + key : Buffer.concat([Buffer.from(prefix), key]);
}
