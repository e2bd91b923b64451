// The members of a quorum: who they are, which of them may vote, and who holds what.

import { now } from "./clock.js";
import { Contended } from "./contended.js";
import { LockError, NoAnswerError } from "./errors.js";
import { Lookouts } from "./lookout.js";
import { holders, inspect, type Key } from "./protocol.js";
import { type Answers, Ask, type Steps } from "./steps.js";

// The first and the longest pause before one that did not answer is asked again who it is, ms.
const FIRST_PAUSE = 50;
const LONGEST_PAUSE = 2000;
// A connection may take so many times as long as an answer.
const CONNECT_FACTOR = 4;

/** How a member can be reached: its channel. */
export interface Reach {
  readonly address: string;
  readonly silent: boolean;
  readonly connections: number;
}

/** The tokens that hold a key, by member. */
export type Tokens = readonly (readonly string[] | undefined)[];

/** The members, and what is known of them. */
export class Members {
  readonly majority: number;
  readonly contended = new Contended();
  readonly lookouts = new Lookouts(this);
  /** Who each said it is, and over which connection. */
  readonly #known = new Map<number, readonly [runId: string, connection: number]>();
  /** When those that may not vote are asked again, and how long after that; why they did not answer. */
  readonly #missing = new Map<number, { at: number; pause: number; why?: NoAnswerError }>();
  /** One that is the same server as another. */
  #double: number | undefined;

  constructor(private readonly reach: readonly Reach[]) {
    this.majority = Math.floor(reach.length / 2) + 1;
  }

  all(): readonly number[] {
    return [...this.reach.keys()];
  }

  /** Who a member is; undefined where it has not said so over the connection that it has now. */
  runId(member: number): string | undefined {
    const [runId, connection] = this.#known.get(member) ?? [];
    return connection === this.reach[member]!.connections ? runId : undefined;
  }

  isSilent(member: number): boolean {
    return this.reach[member]!.silent;
  }

  /** Those that may vote: it is known who they are, and they answer. Two addresses of one server would vote
   * twice; and for one that does not answer nobody waits a second time. */
  voters(): readonly number[] {
    return this.all().filter((member) => this.runId(member) !== undefined && !this.isSilent(member));
  }

  hasMajority(): boolean {
    return this.voters().length >= this.majority;
  }

  /** Whether one holder has a majority; `holders` by member, undefined where they are not known. */
  hasHolder(holders: Tokens): boolean {
    const has = (token: string) => holders.filter((there) => there?.includes(token)).length;
    return holders.flatMap((there) => there ?? []).some((token) => has(token) >= this.majority);
  }

  /** Whether some of the holders at `queue` hold a majority, or may do so: if not, nobody releases what they
   * have there, and its queue does not move. */
  mayMove(queue: number, holders: Tokens): boolean {
    const mayHave = (token: string) => holders.filter((there) => there?.includes(token) ?? true).length;
    const there = holders[queue];
    return !there?.length || there.some((token) => mayHave(token) >= this.majority);
  }

  /** The order in which everybody tries their queues, however the addresses are spelled. Those that may not
   * vote come last; it begins where others are known to queue. */
  order(name: string): readonly number[] {
    const voters = this.voters();
    const rank = (member: number) => {
      const [runId] = this.#known.get(member) ?? [];
      const known = runId ?? `unknown ${this.reach[member]!.address}`;
      return `${voters.includes(member) ? 0 : 1} ${known}`;
    };
    const order = [...this.all()].sort((one, other) => (rank(one) < rank(other) ? -1 : 1));
    const queue = this.contended.queue(name);
    return queue !== undefined && voters.includes(queue) ? order.slice(order.indexOf(queue)) : order;
  }

  /** Finds the members that may vote. One that is not known to be missing is waited for, once; the others
   * only while they are needed for a majority, and else asked in the background. */
  *tellApart(end: number): Steps<void> {
    for (let tries = 0; tries < CONNECT_FACTOR && (tries === 0 || now() < end); tries++) {
      const others = this.all().filter((member) => this.runId(member) === undefined || this.isSilent(member));
      const awaited = others.filter((member) => !this.isSilent(member));
      const isDue = (member: number) => now() >= (this.#missing.get(member)?.at ?? 0);
      const asked = this.hasMajority() ? others.filter((it) => awaited.includes(it) || isDue(it)) : others;
      const enough = (answers: Answers) =>
        this.hasMajority() && awaited.every((member) => answers.has(member));
      for (const member of asked) this.#postpone(member);
      if (asked.length > 0) yield new Ask(asked, ["INFO", "server"], enough, this.heard);
      if (this.hasMajority()) break;
    }
    const double = this.#double;
    this.#double = undefined;
    if (double !== undefined) {
      const { address } = this.reach[double]!;
      throw new LockError(`two members of the quorum are the same server: name ${address} once`);
    }
  }

  #postpone(member: number): void {
    const { pause = FIRST_PAUSE, ...rest } = this.#missing.get(member) ?? {};
    this.#missing.set(member, { ...rest, at: now() + pause, pause: Math.min(pause * 2, LONGEST_PAUSE) });
  }

  /** Who a member says it is. */
  readonly heard = (member: number, answer: unknown): undefined => {
    if (answer instanceof NoAnswerError) {
      const missing = this.#missing.get(member);
      if (missing !== undefined) missing.why = answer;
      return;
    }
    this.#missing.delete(member);
    // Without the right to ask, nobody can tell.
    const runId = /^run_id:(\w+)/m.exec(String(answer))?.[1] ?? `unknown ${member}`;
    if (this.all().some((other) => other !== member && this.runId(other) === runId)) {
      this.#known.delete(member);
      this.#double = member;
    } else {
      this.#known.set(member, [runId, this.reach[member]!.connections]);
    }
  };

  /** Who holds the key. */
  *holders(key: Key): Steps<Tokens> {
    const voters = this.voters();
    const answers: Answers = yield new Ask(voters, inspect(key), (found) => found.size === voters.length);
    return this.all().map((member) => holders(answers.get(member)));
  }

  report(answers: Answers): string {
    const said = (member: number) => {
      const answer = answers.has(member) ? answers.get(member) : this.#missing.get(member)?.why;
      if (typeof answer === "number") return "granted";
      if (answer === null) return "taken";
      if (answer instanceof Error) return answer.message;
      return this.isSilent(member) ? "silent" : "not asked, or no answer yet";
    };
    return this.reach.map(({ address }, member) => `${address}: ${said(member)}`).join("; ");
  }
}

/** The members that hold one token's hold, as far as is known. */
export class Holders {
  /** Those that were asked for it: no other can hold it. */
  readonly asked = new Set<number>();
  /** Who each was, and when it said so. */
  readonly #noted = new Map<number, readonly [runId: string | undefined, when: number]>();

  constructor(private readonly members: Members) {}

  note(member: number): void {
    this.#noted.set(member, [this.members.runId(member), now()]);
  }

  /** Whether a member that does not hold it has forgotten it: it never did, is another server since, or was
   * not reached for a lease. Otherwise somebody has taken it away there, and it stays so. */
  hasForgotten(member: number, lease: number): boolean {
    const noted = this.#noted.get(member);
    if (noted === undefined) return true;
    const [was, when] = noted;
    const is = this.members.runId(member);
    const isAnother = was !== undefined && is !== undefined && was !== is;
    if (isAnother || now() >= when + lease) return true;
    this.#noted.set(member, [was, Number.POSITIVE_INFINITY]);
    return false;
  }
}
