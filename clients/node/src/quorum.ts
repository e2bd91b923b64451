// A lock over several independent masters: a majority of them decides. Here is what follows a failed round:
// the wait queue, a random pause. Safety does not depend on it, as each round has a token of its own. As all
// that decides, it yields steps and does no I/O; the rules are those of the Rust client
// (`crates/client/src/acquire/course.rs`).

import type { Acquisition, Granted, Request } from "./attempt.js";
import { now } from "./clock.js";
import { NoQuorumError } from "./errors.js";
import type { Members } from "./members.js";
import { HEAD_KEEPS } from "./queue.js";
import { Round } from "./round.js";
import { Begin, type Owe, Sleep, type Steps } from "./steps.js";

// How often one that does not wait tries again while nobody has the lock.
const SPLITS = 20;
// The first and the longest pause between two rounds, ms.
const FIRST_PAUSE = 50;
const LONGEST_PAUSE = 2000;

/** How the next round gets its turn: not at all (it asks all at once), by the order, in a queue. */
type Turn = "none" | "order" | "queue";

/** One acquisition. Each round has a token of its own. */
export class QuorumAttempt implements Acquisition {
  #round: Round | undefined;

  constructor(
    private readonly members: Members,
    private readonly request: Request,
    private readonly fenced: boolean,
    /** How long an answer may take, ms. */
    private readonly limit: number,
  ) {}

  get asked(): boolean {
    return this.#round !== undefined;
  }

  owe(): Owe {
    return this.#round!.owe();
  }

  *run(waits: boolean, end: number): Steps<Granted | null> {
    const { members, request } = this;
    const { name } = request;
    const { contended } = members;
    let turn: Turn = waits && contended.has(name) ? "queue" : "none";
    let pause = FIRST_PAUSE;
    let splits = 0;
    yield* members.tellApart(end);
    // Who does not wait overtakes nobody for long.
    let order = waits ? members.order(name) : [];
    while (true) {
      const round = new Round(members, request, this.fenced, this.limit, order);
      this.#round = round;
      const began = now();
      const granted = yield* this.#turn(turn, round, end);
      if (granted !== null) {
        yield* this.#meetOthers(round);
        return granted;
      }
      const length = now() - began;
      yield this.owe();
      const misuse = round.misuse();
      if (misuse !== undefined) throw misuse;
      const isTaken = round.isTaken();
      if (!isTaken && (!waits || members.areClosed())) {
        throw new NoQuorumError(`${name}: no majority can grant: ${members.report(round.answers)}`, name);
      }
      if (!waits) {
        // Those who tried at the same moment each got a part of the votes: one of them must win.
        if (splits++ === SPLITS || (yield* this.#somebodyHasIt(round))) return null;
        yield new Sleep(Math.random() * length);
        yield* members.tellApart(end);
        turn = "order";
        order = members.order(name);
        continue;
      }
      if (now() >= end) return null;
      const wasQueued = turn === "queue";
      // Others of this client have met somebody elsewhere while it waited.
      const elsewhere = contended.queue(name, now() - began);
      const queue = round.queue();
      const moves = wasQueued && elsewhere !== undefined && elsewhere !== queue;
      const next = round.nextQueue();
      if (wasQueued && !moves && next !== undefined) members.noteQueue(name, next);
      // The last queue does not move either: back to the first.
      const isStuck = next === undefined && queue !== undefined && round.refused(queue);
      const returns = wasQueued && !moves && isStuck;
      if (returns) contended.forgetQueue(name);
      yield* members.tellApart(end);
      order = members.order(name);
      if (isTaken && !wasQueued) {
        contended.note(name);
        turn = "queue";
        const reachable = order.filter((member) => round.isReachable(member));
        if (reachable.length > 0) order = reachable;
      } else if (isTaken && (moves || next !== undefined || (returns && order[0] !== queue))) {
        turn = "queue";
      } else {
        turn = "none";
        // Not at once, or those who lost to each other would collide again.
        yield new Sleep(Math.max(Math.min((0.5 + Math.random() / 2) * pause, end - now()), 0));
        pause = Math.min(pause * 2, LONGEST_PAUSE);
      }
    }
  }

  #turn(turn: Turn, round: Round, end: number): Steps<Granted | null> {
    if (turn === "queue") return round.queued(end);
    return turn === "order" ? round.inOrder() : round.atOnce();
  }

  /** Notes where others queue. Of a member that has refused one who has the lock it is looked first: what its
   * predecessor releases may have been on the way there. */
  *#meetOthers(won: Round): Steps<void> {
    const queue = won.nextQueue();
    if (queue === undefined) return;
    const { name } = this.request;
    if (!won.refused(queue)) this.members.noteQueue(name, queue);
    else if (this.members.contended.mayLook(name)) yield new Begin(this.#lookForOthers(queue, won.token));
  }

  *#lookForOthers(queue: number, own: string): Steps<void> {
    const { members, request } = this;
    const began = now();
    const before = yield* members.parts(request.key, queue);
    yield new Sleep(now() - began);
    const after = yield* members.parts(request.key, queue);
    const staying = [...after].filter(([token]) => before.has(token) && token !== own);
    if (staying.length === 0) return members.contended.sawNobody(request.name);
    // What was left behind grows old.
    const isYoung = staying.some(([, held]) => held < HEAD_KEEPS);
    if (isYoung || (yield* members.somebodyWaits(request.key, queue)) === true) {
      members.noteQueue(request.name, queue);
    }
  }

  /** Whether somebody holds a majority. Where that may not be asked, somebody does who leaves no vote. */
  *#somebodyHasIt(round: Round): Steps<boolean> {
    const holders = yield* this.members.holders(this.request.key);
    const isKnown = this.members.voters().every((member) => holders[member] !== undefined);
    return this.members.hasHolder(holders) || (!isKnown && round.grants() === 0);
  }
}
