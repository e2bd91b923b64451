// One round of an acquisition from a quorum, with a token of its own: the votes, the queue, the confirm
// phase. The rules are those of the Rust client, which a model checker has searched (`crates/quorum`).

import { now, validity } from "./clock.js";
import { LockError, NoAnswerError, NoQuorumError, word } from "./errors.js";
import { MemberHolds, type Members } from "./members.js";
import { Owed } from "./owed.js";
import { cancel, confirm, freshToken, release } from "./protocol.js";
import type { QueueChoice } from "./queue-choice.js";
import { fenceOf, MAX_LATE, orWrongType, type Request, send, tryAcquire } from "./requests.js";
import { type Answers, Ask, Owe, Sleep, type Steps } from "./steps.js";
import { Waiter } from "./waiter.js";
import { times } from "./waits.js";

// A client whose turn has come asks the other members this many times: their holds may be about to be
// released. Fewer times if there is another queue to go to.
const TRIES = 12;
const BRIEF_TRIES = 5;
// First and longest pause between these tries, ms.
const FIRST_PAUSE = 1;
const LONGEST_PAUSE = 32;
// Error words that waiting does not change.
const FINAL_WORDS = ["ERR", "WRONGTYPE", "NOPERM", "NOAUTH", "WRONGPASS"];

/** A majority, with its token. */
export interface Won {
  readonly token: string;
  readonly fence: number | null;
  readonly validUntil: number;
  readonly holds: MemberHolds;
}

export class Round {
  /** The answers to ACQUIRE by member: a fence, null, "foreign" or an error. */
  answers: Answers = new Map();
  readonly holds: MemberHolds;
  readonly token = freshToken();
  /** The server that gave each answer. */
  readonly #servers = new Map<number, string | undefined>();
  /** Members that have answered, even after the round was decided. */
  readonly #settled = new Set<number>();
  #fence: number | null = null;
  /** The queue that decides the turn: an index of the order. */
  #queue = 0;
  #hasWaited = false;
  /** Whether it has a majority, and leaves the lock to the waiters ahead. */
  #isBehind = false;
  #owed = new Map<number, Owed>();

  constructor(
    private readonly members: Members,
    private readonly choice: QueueChoice,
    private readonly request: Request,
    private readonly fenced: boolean,
    /** Time limit of an answer, ms. */
    private readonly limit: number,
    /** The members in whose queues it waits, or whose queues it respects. */
    private readonly order: readonly number[],
    /** Whether an earlier round may have left something at a member. A wait has no owner there: it would wait
     * for itself, which the server would report as a deadlock. */
    private readonly isClean: (member: number) => boolean = () => true,
  ) {
    this.holds = new MemberHolds(members);
  }

