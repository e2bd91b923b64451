// A lock over several independent masters: a majority of them decides. The rules are those of the Rust
// client, which a model checker has searched (`crates/client/src/quorum`). It yields steps and does no I/O.
//
// Not here: entering the queue of one master does not probe the others, so a hold that only that master still
// has delays those who wait until its lease ends. Nobody goes on to a later queue where others wait, and a
// master that does not answer can cost each round the time limit of a vote.

import { type Acquisition, Attempt, type Granted, LATE, type Request } from "./attempt.js";
import { now, trusted } from "./clock.js";
import { NoAnswerError, NoQuorumError, word } from "./errors.js";
import { Holders, type Members } from "./members.js";
import { acquire, confirm, freshToken } from "./protocol.js";
import { OwedRelease } from "./renewal.js";
import { type Answers, Ask, type Heard, Owe, Sleep, type Steps, To } from "./steps.js";
import { times } from "./waits.js";

// How often those whose votes were split try again before they say "taken".
const SPLITS = 8;
// How often one that has waited asks the others again: their holds may be about to be given back.
const BRIEF_TRIES = 8;

/** One acquisition. Each round has a token of its own. */
export class QuorumAttempt implements Acquisition {
  asked = false;
  #token = "";
  #fence: number | null = null;
  #queued: Attempt | undefined;
  #answers: Answers = new Map();
  #holders: Holders;

  constructor(
    private readonly members: Members,
    private readonly request: Request,
    private readonly fenced: boolean,
  ) {
    this.#holders = new Holders(members);
  }

