// The members of a quorum: which server each of them is, which of them may vote, and what they hold. A server
// votes once, even if the addresses of two members lead to it.

import { createHash } from "node:crypto";
import { now } from "./clock.js";
import { LockError, NoAnswerError, word } from "./errors.js";
import { firstWaiter, holders, inspect, type Key, runId, SERVER_INFO, type Tokens } from "./protocol.js";
import { reconnection, UnansweredLeases } from "./renewal.js";
import { send } from "./requests.js";
import { type Answers, Ask, at, type Steps } from "./steps.js";

// First and longest pause before a member that did not answer is asked again which server it is, ms.
const FIRST_PAUSE = 50;
const LONGEST_PAUSE = 2000;
// Length of the digest in the library name, in hexadecimal digits.
const DIGEST_LENGTH = 8;
// A connection may take this many times as long as an answer.
const CONNECT_FACTOR = 4;

/** How a member can be reached: its channel. */
export interface Reach {
  readonly address: string;
  readonly isSilent: boolean;
  readonly isReady: boolean;
  /** Whether no answer will arrive any more. */
  readonly isClosed: boolean;
  readonly connections: number;
}

/** The server of a member, and the connection on which it was asked. */
interface Identity {
  readonly runId: string;
  readonly connection: number;
}

/** A member that may not vote: when to ask it again which server it is, the pause after that, and the
 * reason. */
interface Missing {
  at: number;
  pause: number;
  why?: Error;
}

export class Members {
  readonly majority: number;
  /** Called when the run id of a member has become known. */
  onIdentified: (() => void) | undefined;
  readonly #identities = new Map<number, Identity>();
  readonly #missing = new Map<number, Missing>();
  /** A member that was found to be the same server as another. */
  #duplicate: number | undefined;

  constructor(private readonly reach: readonly Reach[]) {
    this.majority = Math.floor(reach.length / 2) + 1;
  }

  all(): readonly number[] {
    return [...this.reach.keys()];
  }

  address(member: number): string {
    return this.reach[member]!.address;
  }

  /** Returns which server a member is; undefined if that is unknown for its present connection. */
  runId(member: number): string | undefined {
    const identity = this.#identities.get(member);
    return identity?.connection === this.reach[member]!.connections ? identity.runId : undefined;
  }

  /** Returns the last known run id, even of an earlier connection. */
  lastRunId(member: number): string | undefined {
    return this.#identities.get(member)?.runId;
  }

  /** Returns a function that says whether the member has been connected anew since. Some clients then send a
   * command again that had no answer, and a second RELEASE does not find what the first one has ended. */
  reconnection(member: number): () => boolean {
    return reconnection(this.reach[member]!);
  }

  isSilent(member: number): boolean {
    return this.reach[member]!.isSilent;
  }

  /** Returns the members that may vote: it is known which server each of them is, and they answer. No
   * acquisition waits twice for a member that does not answer. */
  voters(): readonly number[] {
    return this.all().filter((member) => this.mayVote(member));
  }

  mayVote(member: number): boolean {
    return this.runId(member) !== undefined && !this.isSilent(member);
  }

  hasMajority(): boolean {
    return this.voters().length >= this.majority;
  }