  /** Releases everything that it has asked for. Waits for the members that have answered, so that the next
   * round finds them free. */
  owe(): Owe {
    const { members, request, token } = this;
    const lasts = Math.max(request.lease, times.keep) + times.keep;
    for (const member of this.holds.asked) {
      const ask = () => orWrongType(members.ask(member, send(release(request.key, token))), 0);
      // Twice: a server may read an ACQUIRE without an answer after the first RELEASE, from another
      // connection.
      this.#owed.set(member, new Owed(ask, lasts, 2));
    }
    const answered = [...this.holds.asked].filter((member) => this.#hasAnswered(member));
    return new Owe(this.#owed, () => answered.every((member) => this.#owed.get(member)!.ended !== undefined));
  }

  /** Whether nothing of this round can be left at a member: it has answered the request, and confirmed the
   * release. */
  isTakenBackAt(member: number): boolean {
    if (!this.holds.asked.has(member)) return true;
    return this.#settled.has(member) && this.#owed.get(member)?.ended !== undefined;
  }

  #hasAnswered(member: number): boolean {
    return this.answers.has(member) && !(this.answers.get(member) instanceof NoAnswerError);
  }

  /** Asks all members that may vote. The first of the order, where other clients queue, must answer before a
   * majority counts. If it refuses and a client waits there, the majority is given back: newcomers would
   * overtake the queue by a majority of the other members. */
  *atOnce(): Steps<Won | null> {
    const since = now();
    if (!this.members.hasMajority()) return null;
    const voters = this.members.voters();
    const first = voters.find((member) => member === this.order[0]);
    yield* this.#ask(voters, first);
    if (this.grants() < this.members.majority) return null;
    if (first !== undefined && this.isRefusedBy(first)) {
      this.#isBehind = (yield* this.members.hasWaiters(this.request.key, first)) !== false;
      if (this.#isBehind) return null;
    }
    return yield* this.#win(since);
  }

  /** Asks the first reachable member of the order, and the others once it has granted: of several clients,
   * one at a time gets so far. */
  *inOrder(): Steps<Won | null> {
    for (; this.#queue < this.order.length; this.#queue += 1) {
      const queue = this.order[this.#queue]!;
      const since = now();
      if (!this.members.mayVote(queue)) continue;
      yield* this.#ask([queue], queue);
      if (this.#isGrantedBy(queue)) return yield* this.#takeTurn(since);
      if (this.isRefusedBy(queue)) return null;
    }
    return null;
  }

  /** Waits in the queue of the first reachable member of the order, and asks all members once it has granted.
   * The grant itself is no vote, as it is unknown when it began: asked again together with the others, the
   * member renews the lease, and validity counts from then. */
  *queued(end: number): Steps<Won | null> {
    const { members, request } = this;
    this.#hasWaited = true;
    for (; this.#queue < this.order.length; this.#queue += 1) {
      const queue = this.order[this.#queue]!;
      if (!members.mayVote(queue)) continue;
      this.holds.asked.add(queue);
      const isLast = !this.order.slice(this.#queue + 1).some((later) => members.mayVote(later));
      const owned = this.isClean(queue) ? request : { ...request, owner: undefined };
      const waiter = new Waiter(members, this.choice, queue, owned, this.token, this.limit);
      const waited = yield* this.#settling(queue, waiter.wait(end, isLast));
      if (waited === "granted") return yield* this.#takeTurn(now(), end);
      this.#note(queue, waited === "left" ? null : waited);
      if (waited === "left") return null;
      // Not a RELEASE, which would end a hold that this member grants later. A token waits in one queue at a
      // time.
      const leave = new Owed(() => orWrongType(send(cancel(request.key, this.token)), 0), times.keep, 1);
      yield new Owe(new Map([[queue, leave]]), () => true);
    }
    return null;
  }

  /** Returns the member whose queue decides the turn. */
  queue(): number | undefined {
    return this.order[this.#queue];
  }

  /** Returns the queue to go to next, if it is not the first one of the common order: the next one if the
   * present queue refuses, for it does not move; a later member that refuses, for other clients queue there
   * and cannot come here; the present queue, if earlier members are out of reach. */
  nextQueue(): number | undefined {
    const queue = this.queue();
    if (queue === undefined) return undefined;
    const later = this.order.slice(this.#queue + 1);
    if (this.isRefusedBy(queue)) return later[0];
    const refusing = later.find((member) => this.isRefusedBy(member));
    if (refusing !== undefined) return refusing;
    const earlier = this.members.all().filter((member) => !this.order.includes(member));
    return earlier.some((member) => this.#hasWaited || this.isRefusedBy(member)) ? queue : undefined;
  }

  /** Whether other clients have the lock. Otherwise too few members could vote, or the answers came too
   * late. */
  isTaken(): boolean {
    if (this.grants() >= this.members.majority) return this.#isBehind;
    const isAble = (member: number) => {
      if (!this.answers.has(member)) return this.members.mayVote(member);
      return this.#isGrantedBy(member) || this.isRefusedBy(member);
    };
    return this.members.all().filter(isAble).length >= this.members.majority;
  }

  /** Whether waiting in a member's queue makes sense. */
  isReachable(member: number): boolean {
    return this.members.mayVote(member) && !(this.answers.get(member) instanceof Error);
  }

  /** Returns the error if so many members call the request invalid, or forbid it, that waiting cannot bring a
   * majority. */
  finalError(): unknown {
    const errors = [...this.answers.values()].filter((answer) => FINAL_WORDS.includes(word(answer)));
    if (this.members.all().length - errors.length >= this.members.majority) return undefined;
    const invalid = errors.find((error) => ["ERR", "WRONGTYPE"].includes(word(error)));
    return invalid ?? this.noQuorum();
  }

  noQuorum(): NoQuorumError {
    const { name } = this.request;
    return new NoQuorumError(`${name}: no majority can grant: ${this.members.report(this.answers)}`, name);
  }

  grants(): number {
    return [...this.answers.keys()].filter((member) => this.#isGrantedBy(member)).length;
  }

  isRefusedBy(member: number): boolean {
    const answer = this.answers.get(member);
    return answer === null || answer === "foreign";
  }

  /** A grant counts as long as the member's connection leads to the server that gave it. */
  #isGrantedBy(member: number): boolean {
    const isSame = this.#servers.get(member) === this.members.runId(member);
    return isSame && typeof this.answers.get(member) === "number";
  }

  #note(member: number, answer: unknown): void {
    this.answers.set(member, answer);
    this.#servers.set(member, this.members.runId(member));
  }

  /** Carries out `steps`, and records whether the member has answered them. */
  *#settling<T>(member: number, steps: Steps<T>): Steps<T> {
    try {
      const answer = yield* steps;
      if (!(answer instanceof NoAnswerError)) this.#settled.add(member);
      return answer;
    } catch (why) {
      if (word(why) || (why instanceof LockError && !(why instanceof NoAnswerError)))
        this.#settled.add(member);
      throw why;
    }
  }

  /** Its turn has come: asks the other members. */
  *#takeTurn(since: number, end = Number.POSITIVE_INFINITY): Steps<Won | null> {
    const { members } = this;
    let pause = FIRST_PAUSE;
    for (let tries = 0; tries < TRIES; tries++) {
      if (!members.hasMajority()) break;
      yield* this.#ask(members.voters().filter((member) => !this.#isGrantedBy(member)));
      if (this.grants() >= members.majority) return yield* this.#win(since);
      // Two clients that each kept a partial hold until a missing member is back would keep all others from a
      // majority.
      const next = this.#hasWaited ? this.nextQueue() : undefined;
      const hasAnotherQueue = next !== undefined && next !== this.queue();
      if (now() >= end || (hasAnotherQueue && tries >= BRIEF_TRIES)) break;
      yield new Sleep((0.5 + Math.random() / 2) * pause);
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
    return null;
  }

  /** Asks members for their votes until these decide, and `first` has answered. */
  *#ask(asked: readonly number[], first?: number): Steps<void> {
    const { members, request, holds } = this;
    const before = new Map(this.answers);
    for (const member of asked) {
      before.delete(member);
      holds.asked.add(member);
    }
    const vote = function* (this: Round, member: number): Steps<unknown> {
      const acquired = yield* this.#settling(member, members.ask(member, tryAcquire(request, this.token)));
      this.#servers.set(member, members.runId(member));
      if (typeof acquired === "number") holds.note(member);
      return acquired;
    };
    const enough = (answers: Answers) => {
      this.answers = new Map([...before, ...answers]);
      if (first !== undefined && !answers.has(first)) return false;
      const grants = this.grants();
      const missing = asked.length - answers.size;
      return grants >= members.majority || grants + missing < members.majority;
    };
    const answers: Answers = yield new Ask(asked, vote.bind(this), enough);
    this.answers = new Map([...before, ...answers]);
  }

  *#win(since: number): Steps<Won | null> {
    const { members } = this;
    if (this.grants() < members.majority) return null;
    let from = since;
    if (this.fenced) {
      const confirmed = yield* this.#confirm();
      if (confirmed === null) return null;
      from = confirmed;
    } else if (members.majority === 1) {
      this.#fence = this.answers.get(0) as number;
    }
    const validUntil = from + validity(this.request.lease);
    if (now() >= validUntil) return null;
    return { token: this.token, fence: this.#fence, validUntil, holds: this.holds };
  }

  /** Brings a majority of the members that granted to one fence. Returns the time from which validity
   * counts. */
  *#confirm(): Steps<number | null> {
    const { members } = this;
    for (let phase = 0; phase < MAX_LATE + members.all().length; phase++) {
      const counted = [...this.answers.keys()].filter((member) => this.#isGrantedBy(member));
      if (counted.length < members.majority) return null;
      const fence = Math.max(...counted.map((member) => this.answers.get(member) as number));
      const since = now();
      const yes = (answers: Answers) =>
        counted.filter((member) => answers.get(member) === fence && this.#isGrantedBy(member)).length;
      const enough = (answers: Answers) =>
        yes(answers) >= members.majority || yes(answers) + counted.length - answers.size < members.majority;
      const answers: Answers = yield new Ask(counted, (member) => this.#confirmAt(member, fence), enough);
      if (yes(answers) >= members.majority) {
        this.#fence = fence;
        return since;
      }
      for (const [member, answer] of answers) {
        // A greater fence is tried next. A hold that is gone does not count.
        if (typeof answer === "number" || answer === null) this.answers.set(member, answer);
      }
      if ([...answers.values()].some((answer) => word(answer) === "FENCEAHEAD"))
        this.#dropAhead(counted, fence);
    }
    return null;
  }

  *#confirmAt(member: number, fence: number): Steps<number | null> {
    const { key, lease } = this.request;
    const command = this.holds.leases(member).send(confirm(key, this.token, fence, lease), lease);
    return fenceOf(yield* this.members.ask(member, send(command)));
  }

  /** Goes on without the members that granted a fence which is too far ahead for the others. */
  #dropAhead(counted: readonly number[], fence: number): void {
    for (const member of counted) {
      if (this.#isGrantedBy(member) && (this.answers.get(member) as number) >= fence) {
        this.answers.set(member, new LockError("FENCEAHEAD its clock is ahead of the others'"));
      }
    }
  }
}
