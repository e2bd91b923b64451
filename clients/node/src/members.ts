// The members of a quorum: the identity of each member's server, the members that may vote, and their holds.
// A server votes once, even if the addresses of two members lead to it.

import { createHash } from "node:crypto";
import { now } from "./clock.js";
import { errorWord, LockError, NoAnswerError, NoQuorumError } from "./errors.js";
import { Holders } from "./holders.js";
import {
  firstWaiter,
  type HoldAges,
  holders,
  inspect,
  isClosed,
  type Key,
  runId,
  SERVER_INFO,
} from "./protocol.js";
import { reconnectionCheck, UnansweredLeases } from "./renewal.js";
import { acceptsDelay, type DelayServer, type Request, requireDelay, send } from "./requests.js";
import { type Answers, Ask, at, Shared, type Steps } from "./steps.js";

// First and longest pause before the client asks a member again for its unknown run id, ms.
const FIRST_PAUSE = 50;
const LONGEST_PAUSE = 2000;
// Length of the digest of the run ids, in hexadecimal digits.
const DIGEST_LENGTH = 8;
// An acquisition asks for missing run ids at most this many times in a row. Once may not suffice: connecting
// may take longer than the time limit of one answer.
const IDENTIFY_TRIES = 4;

/** What `Members` uses of the `Channel` of a member. */
export interface MemberChannel extends DelayServer {
  readonly isSilent: boolean;
  readonly isReady: boolean;
  /** Whether the client has been closed: no answer will arrive any more. */
  readonly isClosed: boolean;
}

/** Run id of a member's server, and the number of the connection on which the server sent it. */
interface Identity {
  readonly runId: string;
  readonly connection: number;
}

/** The address of a member leads to the server of another member. */
class SameServerError extends LockError {
  constructor(address: string, other: string) {
    super(`two members of the quorum are the same server, ${other}: name ${address} once`);
  }
}

/** State of a member that may not vote. */
interface Missing {
  /** Time of the next request for its run id, on the clock of `now()`. */
  askAt: number;
  /** Pause after that request, ms. */
  pause: number;
  /** The reason why it may not vote. */
  why?: Error;
}

export class Members {
  readonly majority: number;
  /** Called after each reply to INFO. */
  onIdentified: (() => void) | undefined;
  readonly #all: readonly number[];
  readonly #identities = new Map<number, Identity>();
  readonly #missing = new Map<number, Missing>();
  /** The request for the run id, by member: acquisitions that begin at the same moment share it. */
  readonly #infos: readonly Shared[];

  constructor(private readonly channels: readonly MemberChannel[]) {
    this.majority = Math.floor(channels.length / 2) + 1;
    this.#all = [...channels.keys()];
    this.#infos = channels.map(() => new Shared(() => send(SERVER_INFO)));
  }

  all(): readonly number[] {
    return this.#all;
  }

  address(member: number): string {
    return this.channels[member]!.address;
  }

  /** Returns the run id of a member's server; undefined if it is unknown for the present connection. */
  runId(member: number): string | undefined {
    const identity = this.#identities.get(member);
    return identity?.connection === this.channels[member]!.connections ? identity.runId : undefined;
  }

  /** Returns the last known run id, even of an earlier connection. */
  lastRunId(member: number): string | undefined {
    return this.#identities.get(member)?.runId;
  }

  /** Returns a function that returns whether the client has reconnected to the member since this call. After
   * a reconnect, some clients resend each unanswered command. So a RELEASE that finds no hold may be the
   * second copy, after the first copy has ended the hold. */
  reconnectionCheck(member: number): () => boolean {
    return reconnectionCheck(this.channels[member]!);
  }

  isSilent(member: number): boolean {
    return this.channels[member]!.isSilent;
  }

  /** Returns the members that may vote: their run ids are known, and they are not silent. So no
   * acquisition waits for a member that is known not to answer. */
  voters(): readonly number[] {
    return this.all().filter((member) => this.mayVote(member));
  }

  mayVote(member: number): boolean {
    return this.runId(member) !== undefined && !this.isSilent(member);
  }

  hasMajority(): boolean {
    return this.voters().length >= this.majority;
  }

