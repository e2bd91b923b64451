// One acquisition from a quorum: a sequence of rounds. After a failed round the client waits in a queue, or
// for a random time. Safety does not depend on this file: `round.ts` decides when the lock is held, and a wrong
// decision here only costs time.

import { now } from "./clock.js";
import { LateError } from "./errors.js";
import type { Members } from "./members.js";
import type { QueueChoice } from "./queue-choice.js";
import { QuorumHold } from "./quorum-hold.js";
import { type Acquisition, type Granted, MAX_LATE, type Request } from "./requests.js";
import { Round, type Won } from "./round.js";
import { Begin, type Owe, Sleep, type Steps } from "./steps.js";

// After split votes (no client has a majority), an acquisition that does not wait tries again this many
// times.
const MAX_SPLIT_VOTES = 20;
// First and longest pause between two rounds, ms.
const FIRST_PAUSE = 50;
const LONGEST_PAUSE = 2000;

/** How a round begins: see `atOnce`, `inOrder` and `queued` of `Round`. */
type Start = "at once" | "in order" | "queued";

export class QuorumAttempt implements Acquisition {
  #round: Round | undefined;
  /** Failed rounds that may have left a hold or a queue position at a member. */
  #failed: Round[] = [];
  #pause = FIRST_PAUSE;

  constructor(
    private readonly members: Members,
    private readonly choice: QueueChoice,
    private readonly request: Request,
    private readonly fenced: boolean,
    /** Time limit of an answer, ms. */
    private readonly limit: number,
  ) {}

  takeBack(): Owe | undefined {
    if (this.#round === undefined) return undefined;
    this.#failed.push(this.#round);
    return this.#round.owe();
  }

  isTakenBack(): boolean {
    return this.members.all().every((member) => this.#isClean(member));
  }

  *run(waits: boolean, end: number): Steps<Granted | null> {
    const { members, choice } = this;
    const { name } = this.request;
    let start: Start = waits && choice.contended.has(name) ? "queued" : "at once";
    let isLastRound = false;
    let splitVotes = 0;
    let lateRounds = 0;
    yield* members.identifyMembers(end);
    // With an empty order, a round may overtake waiters. An acquisition that does not wait may do so, as it
    // competes only for a moment.
    let order = waits ? choice.order(name) : [];
    while (true) {
      const { request, fenced, limit } = this;
      const round = new Round(members, choice, request, fenced, limit, order, (member) =>
        this.#isClean(member),
      );
      this.#round = round;
      const began = now();
      const won = yield* this.#runRound(start, round, end);
      if (won !== null) return yield* this.#holdOf(won, round);
      const duration = now() - began;
      yield round.owe();
      this.#failed.push(round);
      const final = round.finalError();
      if (final !== undefined) throw final;
      const mayBeTaken = round.mayBeTaken();
      if (round.isLate && mayBeTaken) {
        lateRounds += 1;
        if (lateRounds === MAX_LATE) {
          throw new LateError(`${name}: the ttl is too short for these servers`, name);
        }
        continue;
      }
      if (!mayBeTaken && (!waits || now() >= end || members.areUnusable())) throw round.noQuorum();
      const isOver = waits
        ? now() >= end
        : splitVotes === MAX_SPLIT_VOTES || (yield* this.#isHeldElsewhere(round));
      if (isOver || isLastRound) {
        if (round.hasMajorityAnswered()) return null;
        if (isLastRound) throw round.noQuorum();
        // The last round asks all members: null ("taken") must only be returned if a majority can vote.
        isLastRound = true;
        yield* members.identifyMembers(end);
        [start, order] = ["at once", waits ? choice.order(name) : []];
      } else if (waits) {
        [start, order] = yield* this.#next(start, round, duration, end);
      } else {
        // A split vote: clients that tried at the same moment each got a part of the votes.
        splitVotes += 1;
        yield new Sleep(Math.random() * duration);
        yield* members.identifyMembers(end);
        [start, order] = ["in order", choice.order(name)];
      }
    }
  }

  #runRound(start: Start, round: Round, end: number): Steps<Won | null> {
    if (start === "queued") return round.queued(end);
    return start === "in order" ? round.inOrder() : round.atOnce();
  }

  /** Returns the hold. Records in which queue other clients wait, or looks for them. */
  *#holdOf(won: Won, round: Round): Steps<Granted> {
    const { choice, request } = this;
    const queue = round.nextQueue();
    if (queue !== undefined && round.isRefusedBy(queue)) {
      // The member may have refused only because a predecessor's RELEASE has not arrived yet.
      const look = choice.lookForOthers(request, queue, won.token);
      if (look !== undefined) yield new Begin(look);
    } else if (queue !== undefined) {
      choice.meet(request.name, queue);
    }
    return new QuorumHold(this.members, this.request, won);
  }

  /** Returns true if no failed round can have left a hold or a queue position at a member. */
  #isClean(member: number): boolean {
    const isTakenBack = (round: Round) => this.members.all().every((other) => round.isTakenBackAt(other));
    this.#failed = this.#failed.filter((round) => !isTakenBack(round));
    return this.#failed.every((round) => round.isTakenBackAt(member));
  }

  /** Returns how the next round of a wait begins, and the order of its queues. Pauses first if the next round
   * would otherwise collide with those of other clients. `duration`: that of the failed round, in ms. */
  *#next(start: Start, round: Round, duration: number, end: number): Steps<[Start, readonly number[]]> {
    const { members, choice } = this;
    const { name } = this.request;
    const mayBeTaken = round.mayBeTaken();
    const wasQueued = start === "queued";
    const queue = round.queue();
    const nextQueue = round.nextQueue();
    // During this round, another wait of this client may have met other clients in another queue: this wait
    // follows it there.
    const queueOfOthers = choice.queueMetWithin(name, duration);
    const followsOthers = wasQueued && queueOfOthers !== undefined && queueOfOthers !== queue;
    const movesOn = wasQueued && !followsOthers;
    if (movesOn && nextQueue !== undefined) choice.meet(name, nextQueue);
    // After a refusal by the member of the last queue, the client begins again with the first queue.
    const givesUp = movesOn && nextQueue === undefined && queue !== undefined && round.isRefusedBy(queue);
    if (givesUp) choice.forgetQueue(name);
    yield* members.identifyMembers(end);
    const order = choice.order(name);
    if (mayBeTaken && !wasQueued) {
      choice.contended.note(name);
      const reachable = order.filter((member) => round.isReachable(member));
      return ["queued", reachable.length > 0 ? reachable : order];
    }
    const returns = givesUp && order[0] !== queue;
    if (mayBeTaken && (followsOthers || nextQueue !== undefined || returns)) return ["queued", order];
    // A random pause, as clients that took votes from each other would otherwise collide again.
    yield new Sleep(Math.max(Math.min((0.5 + Math.random() / 2) * this.#pause, end - now()), 0));
    this.#pause = Math.min(this.#pause * 2, LONGEST_PAUSE);
    return ["at once", order];
  }

  /** Returns whether another client has a majority. If a member does not show its holders, the result is a
   * guess: true if no member granted this round. */
  *#isHeldElsewhere(round: Round): Steps<boolean> {
    const holders = yield* this.members.holders(this.request.key);
    const areKnown = this.members.voters().every((member) => holders.at(member) !== undefined);
    return holders.hasMajority() || (!areKnown && round.grants() === 0);
  }
}
