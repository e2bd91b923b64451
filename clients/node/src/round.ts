// One round of an acquisition from a quorum, with one token: the votes, the queue, the confirm phase. The
// rules are those of the Rust client, which a model checker has searched (`crates/client/src/quorum`). It
// yields steps and does no I/O.

import { Attempt, type Granted, LATE, type Request } from "./attempt.js";
import { now, trusted } from "./clock.js";
import { GraceError, LockError, NoAnswerError, word } from "./errors.js";
import { Holders, type Members } from "./members.js";
import { acquire, confirm, freshToken, waiters } from "./protocol.js";
import { OwedRelease } from "./renewal.js";
import { type Answers, Ask, type Heard, Owe, Sleep, type Steps, To } from "./steps.js";
import { times, type Wait } from "./waits.js";

// How often one whose turn has come asks the others again: their holds may be about to be given back. Less
// often where others queue to whom it can go.
const TRIES = 12;
const BRIEF_TRIES = 5;
// How often, at least, those who wait look whether the master of their queue is silent, ms.
const CHECK = 500;
// The first and the longest pause between these tries, ms.
const FIRST_PAUSE = 1;
const LONGEST_PAUSE = 32;

export class Round {
  /** What each answered that was asked for its vote: a fence, null, or an error. */
  answers: Answers = new Map();
  readonly holders: Holders;
  readonly #token = freshToken();
  /** Who each was when it was asked for its vote. */
  readonly #voters = new Map<number, string | undefined>();
  #fence: number | null = null;
  /** In whose queue it has waited. */
  #queue: number | undefined;
  /** Whether somebody else comes first. */
  #isBehind = false;
  #waiting: Attempt | undefined;

  constructor(
    private readonly members: Members,
    private readonly request: Request,
    private readonly fenced: boolean,
    /** How long an answer may take, ms. */
    private readonly limit: number,
    /** In which members are tried where only one is asked first. */
    private readonly order: readonly number[],
  ) {
    this.holders = new Holders(members);
  }