  /** Returns true if the members that can vote, now or soon, are no majority. A member cannot vote if its
   * client is closed, or has no permission to run INFO. */
  areUnusable(): boolean {
    const isUsable = ({ isClosed }: MemberChannel, member: number) =>
      !isClosed && !["NOPERM", "NOAUTH", "WRONGPASS"].includes(errorWord(this.#missing.get(member)?.why));
    return this.channels.filter(isUsable).length < this.majority;
  }

  /** Returns the first hexadecimal digits of a digest of the last known run ids; undefined until each member
   * has sent its run id once. Clients with the same members compute the same digest, in every language. */
  digest(): string | undefined {
    const ids = this.all().map((member) => this.lastRunId(member));
    if (ids.includes(undefined)) return undefined;
    return createHash("sha1").update(ids.sort().join(",")).digest("hex").slice(0, DIGEST_LENGTH);
  }

  /** Returns a new record of the leases that unanswered requests of one hold may still set at one member. */
  unansweredLeases(member: number): UnansweredLeases {
    return new UnansweredLeases(this.channels[member]!);
  }

  /** Asks for the run ids of the members that may not vote. Waits for every member that is not known to be
   * silent. Waits for silent members only until a majority may vote: from then on they are asked in the
   * background, at growing intervals of up to `LONGEST_PAUSE`. After `end`, asks only once. Throws a `LockError`
   * if two members are the same server. */
  *identifyMembers(end: number): Steps<void> {
    let duplicate: unknown;
    for (let tries = 0; tries < IDENTIFY_TRIES && (tries === 0 || now() < end); tries++) {
      const nonVoters = this.all().filter((member) => !this.mayVote(member));
      const awaited = nonVoters.filter((member) => !this.isSilent(member));
      const isDue = (member: number) => now() >= (this.#missing.get(member)?.askAt ?? 0);
      const asked = this.hasMajority()
        ? nonVoters.filter((member) => awaited.includes(member) || isDue(member))
        : nonVoters;
      const enough = (answers: Answers) =>
        this.hasMajority() && awaited.every((member) => answers.has(member));
      for (const member of asked) this.#scheduleNextRequest(member);
      if (asked.length > 0) {
        const answers: Answers = yield new Ask(asked, (member) => this.identify(member), enough);
        duplicate ??= [...answers.values()].find((answer) => answer instanceof SameServerError);
      }
      if (this.hasMajority()) break;
    }
    if (duplicate !== undefined) throw duplicate;
  }

  /** Throws a `LockError` if a member that may vote refuses RELEASE .. DELAY with the request's `atLeast`. Asks those that
   * are not known to accept it. Returns the members that have not accepted it, each with an error. */
  *requireDelay(request: Request): Steps<Answers> {
    if (request.atLeast === 0) return new Map();
    const asked = this.voters();
    const answers: Answers = yield new Ask(
      asked,
      (member) => requireDelay(request, this.channels[member]!),
      (found) => found.size === asked.length,
    );
    for (const answer of answers.values())
      if (answer instanceof LockError && !(answer instanceof NoAnswerError)) throw answer;
    const without = this.all().filter((member) => !acceptsDelay(request, this.channels[member]!));
    const why = (member: number) =>
      answers.get(member) ?? new NoAnswerError(`${this.address(member)}: no answer about atLeast yet`);
    return new Map(without.map((member) => [member, why(member)]));
  }

  #scheduleNextRequest(member: number): void {
    const { pause = FIRST_PAUSE, ...rest } = this.#missing.get(member) ?? {};
    this.#missing.set(member, { ...rest, askAt: now() + pause, pause: Math.min(pause * 2, LONGEST_PAUSE) });
  }

  /** Asks a member for its run id. Throws if the member may not vote. As with `ask`, the caller must carry the steps out
   * at this member. */
  *identify(member: number): Steps<void> {
    let reply: unknown;
    try {
      reply = yield this.#infos[member]!;
    } catch (why) {
      reply = why;
    }
    const why = this.record(member, reply);
    if (why !== undefined) throw why;
  }

  /** Records the reply to INFO, which may be an error. Returns the reason why the member may not vote;
   * undefined if it may. */
  record(member: number, reply: unknown): Error | undefined {
    const known = this.runId(member);
    if (known !== undefined && known === runId(reply)) return undefined;
    const why = this.#recordRunId(member, reply);
    const missing = this.#missing.get(member) ?? { askAt: now(), pause: FIRST_PAUSE };
    if (why === undefined) this.#missing.delete(member);
    else this.#missing.set(member, { ...missing, why });
    this.onIdentified?.();
    return why;
  }

  #recordRunId(member: number, reply: unknown): Error | undefined {
    if (reply instanceof NoAnswerError) return reply;
    // The only member of a quorum needs no run id: no other member can be the same server.
    const id = this.channels.length === 1 ? (runId(reply) ?? "the only one") : runId(reply);
    if (id === undefined) {
      this.#identities.delete(member);
      const text = `${errorWord(reply)} cannot tell whether it is the same server as another member: let its user run INFO`;
      return new LockError(text.trim(), undefined, reply);
    }
    const other = this.all().find((other) => other !== member && this.runId(other) === id);
    if (other !== undefined) {
      this.#identities.delete(member);
      return new SameServerError(this.address(member), this.address(other));
    }
    this.#identities.set(member, { runId: id, connection: this.channels[member]!.connections });
    return undefined;
  }

  /** Yields `steps`, after asking for the member's run id if it is unknown. Throws `NoAnswerError` if the
   * client has reconnected before the reply: another server may have sent it. The yielded steps do not name
   * the member, so the caller must carry them out at this member: by `Ask`, `Begin` or `at` (steps.ts). */
  *ask<T>(member: number, steps: Steps<T>): Steps<T> {
    if (this.runId(member) === undefined || !this.channels[member]!.isReady) yield* this.identify(member);
    const server = this.runId(member);
    let answer: T;
    try {
      answer = yield* steps;
    } catch (why) {
      if (!(why instanceof NoAnswerError)) this.#checkServer(member, server);
      throw why;
    }
    this.#checkServer(member, server);
    return answer;
  }

  #checkServer(member: number, server: string | undefined): void {
    if (server !== undefined && this.runId(member) === server) return;
    throw new NoAnswerError(`${this.address(member)}: connected anew, so another server may have answered`);
  }

