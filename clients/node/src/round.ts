// One round of an acquisition from a quorum, with a token of its own: the votes, the wait in a queue, and the
// confirm phase. The rules are those of `crates/quorum`, which a model checker verifies.

import { now, validity } from "./clock.js";
import { errorWord, LockError, NoAnswerError, NoQuorumError } from "./errors.js";
import { MemberHolds, type Members } from "./members.js";
import { ANSWERS_TO_RELEASE, Owed, timeUntilExpired } from "./owed.js";
import { cancel, confirm, freshToken, release } from "./protocol.js";
import type { QueueChoice } from "./queue-choice.js";
import { fenceOf, type Request, send, tryAcquire, zeroIfReplaced } from "./requests.js";
import { type Answers, Ask, Owe, Sleep, type Steps } from "./steps.js";
import { Waiter } from "./waiter.js";
import { times } from "./waits.js";

// Once the member at which the client queues has granted, the round asks the other members this many times:
// the RELEASEs of the previous holder may still be in flight.
const TRIES = 12;
// Number of retries after which the round gives up if other clients wait in another queue. The client then
// moves to that queue.
const RETRIES_BEFORE_NEXT_QUEUE = 5;
// First and longest pause between these tries, ms.
const FIRST_PAUSE = 1;
const LONGEST_PAUSE = 32;
// Error words that a retry of the request would get again.
const FINAL_WORDS = ["ERR", "WRONGTYPE", "NOPERM", "NOAUTH", "WRONGPASS"];

/** Outcome of a round with a majority. */
export interface Won {
  readonly token: string;
  readonly fence: number | null;
  readonly validUntil: number;
  readonly holds: MemberHolds;
}

function isRefusal(answer: unknown): boolean {
  return answer === null || answer === "foreign";
}

export class Round {
  /** The answers to ACQUIRE by member: a fence, null, an error, or "foreign" if a lock of another library is
   * at the key. */
  answers: Answers = new Map();
  /** Whether the round failed although a majority granted the lock: the validity ended before the round did,
   * or no majority confirmed a fence. */
  isLate = false;
  readonly holds: MemberHolds;
  readonly token = freshToken();
  /** Run id of the server that gave each answer, by member. */
  readonly #servers: (string | undefined)[] = [];
  #fence: number | null = null;
  /** Index in `order` of the current queue: the queue in which the round waits, or whose waiters it does not
   * overtake. */
  #queueIndex = 0;
  #hasWaited = false;
  /** Whether the round had a majority, and gives it back because clients wait in the current queue. */
  #waitersAreAhead = false;

  constructor(
    private readonly members: Members,
    private readonly choice: QueueChoice,
    private readonly request: Request,
    private readonly fenced: boolean,
    /** Time limit of an answer, ms. */
    private readonly limit: number,
    /** The members in whose queues this round waits, or whose waiters it does not overtake. */
    private readonly order: readonly number[],
  ) {
    this.holds = new MemberHolds(members);
  }

  /** Returns the step that releases the token at every member that may have a hold or a queue position of it. The step
   * waits for the releases at the members that answered the round, so that the next round finds these members free. */
  takeBack(): Owe {
    const { members, request, token } = this;
    const expiresAfter = timeUntilExpired(request.lease);
    const owed = new Map<number, Owed>();
    for (const member of this.holds.asked) {
      if (this.#hasNothing(member)) continue;
      const sendRelease = () => zeroIfReplaced(members.ask(member, send(release(request.key, token))));
      const isSettled = () => this.holds.acquires(member).isEmpty;
      const answers = this.holds.acquires(member).hasOrphans ? ANSWERS_TO_RELEASE : 1;
      owed.set(member, new Owed(sendRelease, expiresAfter, answers, isSettled));
    }
    const awaited = [...owed].filter(([member]) => this.#hasAnsweredInTime(member));
    return new Owe(owed, () => awaited.every(([, { removed }]) => removed !== undefined));
  }

  /** Returns whether a member has refused the token, and no request for a queue position or without an answer can have
   * changed that. */
  #hasNothing(member: number): boolean {
    return !this.#hasWaited && this.isRefusedBy(member) && this.holds.acquires(member).isEmpty;
  }

  /** Returns whether a member answered before the round was decided. */
  #hasAnsweredInTime(member: number): boolean {
    return this.answers.has(member) && !(this.answers.get(member) instanceof NoAnswerError);
  }

