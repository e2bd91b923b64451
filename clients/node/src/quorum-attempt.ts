// One acquisition from a quorum: a sequence of rounds. After a failed round, the acquisition waits in the
// queue of one member, or for a random time. A wrong decision in this file costs time, but cannot make a
// second holder: each round has a token of its own, and `Round` alone decides whether it acquires the lock.

import { now } from "./clock.js";
import { LateError } from "./errors.js";
import type { Members } from "./members.js";
import type { QueueChoice } from "./queue-choice.js";
import { QuorumHold } from "./quorum-hold.js";
import { type Acquisition, type Granted, MAX_LATE, type Request } from "./requests.js";
import { Round, type Won } from "./round.js";
import { Begin, type Owe, Sleep, type Steps } from "./steps.js";

// An acquisition that does not wait tries again at most this many times after a split vote: a round in which
// no client got a majority.
const MAX_SPLIT_VOTES = 20;
// First and longest pause between two rounds, ms.
const FIRST_PAUSE = 50;
const LONGEST_PAUSE = 2000;

/** How a round begins: see `atOnce`, `inOrder` and `queued` of `Round`. */
type Start = "at once" | "in order" | "queued";

/** How the next round begins, and the order in which it tries the queues of the members. */
type NextRound = [start: Start, order: readonly number[]];

export class QuorumAttempt implements Acquisition {
  #round: Round | undefined;
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
    return this.#round?.takeBack();
  }

  *run(waits: boolean, end: number): Steps<Granted | null> {
    const { members, choice } = this;
    const { name } = this.request;
    let start: Start = waits && choice.contended.has(name) ? "queued" : "at once";
    let isLastRound = false;
    let splitVotes = 0;
    let lateGrants = 0;
    yield* members.identifyMembers(end);
    // The members in the order in which the round tries their queues. A round that asks all members at once
    // does not overtake clients that wait at the first member of `order`. If `order` is empty, the round may
    // overtake waiters.
    let order = waits ? choice.order(name) : [];
    while (true) {
      const { request, fenced, limit } = this;
      yield* members.requireDelay(request);
      const round = new Round(members, choice, request, fenced, limit, order);
      this.#round = round;
      const began = now();
      const won = yield* this.#runRound(start, round, end);
      // A member that did not answer before may have granted the lock.
      const counts = won !== null && round.stillWins(won, yield* members.requireDelay(request));
      if (counts) return yield* this.#holdOf(won, round);
      const duration = now() - began;
      yield round.takeBack();
      const final = round.finalError();
      if (final !== undefined) throw final;
      const canMajorityVote = round.canMajorityVote();
      if (round.isLate && canMajorityVote) {
        // A majority granted the lock, but the round failed (see `Round.isLate`). The next round follows at once.
        lateGrants += 1;
        if (lateGrants === MAX_LATE) {
          throw new LateError(`${name}: the ttl is too short for these servers`, name);
        }
        continue;
      }
      if (!canMajorityVote && (!waits || now() >= end || members.areUnusable())) throw round.noQuorum();
      const isOver = waits
        ? now() >= end
        : splitVotes === MAX_SPLIT_VOTES || (yield* this.#isHeldElsewhere(round));
      if (isOver || isLastRound) {
        if (round.hasMajorityAnswered()) return null;
        if (isLastRound) throw round.noQuorum();
        // The result is null (the lock is taken) only if a majority has answered. So a last round asks all
        // members.
        isLastRound = true;
        yield* members.identifyMembers(end);
        [start, order] = ["at once", waits ? choice.order(name) : []];
      } else if (waits) {
        [start, order] = yield* this.#afterFailedRound(start, round, duration, end);
      } else {
        // A split vote: clients that tried at the same time each got a part of the votes. In the next round
        // they ask the members in order, so that one of them wins.
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

  /** Returns the hold. If `Round.nextQueue` names a queue, this client's waits move there at once. But if the
   * member of that queue refused this round, a check in the background runs first, and the waits move only if
   * it finds other clients in the queue. */
  *#holdOf(won: Won, round: Round): Steps<Granted> {
    const { choice, request } = this;
    const queue = round.nextQueue();
    if (queue !== undefined && round.isRefusedBy(queue)) {
      // The refusal does not prove that other clients use the queue: the RELEASE of the previous holder may not
      // have arrived yet.
      const look = choice.lookForOthers(request, queue, won.token);
      if (look !== undefined) yield new Begin(look);
    } else if (queue !== undefined) {
      choice.moveToQueue(request.name, queue);
    }
    return new QuorumHold(this.members, this.request, won);
  }

  /** Called after a failed round of an acquisition that waits. Pauses first if the next round asks all members
   * at once. `duration`: that of the failed round, in ms. */
  *#afterFailedRound(start: Start, round: Round, duration: number, end: number): Steps<NextRound> {
    const { members, choice } = this;
    const { name } = this.request;
    const canMajorityVote = round.canMajorityVote();
    const wasQueued = start === "queued";
    const queue = round.queue();
    const nextQueue = round.nextQueue();
    const startQueue = choice.startQueueSetWithin(name, duration);
    let [waitsAgain, startsOver] = [false, false];
    if (wasQueued && startQueue !== undefined && startQueue !== queue) {
      // Another wait of this client has moved to another queue meanwhile. This wait follows it there.
      waitsAgain = true;
    } else if (wasQueued && nextQueue !== undefined) {
      choice.moveToQueue(name, nextQueue);
      waitsAgain = true;
    } else if (wasQueued && queue !== undefined && round.isRefusedBy(queue)) {
      // This queue is the last of the order, and the wait in it has ended without a grant. The client starts over
      // with the first queue.
      choice.forgetStartQueue(name);
      startsOver = true;
    }
    yield* members.identifyMembers(end);
    const order = choice.order(name);
    if (canMajorityVote && !wasQueued) {
      choice.contended.note(name);
      const reachable = order.filter((member) => round.isReachable(member));
      return ["queued", reachable.length > 0 ? reachable : order];
    }
    if (canMajorityVote && (waitsAgain || (startsOver && order[0] !== queue))) return ["queued", order];
    // A random pause: clients that took votes from each other would do so again if they all asked at the same time.
    yield new Sleep(Math.max(Math.min((0.5 + Math.random() / 2) * this.#pause, end - now()), 0));
    this.#pause = Math.min(this.#pause * 2, LONGEST_PAUSE);
    return ["at once", order];
  }

  /** Returns whether another client has a majority, or a DELAY keeps it closed. If a member does not show its
   * holders, the result is a guess by the grants of this round: a client with a majority usually holds the lock at
   * all members, so that none of them grants it to this round. */
  *#isHeldElsewhere(round: Round): Steps<boolean> {
    const holders = yield* this.members.holders(this.request.key);
    const areKnown = this.members.voters().every((member) => holders.at(member) !== undefined);
    return holders.isTaken() || (!areKnown && round.grants() === 0);
  }
}