  /** Asks all members. Returns the majority's answer once no further answer can change it, or all answers
   * (for an error message) if they do not decide. An answer from before a reconnect counts only if the
   * member's run id is still the same. */
  *vote(ask: (member: number) => Steps<boolean>): Steps<boolean | Answers> {
    const servers = new Map<number, string | undefined>();
    const asking = function* (this: Members, member: number): Steps<boolean> {
      const answer = yield* ask(member);
      servers.set(member, this.runId(member));
      return answer;
    };
    const counted = (answers: Answers) =>
      this.all().map((member) => {
        const answer = answers.get(member);
        const isSame = servers.get(member) === this.runId(member);
        return typeof answer === "boolean" && isSame ? answer : undefined;
      });
    const decide = (answers: Answers) => this.decide(counted(answers));
    const answers: Answers = yield new Ask(
      this.all(),
      asking.bind(this),
      (found) => decide(found) !== undefined,
    );
    return decide(answers) ?? answers;
  }

  /** Returns true if a majority votes true, and false if no majority can any more; undefined while missing
   * votes could decide. `votes` has one entry for each member. */
  decide(votes: readonly (boolean | undefined)[]): boolean | undefined {
    if (votes.filter((vote) => vote === true).length >= this.majority) return true;
    return votes.length - votes.filter((vote) => vote === false).length < this.majority ? false : undefined;
  }

  /** Returns the holders of the key at one member; undefined if the member did not show them. */
  *holdersAt(key: Key, member: number): Steps<HoldAges | undefined> {
    try {
      return holders(yield* at(member, send(inspect(key))));
    } catch (why) {
      // No answer, or no right to ask.
      if (why instanceof NoAnswerError || errorWord(why)) return undefined;
      throw why;
    }
  }

