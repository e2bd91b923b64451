// One acquisition from a quorum: a sequence of rounds. After a failed round the client waits in a queue, or
// for a random time. Safety does not depend on this file, as each round has a token of its own.

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

/** How a round asks the members: all at once, one after the other, or first the member in whose queue it
 * waits. */
type Turn = "at once" | "in order" | "queued";

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
    let turn: Turn = waits && choice.contended.has(name) ? "queued" : "at once";
    let isLastRound = false;
    let splitVotes = 0;
    let late = 0;
    yield* members.identifyMembers(end);
    // An acquisition that does not wait respects no queue: it cannot delay the waiters for long.
    let order = waits ? choice.order(name) : [];
    while (true) {
      const { request, fenced, limit } = this;
      const round = new Round(members, choice, request, fenced, limit, order, (member) =>
        this.#isClean(member),
      );
      this.#round = round;
      const began = now();
      const won = yield* this.#take(turn, round, end);
      if (won !== null) return yield* this.#hold(won, round);
      const duration = now() - began;
      yield round.owe();
      this.#failed.push(round);
      const final = round.finalError();
      if (final !== undefined) throw final;
      const isTaken = round.mayBeTaken();
      if (round.isLate && isTaken) {
        late += 1;
        if (late === MAX_LATE) throw new LateError(`${name}: the ttl is too short for these servers`, name);
        continue;
      }
      if (!isTaken && (!waits || now() >= end || members.areUnusable())) throw round.noQuorum();
      const isOver = waits
        ? now() >= end
        : splitVotes++ === MAX_SPLIT_VOTES || (yield* this.#isHeldElsewhere(round));
      if (isOver || isLastRound) {
        if (round.hasMajorityAnswered()) return null;
        if (isLastRound) throw round.noQuorum();
        // The last round asks all members, as "taken" must only be reported if a majority can vote.
        isLastRound = true;
        yield* members.identifyMembers(end);
        [turn, order] = ["at once", waits ? choice.order(name) : []];
      } else if (waits) {
        [turn, order] = yield* this.#next(turn, round, duration, end);
      } else {
        // A split vote: clients that tried at the same moment each got a part of the votes.
        yield new Sleep(Math.random() * duration);
        yield* members.identifyMembers(end);
        [turn, order] = ["in order", choice.order(name)];
      }
    }
  }

  #take(turn: Turn, round: Round, end: number): Steps<Won | null> {
    if (turn === "queued") return round.queued(end);
    return turn === "in order" ? round.inOrder() : round.atOnce();
  }

  *#hold(won: Won, round: Round): Steps<Granted> {
    const { choice, request } = this;
    const queue = round.nextQueue();
    if (queue !== undefined && round.isRefusedBy(queue)) {
      // The reason for the refusal may be a predecessor's RELEASE that has not arrived yet.
      const look = choice.lookForOthers(request, queue, won.token);
      if (look !== undefined) yield new Begin(look);
    } else if (queue !== undefined) {
      choice.meet(request.name, queue);
    }
    return new QuorumHold(this.members, this.request, won);
  }

  /** Returns true if no failed round can have left a hold or a queue position at a member. */
  #isClean(member: number): boolean {
    const isLeft = (round: Round) => !this.members.all().every((other) => round.isTakenBackAt(other));
    this.#failed = this.#failed.filter(isLeft);
    return this.#failed.every((round) => round.isTakenBackAt(member));
  }

  /** Returns how the next round of a wait asks the members, and in which order. Pauses first if the next
   * round would otherwise collide with those of other clients. */
  *#next(turn: Turn, round: Round, duration: number, end: number): Steps<[Turn, readonly number[]]> {
    const { members, choice } = this;
    const { name } = this.request;
    const isTaken = round.mayBeTaken();
    const wasQueued = turn === "queued";
    const queue = round.queue();
    const next = round.nextQueue();
    // During this round, other waits of this client may have found clients in another queue.
    const elsewhere = choice.queueMetWithin(name, duration);
    const isMoving = wasQueued && elsewhere !== undefined && elsewhere !== queue;
    if (wasQueued && !isMoving && next !== undefined) choice.meet(name, next);
    // No later queue is left, and the member of this queue refuses the lock: begin again with the first
    // queue.
    const isRestarting =
      wasQueued && !isMoving && next === undefined && queue !== undefined && round.isRefusedBy(queue);
    if (isRestarting) choice.forgetQueue(name);
    yield* members.identifyMembers(end);
    const order = choice.order(name);
    if (isTaken && !wasQueued) {
      choice.contended.note(name);
      const reachable = order.filter((member) => round.isReachable(member));
      return ["queued", reachable.length > 0 ? reachable : order];
    }
    if (isTaken && (isMoving || next !== undefined || (isRestarting && order[0] !== queue)))
      return ["queued", order];
    // A random pause, as clients that took votes from each other would otherwise collide again.
    yield new Sleep(Math.max(Math.min((0.5 + Math.random() / 2) * this.#pause, end - now()), 0));
    this.#pause = Math.min(this.#pause * 2, LONGEST_PAUSE);
    return ["at once", order];
  }

  /** Returns whether another client has a majority. If a member does not show its holders, another client is
   * assumed to have one if no member granted this round. */
  *#isHeldElsewhere(round: Round): Steps<boolean> {
    const holders = yield* this.members.holders(this.request.key);
    const isKnown = this.members.voters().every((member) => holders.at(member) !== undefined);
    return holders.hasMajority() || (!isKnown && round.grants() === 0);
  }
}