  owe(): Owe {
    const { key, lease } = this.request;
    const lasts = Math.max(lease, times.keep) + times.keep;
    const owed = this.members.all().map(() => new OwedRelease(key, this.#token, lasts));
    // A round begins after those that answered have let go.
    const reached = [...this.#answers].filter(([, answer]) => !(answer instanceof NoAnswerError));
    return new Owe(owed, () => reached.every(([member]) => owed[member]!.ended !== undefined));
  }

  close(): void {
    this.#queued?.close();
  }

  *run(waits: boolean, end: number): Steps<Granted | null> {
    const { members } = this;
    let pause = 50;
    for (let tries = 0; ; tries++) {
      yield* members.tellApart();
      const began = now();
      this.#begin();
      const granted = yield* this.#atOnce(waits);
      if (granted !== null) return granted;
      const took = now() - began;
      const votes = this.#grants();
      const taken = this.#refusals() > members.addresses.length - members.majority;
      yield this.owe();
      // Those who were away may be back.
      if (!taken) members.tellApartAt = 0;
      // Votes can be split between those who asked at the same moment: one of them must win.
      if (taken && votes > 0 && tries < SPLITS) {
        yield new Sleep(Math.random() * 2 * took * (tries + 1));
        continue;
      }
      if (taken && waits && now() < end) {
        const waited = yield* this.#inLine(end);
        if (waited !== null) return waited;
        yield this.owe();
      } else if (!taken && !waits) {
        const { name } = this.request;
        throw new NoQuorumError(`${name}: no majority can grant: ${members.report(this.#answers)}`, name);
      }
      if (!waits || now() >= end) return null;
      const wait = (0.5 + Math.random() / 2) * pause;
      pause = Math.min(pause * 2, 2000);
      yield new Sleep(Math.max(Math.min(wait, end - now()), 0));
    }
  }

  #begin(): void {
    this.#token = freshToken();
    this.#fence = null;
    this.#answers = new Map();
    this.#holders = new Holders(this.members);
    this.asked = true;
  }

  *#atOnce(waits: boolean): Steps<Granted | null> {
    const since = now();
    yield* this.#ask([...this.members.runIds.keys()]);
    // One whose queue says no is not overtaken with the votes of the others.
    if (waits && this.#answers.get(this.members.order()[0]!) === null) return null;
    return yield* this.#won(since);
  }

  /** Waits in the queue of one master, and asks the others once it grants. */
  *#inLine(end: number): Steps<Granted | null> {
    const answered = (member: number) =>
      this.#answers.has(member) && !(this.#answers.get(member) instanceof Error);
    const first = this.members.order().find(answered);
    if (first === undefined) return null;
    this.#begin();
    this.#queued = new Attempt(this.request, this.#token);
    let granted: Granted | null;
    try {
      granted = yield* directed(first, this.#queued.run(true, end));
    } catch (why) {
      if (!(why instanceof NoAnswerError)) throw why;
      this.#answers.set(first, why);
      return null;
    } finally {
      this.#queued.close();
    }
    if (granted === null) return null;
    this.#answers.set(first, granted.fence);
    this.#holders.note(first);
    // Counts from the claim: when the grant began is unknown, but the claim has set the lease anew.
    const since = granted.validUntil - trusted(this.request.lease);
    for (let tries = 0; tries < BRIEF_TRIES; tries++) {
      yield* this.#ask([...this.members.runIds.keys()].filter((member) => !this.#granted(member)));
      const won = yield* this.#won(since);
      if (won !== null) return won;
      yield new Sleep((0.5 + Math.random() / 2) * 2 ** tries);
    }
    return null;
  }

  *#ask(asked: readonly number[]): Steps<void> {
    const { key, lease, terms } = this.request;
    const before = new Map(this.#answers);
    for (const member of asked) before.delete(member);
    const enough = (answers: Answers) => {
      this.#answers = new Map([...before, ...answers]);
      const grants = this.#grants();
      const missing = asked.length - answers.size;
      return grants >= this.members.majority || grants + missing < this.members.majority;
    };
    const holders = this.#holders;
    const heard: Heard = (member, answer) => {
      if (typeof answer === "number") holders.note(member);
      return undefined;
    };
    const answers: Answers = yield new Ask(asked, acquire(key, this.#token, lease, terms), enough, heard);
    this.#answers = new Map([...before, ...answers]);
  }

  *#won(since: number): Steps<Granted | null> {
    const { members } = this;
    if (this.#grants() < members.majority) return null;
    let from = since;
    if (this.fenced) {
      const confirmed = yield* this.#confirm();
      if (confirmed === null) return null;
      from = confirmed;
    } else if (members.majority === 1) {
      this.#fence = this.#answers.get(0) as number;
    }
    const validUntil = from + trusted(this.request.lease);
    if (now() >= validUntil) return null;
    return { token: this.#token, fence: this.#fence, validUntil, holders: this.#holders };
  }

  /** Brings a majority of those whose grant counts to one fence. Answers from when validity counts. */
  *#confirm(): Steps<number | null> {
    const { key, lease } = this.request;
    const { majority, addresses } = this.members;
    for (let round = 0; round < LATE + addresses.length; round++) {
      const counted = [...this.#answers.keys()].filter((member) => this.#granted(member));
      if (counted.length < majority) return null;
      const fence = Math.max(...counted.map((member) => this.#answers.get(member) as number));
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
        if (typeof answer === "number" || answer === null) this.#answers.set(member, answer);
      }
      if ([...answers.values()].some((answer) => word(answer) === "FENCEAHEAD")) {
        // The fence came from a clock that is ahead: go on without the masters that granted it.
        for (const member of counted) {
          if (this.#granted(member) && (this.#answers.get(member) as number) >= fence) {
            this.#answers.set(member, new Error("FENCEAHEAD its clock is ahead of the others'"));
          }
        }
      }
    }
    return null;
  }

  #granted(member: number): boolean {
    return typeof this.#answers.get(member) === "number";
  }

  #grants(): number {
    return [...this.#answers.keys()].filter((member) => this.#granted(member)).length;
  }

  #refusals(): number {
    return [...this.#answers.values()].filter((answer) => answer === null || word(answer) === "WRONGTYPE")
      .length;
  }
}

/** The same steps, for one member. */
function* directed<T>(member: number, steps: Steps<T>): Steps<T> {
  let turn = steps.next();
  while (!turn.done) {
    let outcome: unknown;
    try {
      outcome = yield new To(member, turn.value);
    } catch (why) {
      turn = steps.throw(why);
      continue;
    }
    turn = steps.next(outcome);
  }
  return turn.value;
}