  /** Whether waiting cannot bring a majority: the user has closed its clients, or their users have no right
   * to run INFO. */
  areUnusable(): boolean {
    const isUsable = ({ isClosed }: Reach, member: number) =>
      !isClosed && !["NOPERM", "NOAUTH", "WRONGPASS"].includes(word(this.#missing.get(member)?.why));
    return this.reach.filter(isUsable).length < this.majority;
  }

  /** Returns the start of a digest of all run ids, which is equal for all clients that name the same members,
   * in every language; undefined while a run id is unknown. */
  digest(): string | undefined {
    const ids = this.all().map((member) => this.runId(member));
    if (ids.includes(undefined)) return undefined;
    return createHash("sha1").update(ids.sort().join(",")).digest("hex").slice(0, DIGEST_LENGTH);
  }

  /** Returns how the leases of one hold at one member are tracked. */
  unansweredLeases(member: number): UnansweredLeases {
    return new UnansweredLeases(this.reach[member]!);
  }

  /** Finds out which servers the members are. Waits for members that are not known to be silent, and for
   * silent ones while they are needed for a majority; otherwise those are asked in the background, less and
   * less often. */
  *identifyMembers(end: number): Steps<void> {
    this.#duplicate = undefined;
    for (let tries = 0; tries < CONNECT_FACTOR && (tries === 0 || now() < end); tries++) {
      const others = this.all().filter((member) => !this.mayVote(member));
      const awaited = others.filter((member) => !this.isSilent(member));
      const isDue = (member: number) => now() >= (this.#missing.get(member)?.at ?? 0);
      const asked = this.hasMajority() ? others.filter((it) => awaited.includes(it) || isDue(it)) : others;
      const enough = (answers: Answers) =>
        this.hasMajority() && awaited.every((member) => answers.has(member));
      for (const member of asked) this.#postpone(member);
      if (asked.length > 0) yield new Ask(asked, (member) => this.#identify(member), enough);
      if (this.hasMajority()) break;
    }
    const duplicate = this.#duplicate as number | undefined;
    if (duplicate !== undefined) {
      throw new LockError(
        `two members of the quorum are the same server: name ${this.address(duplicate)} once`,
      );
    }
  }

  #postpone(member: number): void {
    const { pause = FIRST_PAUSE, ...rest } = this.#missing.get(member) ?? {};
    this.#missing.set(member, { ...rest, at: now() + pause, pause: Math.min(pause * 2, LONGEST_PAUSE) });
  }

  /** Asks a member which server it is. Throws if the member did not say so. */
  *#identify(member: number): Steps<void> {
    let reply: unknown;
    try {
      reply = yield SERVER_INFO;
    } catch (why) {
      reply = why;
    }
    const why = this.record(member, reply);
    if (why !== undefined) throw why;
  }

  /** Records the reply to INFO. Returns the reason why the member may not vote, if there is one. */
  record(member: number, reply: unknown): Error | undefined {
    const why = this.#recordRunId(member, reply);
    const missing = this.#missing.get(member) ?? { at: now(), pause: FIRST_PAUSE };
    if (why === undefined) this.#missing.delete(member);
    else this.#missing.set(member, { ...missing, why });
    this.onIdentified?.();
    return why;
  }

  #recordRunId(member: number, reply: unknown): Error | undefined {
    if (reply instanceof NoAnswerError) return reply;
    const id = this.reach.length === 1 ? (runId(reply) ?? "the only one") : runId(reply);
    if (id === undefined) {
      this.#identities.delete(member);
      const text = `${word(reply)} cannot tell which server it is, and whether it votes twice: let its user run INFO`;
      return new LockError(text.trim(), undefined, reply);
    }
    const other = this.all().find((other) => other !== member && this.runId(other) === id);
    if (other !== undefined) {
      this.#identities.delete(member);
      this.#duplicate = member;
      return new LockError(`it is the same server as ${this.address(other)}`);
    }
    this.#identities.set(member, { runId: id, connection: this.reach[member]!.connections });
    return undefined;
  }

  /** Carries out `steps` at a member, once it is known which server answers there. A reply over a new
   * connection does not count: another server may have sent it. To be carried out at the member. */
  *ask<T>(member: number, steps: Steps<T>): Steps<T> {
    if (this.runId(member) === undefined || !this.reach[member]!.isReady) yield* this.#identify(member);
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

  /** Asks all members. Returns the answer of a majority, once it is certain. The answer of a member counts as
   * long as its connection leads to the server that gave it. */
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

  /** Returns what the votes of all members decide; undefined while that is uncertain. */
  decide(votes: readonly (boolean | undefined)[]): boolean | undefined {
    if (votes.filter((vote) => vote === true).length >= this.majority) return true;
    return votes.length - votes.filter((vote) => vote === false).length < this.majority ? false : undefined;
  }

  /** Returns the holders of the key, by member; undefined where they are unknown. */
  *holders(key: Key): Steps<readonly (Tokens | undefined)[]> {
    const voters = this.voters();
    const all = (found: Answers) => found.size === voters.length;
    const answers: Answers = yield new Ask(voters, () => send(inspect(key)), all);
    return this.all().map((member) => holders(answers.get(member)));
  }

  /** Whether one holder has a majority. */
  hasHolder(holders: readonly (Tokens | undefined)[]): boolean {
    const votes = (token: string) => holders.filter((there) => there?.has(token)).length;
    return holders.some((there) => [...(there?.keys() ?? [])].some((token) => votes(token) >= this.majority));
  }

  /** Whether a holder at `queue` holds a majority, or may hold one. If not, none of them will release the
   * lock there, and the queue does not move. */
  mayMove(queue: number, holders: readonly (Tokens | undefined)[]): boolean {
    const votes = (token: string) => holders.filter((there) => there?.has(token) ?? true).length;
    const there = holders[queue];
    return !there?.size || [...there.keys()].some((token) => votes(token) >= this.majority);
  }

  /** Returns the partial holds at a member: those that are not known to belong to a majority. */
  *partialHolds(key: Key, at: number): Steps<Tokens> {
    const holders = yield* this.holders(key);
    const votes = (token: string) => holders.filter((there) => there?.has(token)).length;
    return new Map([...(holders[at] ?? [])].filter(([token]) => votes(token) < this.majority));
  }

  /** Whether a client waits in the queue of a member; undefined if that is unknown. */
  *hasWaiters(key: Key, member: number): Steps<boolean | undefined> {
    try {
      const queue = yield* at(member, send(firstWaiter(key)));
      return (queue as readonly unknown[]).length > 0;
    } catch (why) {
      // No answer, or no right to ask.
      if (why instanceof NoAnswerError || word(why)) return undefined;
      throw why;
    }
  }

  /** Describes the state of each member, for an error message. */
  report(answers: Answers): string {
    const state = (member: number) => {
      const answer = answers.has(member) ? answers.get(member) : this.#missing.get(member)?.why;
      if (typeof answer === "number" || answer === true) return "granted";
      if (answer === null || answer === "foreign") return "taken";
      if (answer === false) return "not held";
      if (answer instanceof Error) return answer.message;
      return this.isSilent(member) ? "silent" : "not asked, or no answer yet";
    };
    return this.reach.map(({ address }, member) => `${address}: ${state(member)}`).join("; ");
  }
}

/** The members that one token has asked for a hold, and what is known of the hold there. */
export class MemberHolds {
  /** Members that were asked: no other one can hold it. */
  readonly asked = new Set<number>();
  /** The server that last confirmed the hold, by member, and when. */
  readonly #confirmed = new Map<number, readonly [runId: string | undefined, when: number]>();
  readonly #leases = new Map<number, UnansweredLeases>();

  constructor(private readonly members: Members) {}

  /** Records that a member has confirmed the hold. */
  note(member: number): void {
    this.#confirmed.set(member, [this.members.runId(member), now()]);
  }

  leases(member: number): UnansweredLeases {
    const leases = this.#leases.get(member) ?? this.members.unansweredLeases(member);
    this.#leases.set(member, leases);
    return leases;
  }

  /** Whether a member that does not hold it has forgotten it: it never confirmed the hold, is another server
   * since, or was not reached for a lease. Otherwise another client has ended the hold there, and it stays
   * ended. */
  hasForgotten(member: number, lease: number): boolean {
    const confirmed = this.#confirmed.get(member);
    if (confirmed === undefined) return true;
    const [before, when] = confirmed;
    const present = this.members.runId(member);
    const isAnother = before !== undefined && present !== undefined && before !== present;
    if (isAnother || now() >= when + lease) return true;
    this.#confirmed.set(member, [before, Number.POSITIVE_INFINITY]);
    return false;
  }
}