  /** Returns the holders of the key at each member. They are unknown at a member that did not show them. */
  *holders(key: Key): Steps<Holders> {
    const voters = this.voters();
    const all = (found: Answers) => found.size === voters.length;
    const answers: Answers = yield new Ask(voters, () => send(inspect(key)), all);
    return new Holders(
      this.all().map((member) => holders(answers.get(member))),
      this.majority,
      [...answers.values()].filter(isClosed).length,
    );
  }

  /** Returns whether a client waits in the queue of a member; undefined if that is unknown. */
  *hasWaiters(key: Key, member: number): Steps<boolean | undefined> {
    try {
      const queue = yield* at(member, send(firstWaiter(key)));
      return (queue as readonly unknown[]).length > 0;
    } catch (why) {
      // No answer, or no right to ask.
      if (why instanceof NoAnswerError || errorWord(why)) return undefined;
      throw why;
    }
  }

  /** Returns the error for a vote that these answers do not decide: the error of a member that calls the request
   * invalid, if the other members are no majority; otherwise a `NoQuorumError`. */
  undecided(answers: Answers, name: string): unknown {
    const invalid = [...answers.values()].filter((answer) =>
      ["ERR", "WRONGTYPE"].includes(errorWord(answer)),
    );
    if (this.channels.length - invalid.length < this.majority) return invalid[0];
    return new NoQuorumError(`${name}: too few members answered: ${this.report(answers)}`, name);
  }

  /** Describes the state of each member, for an error message. */
  report(answers: Answers): string {
    const state = (member: number) => {
      const answer = answers.has(member) ? answers.get(member) : this.#missing.get(member)?.why;
      if (typeof answer === "number") return "granted";
      if (answer === true) return "held";
      // "foreign": a lock of another library is at the key.
      if (answer === null || answer === "foreign") return "taken";
      if (answer === false) return "not held";
      if (answer === undefined && answers.has(member)) return "answered";
      if (answer instanceof Error) return answer.message;
      return this.isSilent(member) ? "silent" : "not asked, or no answer yet";
    };
    return this.channels
      .map(({ address }, member) => {
        // The errors of a connection begin with the address.
        const text = state(member);
        return text.startsWith(`${address}: `) ? text : `${address}: ${text}`;
      })
      .join("; ");
  }
}

/** The members that may have the hold of one token, and the last confirmation of the hold by each. */
export class MemberHolds {
  /** Members that may have received an ACQUIRE with the token. No other member can have the hold. */
  readonly asked = new Set<number>();
  /** By member: run id of the server that last confirmed the hold, and the time, on the clock of `now()`. */
  readonly #confirmed: (readonly [runId: string | undefined, when: number])[] = [];
  readonly #leases: UnansweredLeases[] = [];
  readonly #acquires: UnansweredLeases[] = [];

  constructor(private readonly members: Members) {}

  /** The unanswered CONFIRMs and EXTENDs of a member, which may still shorten the lease. */
  leases(member: number): UnansweredLeases {
    this.#leases[member] ??= this.members.unansweredLeases(member);
    return this.#leases[member];
  }

  /** The unanswered ACQUIREs of a member. They shorten no lease, but may arrive after a release. */
  acquires(member: number): UnansweredLeases {
    this.#acquires[member] ??= this.members.unansweredLeases(member);
    return this.#acquires[member];
  }

  /** Records that a member has confirmed the hold. */
  noteConfirmed(member: number): void {
    this.#confirmed[member] = [this.members.runId(member), now()];
  }

  /** Call it when a member has answered that it does not have the hold. Returns true if the member has
   * forgotten the hold, and may be asked for it again: it never confirmed the hold, another server has taken
   * its place, or its last confirmation is older than the lease, in ms. Otherwise another client has ended
   * the hold there. That is recorded: later calls return false, too, even after the lease. */
  hasForgotten(member: number, lease: number): boolean {
    const confirmed = this.#confirmed[member];
    if (confirmed === undefined) return true;
    const [before, when] = confirmed;
    const present = this.members.runId(member);
    const isAnother = before !== undefined && present !== undefined && before !== present;
    if (isAnother || now() >= when + lease) return true;
    // A confirmation at an infinite time is never older than the lease.
    this.#confirmed[member] = [before, Number.POSITIVE_INFINITY];
    return false;
  }
}
