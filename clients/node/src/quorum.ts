// A lock over several independent masters: a majority of them decides. Here is what follows a failed round:
// the wait queue, a random pause. Safety does not depend on it, as each round has a token of its own. As all
// that decides, it yields steps and does no I/O; the rules are those of the Rust client
// (`crates/client/src/acquire/course.rs`).

import type { Acquisition, Granted, Request } from "./attempt.js";
import { now } from "./clock.js";
import { NoQuorumError } from "./errors.js";
import type { Members } from "./members.js";
import { Round } from "./round.js";
import { type Owe, Sleep, type Steps } from "./steps.js";

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

  close(): void {
    this.#round?.close();
  }

  *run(waits: boolean, end: number): Steps<Granted | null> {
    const { members, request } = this;
    const { name } = request;
    const { contended } = members;
    let turn: Turn = waits && contended.has(name) ? "queue" : "none";
    let pause = FIRST_PAUSE;
    let splits = 0;
    /** Whose queue has failed. */
    const passed = new Set<number>();
    while (true) {
      yield* members.tellApart(end);
      const round = new Round(members, request, this.fenced, this.limit, members.order(name));
      this.#round = round;
      const began = now();
      const before = passed.size;
      const granted = yield* this.#turn(turn, round, waits, end, passed);
      const next = passed.size > before ? undefined : round.nextQueue();
      if (granted !== null) {
        contended.noteQueue(name, next);
        return granted;
      }
      const took = now() - began;
      yield this.owe();
      const misuse = round.misuse();
      if (misuse !== undefined) throw misuse;
      if (!waits) {
        if (!round.isTaken()) {
          throw new NoQuorumError(`${name}: no majority can grant: ${members.report(round.answers)}`, name);
        }
        // Those who tried at the same moment each got a part of the votes: one of them must win.
        if (splits++ === SPLITS || (yield* this.#somebodyHasIt(round))) return null;
        turn = "order";
        yield new Sleep(Math.random() * took);
        continue;
      }
      if (now() >= end) return null;
      if (turn === "none" && round.isTaken()) {
        contended.note(name);
        turn = "queue";
        continue;
      }
      if (turn === "queue") {
        contended.noteQueue(name, next);
        // Its master is missing, or others queue elsewhere.
        if (passed.size > before || (round.isTaken() && next !== undefined)) continue;
      }
      turn = "none";
      passed.clear();
      // Not at once, or those who lost to each other would collide again.
      yield new Sleep(Math.max(Math.min((0.5 + Math.random() / 2) * pause, end - now()), 0));
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
  }

  #turn(turn: Turn, round: Round, waits: boolean, end: number, passed: Set<number>): Steps<Granted | null> {
    if (turn === "queue") return round.queued(end, passed);
    return turn === "order" ? round.inOrder() : round.atOnce(waits);
  }

  /** Whether somebody holds a majority. Where that may not be asked, somebody does who leaves no vote. */
  *#somebodyHasIt(round: Round): Steps<boolean> {
    const holders = yield* this.members.holders(this.request.key);
    const isKnown = this.members.voters().every((member) => holders[member] !== undefined);
    return this.members.hasHolder(holders) || (!isKnown && round.grants() === 0);
  }
}
