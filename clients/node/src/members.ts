// The members of a quorum: who they are, which of them may vote, and who holds what.

import { now } from "./clock.js";
import { Contended } from "./contended.js";
import { LockError, NoAnswerError, word } from "./errors.js";
import { holders, inspect, type Key, waiters } from "./protocol.js";
import { Lookout } from "./queue.js";
import { type Answers, Ask, type Steps, To } from "./steps.js";

// The first and the longest pause before one that did not answer is asked again who it is, ms.
const FIRST_PAUSE = 50;
const LONGEST_PAUSE = 2000;
// A connection may take so many times as long as an answer.
const CONNECT_FACTOR = 4;

/** How a member can be reached: its channel. */
export interface Reach {
  readonly address: string;
  readonly silent: boolean;
  /** Whether there will be no answers any more. */
  readonly closed: boolean;
  readonly connections: number;
}

/** The tokens that hold a key, with the ms since each grant. */
type Tokens = ReadonlyMap<string, number>;

/** A key of some request. */
interface Named {
  readonly key: Key;
  readonly name: string;
}

/** The members, and what is known of them. */
export class Members {
  readonly majority: number;
  readonly contended = new Contended();
  readonly #lookouts = new Map<string, Lookout>();
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

  /** Whether a majority has been closed by its user: there is nothing to wait for. */
  areClosed(): boolean {
    return this.reach.filter(({ closed }) => !closed).length < this.majority;
  }

  // In which queue the clients meet. Each finds it for itself: the first one it can reach, or a later one
  // where it has met others.

  /** The order in which the members' queues are tried. */
  order(name: string): readonly number[] {
    const order = this.#commonOrder();
    const noted = this.#noted(name);
    return noted === undefined ? order : order.slice(order.indexOf(noted));
  }

  /** Notes that others queue there, and takes along those who wait for it elsewhere: one by one they would
   * take long to leave a queue, and the heads of two queues keep each other from a majority. From a later
   * queue nobody goes back to an earlier one while both are in use. */
  noteQueue(name: string, queue: number): void {
    const order = this.#commonOrder();
    const noted = this.#noted(name);
    if (noted !== undefined && order.indexOf(noted) > order.indexOf(queue)) return;
    this.contended.noteQueue(name, queue);
    for (const member of this.all()) {
      if (member !== queue) this.#lookouts.get(`${member} ${name}`)?.sendAway();
    }
  }

  #noted(name: string): number | undefined {
    const queue = this.contended.queue(name);
    return queue !== undefined && this.voters().includes(queue) ? queue : undefined;
  }

  /** The same for all clients, however the addresses are spelled. Those that may not vote come last. */
  #commonOrder(): readonly number[] {
    const voters = this.voters();
    const rank = (member: number) => {
      const [runId] = this.#known.get(member) ?? [];
      const known = runId ?? `unknown ${this.reach[member]!.address}`;
      return `${voters.includes(member) ? 0 : 1} ${known}`;
    };
    return [...this.all()].sort((one, other) => (rank(one) < rank(other) ? -1 : 1));
  }

  /** The lookout of a queue, which all its waits share. */
  lookout(queue: number, { key, name }: Named): Lookout {
    const id = `${queue} ${name}`;
    const lookout = this.#lookouts.get(id) ?? new Lookout(this, queue, key);
    this.#lookouts.set(id, lookout);
    return lookout;
  }

  forgetLookout(queue: number, { name }: Named): void {
    this.#lookouts.delete(`${queue} ${name}`);
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

  /** Who holds the key, by member; undefined where that is not known. */
  *holders(key: Key): Steps<readonly (Tokens | undefined)[]> {
    const voters = this.voters();
    const answers: Answers = yield new Ask(voters, inspect(key), (found) => found.size === voters.length);
    return this.all().map((member) => holders(answers.get(member)));
  }

  /** Whether one holder has a majority. */
  hasHolder(holders: readonly (Tokens | undefined)[]): boolean {
    const has = (token: string) => holders.filter((there) => there?.has(token)).length;
    return holders.some((there) => [...(there?.keys() ?? [])].some((token) => has(token) >= this.majority));
  }

  /** Whether some of the holders at `queue` hold a majority, or may do so: if not, nobody releases what they
   * have there, and its queue does not move. */
  mayMove(queue: number, holders: readonly (Tokens | undefined)[]): boolean {
    const mayHave = (token: string) => holders.filter((there) => there?.has(token) ?? true).length;
    const there = holders[queue];
    return !there?.size || [...there.keys()].some((token) => mayHave(token) >= this.majority);
  }

  /** The holds at a member that are none of a majority, as far as is known. */
  *parts(key: Key, at: number): Steps<Tokens> {
    const holders = yield* this.holders(key);
    const votes = (token: string) => holders.filter((there) => there?.has(token)).length;
    return new Map([...(holders[at] ?? [])].filter(([token]) => votes(token) < this.majority));
  }

  /** Whether somebody waits there; undefined where that is not known. */
  *somebodyWaits(key: Key, at: number): Steps<boolean | undefined> {
    try {
      const queue: readonly unknown[] = yield new To(at, waiters(key));
      return queue.length > 0;
    } catch (why) {
      // Without an answer, or the right to ask.
      if (why instanceof NoAnswerError || word(why)) return undefined;
      throw why;
    }
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