  /** Asks all members that may vote. A majority counts only after the answer of the first member of the
   * order, where other clients queue. If that member refuses and may have waiters, the round gives the
   * majority back: a newcomer could otherwise overtake the whole queue by a majority of the other members. */
  *atOnce(): Steps<Won | null> {
    const since = now();
    if (!this.members.hasMajority()) return null;
    const voters = this.members.voters();
    const first = voters.find((member) => member === this.order[0]);
    yield* this.#ask(voters, first);
    if (this.grants() < this.members.majority) return null;
    if (first !== undefined && this.isRefusedBy(first)) {
      this.#waitersAreAhead = (yield* this.members.hasWaiters(this.request.key, first)) !== false;
      if (this.#waitersAreAhead) return null;
    }
    return yield* this.#win(since);
  }

  /** Asks the first reachable member of the order, and the other members once it has granted. The first
   * member grants the lock to one of several clients, and only that client asks the other members. */
  *inOrder(): Steps<Won | null> {
    for (; this.#queueIndex < this.order.length; this.#queueIndex += 1) {
      const queue = this.order[this.#queueIndex]!;
      const since = now();
      if (!this.members.mayVote(queue)) continue;
      yield* this.#ask([queue], queue);
      if (this.#isGrantedBy(queue)) return yield* this.#askOthers(since);
      if (this.isRefusedBy(queue)) return null;
    }
    return null;
  }

  /** Waits in the queue of the first reachable member of the order, and asks all members once that member has
   * granted. The grant after the wait does not count as a vote: the client does not know when the lease began,
   * and the lease may be almost over. So the member is asked again together with the others. This request
   * renews the lease, and the validity counts from just before it is sent. */
  *queued(end: number): Steps<Won | null> {
    const { members, request } = this;
    this.#hasWaited = true;
    for (; this.#queueIndex < this.order.length; this.#queueIndex += 1) {
      const queue = this.order[this.#queueIndex]!;
      if (!members.mayVote(queue)) continue;
      this.holds.asked.add(queue);
      const isLast = !this.order.slice(this.#queueIndex + 1).some((later) => members.mayVote(later));
      const unanswered = this.holds.acquires(queue);
      const waiter = new Waiter(members, this.choice, queue, request, this.token, unanswered, this.limit);
      const waited = yield* waiter.wait(end, isLast);
      if (waited === "granted") return yield* this.#askOthers(now(), end);
      this.#note(queue, waited === "left" ? null : waited);
      if (waited === "left") return null;
      // A token waits in one queue at a time, so the round gives up its position in this queue. It sends
      // CANCEL rather than RELEASE: this member may grant a later request of this round, and a RELEASE that
      // arrives after that would end the hold. The CANCEL is repeated until it is answered, or until the
      // position has expired by itself, after `times.keep`.
      const sendCancel = () => zeroIfReplaced(members.ask(queue, send(cancel(request.key, this.token))));
      const leave = new Owed(sendCancel, times.keep, 1);
      yield new Owe(new Map([[queue, leave]]), () => true);
    }
    return null;
  }

  /** Called once the lock is acquired, with the members whose grants do not count, and why. Returns whether the lock is
   * still acquired. */
  stillWins({ validUntil }: Won, without: Answers): boolean {
    for (const [member, why] of without) if (this.#isGrantedBy(member)) this.#note(member, why);
    this.isLate = now() >= validUntil;
    return this.grants() >= this.members.majority && !this.isLate;
  }

  /** Returns the member of the current queue; undefined if all queues of `order` failed. */
  queue(): number | undefined {
    return this.order[this.#queueIndex];
  }

  /** Returns the member whose queue this client joins first when it next waits for the lock; undefined if none
   * of these rules applies.
   *
   * 1. The next member of the order, if the member of the current queue refused the token: that queue does
   *    not move.
   * 2. A later member that refused the token: clients that cannot reach the current member may queue there.
   * 3. The current member again, because other clients may still queue there. This rule applies if the order
   *    omits members, and either this round has waited or an omitted member refused the token. */
  nextQueue(): number | undefined {
    const queue = this.queue();
    if (queue === undefined) return undefined;
    const later = this.order.slice(this.#queueIndex + 1);
    if (this.isRefusedBy(queue)) return later[0];
    const refusing = later.find((member) => this.isRefusedBy(member));
    if (refusing !== undefined) return refusing;
    const leftOut = this.members.all().filter((member) => !this.order.includes(member));
    return leftOut.some((member) => this.#hasWaited || this.isRefusedBy(member)) ? queue : undefined;
  }

  /** Returns whether enough members for a majority can vote. If so, the failure of a round means that
   * another client may hold the lock. Otherwise no client can acquire the lock now. */
  canMajorityVote(): boolean {
    const isAble = (member: number) => {
      if (!this.answers.has(member)) return this.members.mayVote(member);
      return this.#isGrantedBy(member) || this.isRefusedBy(member);
    };
    return this.members.all().filter(isAble).length >= this.members.majority;
  }

  /** Returns whether a majority of the members has granted or refused. */
  hasMajorityAnswered(): boolean {
    const hasVoted = (member: number) => this.#isGrantedBy(member) || this.isRefusedBy(member);
    return this.members.all().filter(hasVoted).length >= this.members.majority;
  }

  /** Returns whether a member may vote, and has not answered this round with an error. */
  isReachable(member: number): boolean {
    return this.members.mayVote(member) && !(this.answers.get(member) instanceof Error);
  }

  /** Returns an error if retries cannot get a majority: too many members call the request invalid, forbid it,
   * or have data at the key. Otherwise returns undefined. */
  finalError(): unknown {
    const errors = [...this.answers.values()].filter((answer) => FINAL_WORDS.includes(errorWord(answer)));
    if (this.members.all().length - errors.length >= this.members.majority) return undefined;
    const invalid = errors.find((error) => ["ERR", "WRONGTYPE"].includes(errorWord(error)));
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
    return isRefusal(this.answers.get(member));
  }

  /** A grant counts while the member's connection leads to the server that gave the grant. */
  #isGrantedBy(member: number): boolean {
    const isSame = this.#servers[member] === this.members.runId(member);
    return isSame && typeof this.answers.get(member) === "number";
  }

  #note(member: number, answer: unknown): void {
    this.answers.set(member, answer);
    this.#servers[member] = this.members.runId(member);
  }

  /** Called once the member of the current queue has granted. Asks the members that have not granted yet, up
   * to `TRIES` times. The validity counts from `since`. */
  *#askOthers(since: number, end = Number.POSITIVE_INFINITY): Steps<Won | null> {
    const { members } = this;
    let pause = FIRST_PAUSE;
    for (let tries = 0; tries < TRIES; tries++) {
      // If all connections broke during a wait, the servers of the other members are unknown.
      if (!members.hasMajority()) yield* members.identifyMembers(now());
      if (!members.hasMajority()) break;
      yield* this.#ask(members.voters().filter((member) => !this.#isGrantedBy(member)));
      const won = yield* this.#win(since);
      if (won !== null || this.isLate) return won;
      // If other clients wait in another queue, the round gives up early: this client and the head of that
      // queue each hold a part of the members, and keep each other from a majority.
      const next = this.#hasWaited ? this.nextQueue() : undefined;
      const hasAnotherQueue = next !== undefined && next !== this.queue();
      if (now() >= end || (hasAnotherQueue && tries >= RETRIES_BEFORE_NEXT_QUEUE)) break;
      yield new Sleep((0.5 + Math.random() / 2) * pause);
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
    return null;
  }

  /** Asks members for their votes. Returns once a majority has granted, or the answers show why none can:
   * another client may hold the lock, or too few members can vote. Also waits for the outcome of `first` if
   * given: its answer, or `NoAnswerError`. */
  *#ask(asked: readonly number[], first?: number): Steps<void> {
    const { members, request, holds } = this;
    for (const member of asked) {
      this.answers.delete(member);
      holds.asked.add(member);
    }
    const vote = function* (this: Round, member: number): Steps<unknown> {
      const acquire = tryAcquire(request, this.token, holds.acquires(member));
      const acquired = yield* members.ask(member, acquire);
      this.#servers[member] = members.runId(member);
      if (typeof acquired === "number") holds.noteConfirmed(member);
      return acquired;
    };
    const note = (answers: Answers) => {
      for (const [member, answer] of answers) this.answers.set(member, answer);
    };
    const enough = (answers: Answers) => {
      note(answers);
      if (first !== undefined && !answers.has(first)) return false;
      const grants = this.grants();
      const missing = asked.length - answers.size;
      if (grants >= members.majority) return true;
      if (grants + missing >= members.majority) return false;
      // This round cannot get a majority. Further answers may show whether another client can have one.
      return this.hasMajorityAnswered() || !this.canMajorityVote() || missing === 0;
    };
    const late = (member: number, answer: unknown) => this.#answeredLate(member, answer);
    note(yield new Ask(asked, vote.bind(this), enough, late));
  }

  /** Called with each answer to ACQUIRE that arrives after the votes were decided. If the round has a
   * majority, but the member of a later queue refuses, other clients may wait in that queue. In this case,
   * returns the steps that look for them. */
  #answeredLate(member: number, answer: unknown): Steps<void> | undefined {
    const hasWon = this.grants() >= this.members.majority && !this.#waitersAreAhead && !this.isLate;
    const isLaterQueue = this.order.indexOf(member) > this.#queueIndex;
    if (!hasWon || !isLaterQueue || !isRefusal(answer)) return undefined;
    return this.choice.lookForOthers(this.request, member, this.token);
  }

  /** Returns the outcome; null unless a majority has granted the lock and, for a fenced lock, confirmed one
   * fence before the validity ended. The validity counts from `since`, or from the confirm phase. */
  *#win(since: number): Steps<Won | null> {
    const { members } = this;
    if (this.grants() < members.majority) return null;
    let validFrom = since;
    if (this.fenced) {
      const confirmed = yield* this.#confirm();
      if (confirmed === null) {
        this.isLate = true;
        return null;
      }
      validFrom = confirmed;
    } else if (members.majority === 1) {
      this.#fence = this.answers.get(0) as number;
    }
    const validUntil = validFrom + validity(this.request.lease);
    this.isLate = now() >= validUntil;
    if (this.isLate) return null;
    return { token: this.token, fence: this.#fence, validUntil, holds: this.holds };
  }

  /** Sets one fence, the greatest that was granted, at a majority of the members: the confirm phase. CONFIRM
   * raises the fence of the hold at a member to this one; the reply is the fence that the hold then has.
   * Returns the time from which the validity counts; null if no majority confirms a fence. */
  *#confirm(): Steps<number | null> {
    const { members } = this;
    // If a phase does not confirm its fence, the next one tries a greater fence, or asks fewer members. After
    // one phase for each member and three more, the members will hardly agree any more.
    for (let phase = 0; phase < members.all().length + 3; phase++) {
      const counted = [...this.answers.keys()].filter((member) => this.#isGrantedBy(member));
      if (counted.length < members.majority) return null;
      const fence = Math.max(...counted.map((member) => this.answers.get(member) as number));
      const since = now();
      const confirmations = (answers: Answers) =>
        counted.filter((member) => answers.get(member) === fence && this.#isGrantedBy(member)).length;
      const enough = (answers: Answers) =>
        confirmations(answers) >= members.majority ||
        confirmations(answers) + counted.length - answers.size < members.majority;
      const answers: Answers = yield new Ask(counted, (member) => this.#confirmAt(member, fence), enough);
      if (confirmations(answers) >= members.majority) {
        this.#fence = fence;
        return since;
      }
      for (const [member, answer] of answers) {
        // The next phase tries the greatest fence in `this.answers`, and asks only members that have a fence
        // there. So it omits a member that failed, or that no longer has the hold (null). A member that calls
        // the fence too far ahead (FENCEAHEAD) keeps the fence that it granted.
        if (errorWord(answer) !== "FENCEAHEAD") this.answers.set(member, answer);
      }
      if ([...answers.values()].some((answer) => errorWord(answer) === "FENCEAHEAD"))
        this.#dropAhead(counted, fence);
    }
    return null;
  }

  *#confirmAt(member: number, fence: number): Steps<number | null> {
    const { key, lease } = this.request;
    const command = this.holds.leases(member).send(confirm(key, this.token, fence, lease), lease);
    return fenceOf(yield* this.members.ask(member, send(command)));
  }

  /** Drops the members that granted this fence or a greater one: their clocks are ahead of those of the
   * members that answered FENCEAHEAD. */
  #dropAhead(counted: readonly number[], fence: number): void {
    for (const member of counted) {
      if (this.#isGrantedBy(member) && (this.answers.get(member) as number) >= fence) {
        this.answers.set(member, new LockError("FENCEAHEAD its clock is ahead of the others'"));
      }
    }
  }
}