  /** Takes back all that was asked for. */
  owe(): Owe {
    const { key, lease } = this.request;
    const lasts = Math.max(lease, times.keep) + times.keep;
    const asked = [...this.holders.asked];
    const owed = new Map(asked.map((member) => [member, new OwedRelease(key, this.#token, lasts)]));
    // The next round begins after those that answered have let go.
    const reached = asked.filter(
      (member) => this.answers.has(member) && !(this.answers.get(member) instanceof NoAnswerError),
    );
    return new Owe(owed, () => reached.every((member) => owed.get(member)!.ended !== undefined));
  }

  close(): void {
    this.#waiting?.close();
  }

  /** Asks all that may vote. One who would wait overtakes nobody who waits: the first of the order, where
   * others queue, is heard before a majority counts. */
  *atOnce(waits: boolean): Steps<Granted | null> {
    const since = now();
    if (!this.members.hasMajority()) return null;
    const voters = this.members.voters();
    const first = waits ? voters.find((member) => member === this.order[0]) : undefined;
    yield* this.#ask(voters, first);
    if (this.grants() < this.members.majority) return null;
    // What its master alone still holds keeps nobody out, where nobody waits.
    if (first !== undefined && this.answers.get(first) === null) {
      this.#isBehind = yield* this.#somebodyWaits(first);
      if (this.#isBehind) return null;
    }
    return yield* this.#won(since);
  }

  /** Asks the first that answers, and the others once it grants: of several clients only one at a time gets
   * so far. */
  *inOrder(): Steps<Granted | null> {
    const since = now();
    for (const member of this.#reachable()) {
      yield* this.#ask([member], member);
      if (this.#granted(member)) return yield* this.#askTheOthers(since);
      this.#isBehind = this.refused(member);
      if (this.#isBehind) break;
    }
    return null;
  }

  /** Waits in the queue of the first that answers and is not `passed` over, and asks the others once it
   * grants. Passes over one that fails. */
  *queued(end: number, passed: Set<number>): Steps<Granted | null> {
    const queue = this.#reachable().find((member) => !passed.has(member));
    if (queue === undefined) return null;
    this.#queue = queue;
    this.#note([queue]);
    const { key, name } = this.request;
    const lookout = this.members.lookouts.of(queue, name);
    // There is no leaving the last one.
    const mayMoveOn = this.order.indexOf(queue) + 1 < this.order.length;
    const place = {
      isSilent: () => this.members.isSilent(queue),
      check: Math.min(this.limit, CHECK),
      isStuck: mayMoveOn ? (wait: Wait) => lookout.look(wait, key) : undefined,
    };
    const waiting = new Attempt(this.request, this.#token, place);
    this.#waiting = waiting;
    let granted: Granted | null;
    try {
      granted = yield* directed(queue, waiting.run(true, end));
    } catch (why) {
      const refusal = why instanceof LockError && !(why instanceof GraceError);
      if (!(why instanceof NoAnswerError || (word(why) && !refusal))) throw why;
      this.answers.set(queue, why);
      passed.add(queue);
      return null;
    } finally {
      waiting.close();
      lookout.leave(waiting.wait);
    }
    this.answers.set(queue, granted?.fence ?? null);
    this.#isBehind = granted === null;
    if (granted === null) return null;
    this.holders.note(queue);
    // Counts from the claim: when the grant began is unknown, but the claim has set the lease anew.
    return yield* this.#askTheOthers(granted.validUntil - trusted(this.request.lease));
  }

  /** Where to queue next, if not at the first member as ever. One whose turn came, and who is refused by a
   * later member, meets others who queue there, as the earlier ones are out of their reach; it goes to them,
   * for they cannot come. The queue of a member that refuses, while others grant or nobody has a majority,
   * does not move: the next one does. And whoever has waited in a later queue than the first stays there, as
   * the others do: each that went back alone would keep their head from a majority. */
  nextQueue(): number | undefined {
    const queue = this.#queue ?? this.order[0]!;
    const later = this.order.slice(this.order.indexOf(queue) + 1);
    if (this.refused(queue)) return later[0];
    const earlier = this.members.all().filter((member) => !this.order.includes(member));
    const stays = this.#queue === undefined ? earlier.some((it) => this.refused(it)) : earlier.length > 0;
    return later.find((member) => this.refused(member)) ?? (stays ? queue : undefined);
  }

  /** Whether others have what it asked for. Otherwise too few could vote, or it was too late. */
  isTaken(): boolean {
    if (this.#isBehind) return true;
    if (this.grants() >= this.members.majority) return false;
    const isAble = (member: number) =>
      !this.answers.has(member) || this.#granted(member) || this.refused(member);
    return [...this.holders.asked].filter(isAble).length >= this.members.majority;
  }

  /** The error of one of those who call the request invalid, if no majority can ever grant it. */
  misuse(): unknown {
    const errors = [...this.answers.values()].filter((answer) => word(answer) === "ERR");
    return this.members.all().length - errors.length < this.members.majority ? errors[0] : undefined;
  }

  grants(): number {
    return [...this.answers.keys()].filter((member) => this.#granted(member)).length;
  }

  refused(member: number): boolean {
    const answer = this.answers.get(member);
    return answer === null || word(answer) === "WRONGTYPE";
  }

  /** Some clients send a request again over a new connection, where another server may answer it. */
  #granted(member: number): boolean {
    const isTheSame = this.#voters.get(member) === this.members.runId(member);
    return isTheSame && typeof this.answers.get(member) === "number";
  }

  #note(asked: readonly number[]): void {
    for (const member of asked) {
      this.holders.asked.add(member);
      this.#voters.set(member, this.members.runId(member));
    }
  }

  #reachable(): readonly number[] {
    const voters = this.members.voters();
    return this.order.filter((member) => voters.includes(member));
  }

  *#askTheOthers(since: number): Steps<Granted | null> {
    const { members } = this;
    let pause = FIRST_PAUSE;
    for (let tries = 0; tries <= TRIES; tries++) {
      if (!members.hasMajority()) break;
      yield* this.#ask(members.voters().filter((member) => !this.#granted(member)));
      if (this.grants() >= members.majority) return yield* this.#won(since);
      // A part that it kept until those who have the rest come to it would keep everybody from a majority.
      if (this.#queue !== undefined && tries >= BRIEF_TRIES) {
        const next = this.nextQueue();
        if (next !== undefined && next !== this.#queue) break;
      }
      yield new Sleep((0.5 + Math.random() / 2) * pause);
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
    return null;
  }

  /** Asks for votes until they decide, and one is heard `first`. */
  *#ask(asked: readonly number[], first?: number): Steps<void> {
    const { key, lease, terms } = this.request;
    const before = new Map(this.answers);
    for (const member of asked) before.delete(member);
    this.#note(asked);
    const enough = (answers: Answers) => {
      this.answers = new Map([...before, ...answers]);
      if (first !== undefined && !answers.has(first)) return false;
      const grants = this.grants();
      const missing = asked.length - answers.size;
      return grants >= this.members.majority || grants + missing < this.members.majority;
    };
    const { holders } = this;
    const heard: Heard = (member, answer) => {
      if (typeof answer === "number") holders.note(member);
      return undefined;
    };
    const answers: Answers = yield new Ask(asked, acquire(key, this.#token, lease, terms), enough, heard);
    this.answers = new Map([...before, ...answers]);
  }

  *#somebodyWaits(member: number): Steps<boolean> {
    try {
      const queue: readonly unknown[] = yield new To(member, waiters(this.request.key));
      return queue.length > 0;
    } catch (why) {
      // Without an answer, or the right to ask, somebody may.
      if (why instanceof NoAnswerError || word(why)) return true;
      throw why;
    }
  }

  *#won(since: number): Steps<Granted | null> {
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
    const validUntil = from + trusted(this.request.lease);
    if (now() >= validUntil) return null;
    return { token: this.#token, fence: this.#fence, validUntil, holders: this.holders };
  }

  /** Brings a majority of those whose grant counts to one fence. Answers from when validity counts. */
  *#confirm(): Steps<number | null> {
    const { key, lease } = this.request;
    const { majority } = this.members;
    for (let round = 0; round < LATE + this.members.all().length; round++) {
      const counted = [...this.answers.keys()].filter((member) => this.#granted(member));
      if (counted.length < majority) return null;
      const fence = Math.max(...counted.map((member) => this.answers.get(member) as number));
      const since = now();
      const yes = (answers: Answers) => [...answers.values()].filter((answer) => answer === fence).length;
      const enough = (answers: Answers) =>
        yes(answers) >= majority || yes(answers) + counted.length - answers.size < majority;
      const answers: Answers = yield new Ask(counted, confirm(key, this.#token, fence, lease), enough);
      if (yes(answers) >= majority) {
        this.#fence = fence;
        return since;
      }
      for (const [member, answer] of answers) {
        // A greater one is the next to try. What is not held any longer does not count.
        if (typeof answer === "number" || answer === null) this.answers.set(member, answer);
      }
      if ([...answers.values()].some((answer) => word(answer) === "FENCEAHEAD")) {
        // The fence came from a clock that is ahead: go on without the masters that granted it.
        for (const member of counted) {
          if (this.#granted(member) && (this.answers.get(member) as number) >= fence) {
            this.answers.set(member, new Error("FENCEAHEAD its clock is ahead of the others'"));
          }
        }
      }
    }
    return null;
  }
}

/** The same steps, for one member. What all are asked is asked as it stands. */
function* directed<T>(member: number, steps: Steps<T>): Steps<T> {
  let turn = steps.next();
  while (!turn.done) {
    let outcome: unknown;
    try {
      outcome = yield turn.value instanceof Ask ? turn.value : new To(member, turn.value);
    } catch (why) {
      turn = steps.throw(why);
      continue;
    }
    turn = steps.next(outcome);
  }
  return turn.value;
}
