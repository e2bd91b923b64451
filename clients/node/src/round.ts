// One round of an acquisition from a quorum, with one token: the votes, the queue, the confirm phase. The
// rules are those of the Rust client, which a model checker has searched (`crates/quorum`). It
// yields steps and does no I/O.

import { type Granted, LATE, type Request } from "./attempt.js";
import { now, trusted } from "./clock.js";
import { NoAnswerError, word } from "./errors.js";
import { Holders, type Members } from "./members.js";
import { acquire, cancel, confirm, freshToken } from "./protocol.js";
import { Waiter } from "./queue.js";
import { Owed, OwedRelease } from "./renewal.js";
import { type Answers, Ask, type Heard, Owe, Sleep, type Steps } from "./steps.js";
import { times } from "./waits.js";

// How often one whose turn has come asks the others again: their holds may be about to be given back. Less
// often where others queue to whom it can go.
const TRIES = 12;
const BRIEF_TRIES = 5;
// The first and the longest pause between these tries, ms.
const FIRST_PAUSE = 1;
const LONGEST_PAUSE = 32;

export class Round {
  /** What each answered that was asked for its vote: a fence, null, or an error. */
  answers: Answers = new Map();
  readonly holders: Holders;
  readonly token = freshToken();
  /** Who each was when it was asked for its vote. */
  readonly #voters = new Map<number, string | undefined>();
  #fence: number | null = null;
  /** Whose queue decides the turn: an index of the order. */
  #queue = 0;
  #hasWaited = false;
  /** Whether it has a majority, and leaves it to those who wait. */
  #isBehind = false;

  constructor(
    private readonly members: Members,
    private readonly request: Request,
    private readonly fenced: boolean,
    /** How long an answer may take, ms. */
    private readonly limit: number,
    /** At whose queues it waits, or whose it respects. */
    private readonly order: readonly number[],
  ) {
    this.holders = new Holders(members);
  }

  /** Takes back all that was asked for. */
  owe(): Owe {
    const { key, lease } = this.request;
    const lasts = Math.max(lease, times.keep) + times.keep;
    const asked = [...this.holders.asked];
    const owed = new Map(asked.map((member) => [member, new OwedRelease(key, this.token, lasts)]));
    // The next round begins after those that answered have let go.
    const reached = asked.filter(
      (member) => this.answers.has(member) && !(this.answers.get(member) instanceof NoAnswerError),
    );
    return new Owe(owed, () => reached.every((member) => owed.get(member)!.ended !== undefined));
  }

  /** Asks all that may vote. The first of the order, where others queue, is heard before a majority counts,
   * and if it refuses, nobody may wait there: a newcomer could overtake the whole queue by a majority of the
   * others. */
  *atOnce(): Steps<Granted | null> {
    const since = now();
    if (!this.members.hasMajority()) return null;
    const voters = this.members.voters();
    const first = voters.find((member) => member === this.order[0]);
    yield* this.#ask(voters, first);
    if (this.grants() < this.members.majority) return null;
    if (first !== undefined && this.refused(first)) {
      this.#isBehind = (yield* this.members.somebodyWaits(this.request.key, first)) !== false;
      if (this.#isBehind) return null;
    }
    return yield* this.#won(since);
  }

  /** Asks the first reachable member of the order, and the others once that one has granted: of several
   * clients, only one at a time gets so far. */
  *inOrder(): Steps<Granted | null> {
    for (; this.#queue < this.order.length; this.#queue += 1) {
      const queue = this.order[this.#queue]!;
      const since = now();
      if (!this.#mayVote(queue)) continue;
      yield* this.#ask([queue], queue);
      if (this.#granted(queue)) return yield* this.#turn(since);
      if (this.refused(queue)) return null;
    }
    return null;
  }

  /** Waits in the queue of the first reachable member of the order, and asks all members once that one has
   * granted.
   *
   * It is unknown when a grant after a wait began, and its lease can be short. So it is no vote: asked again
   * together with the others, that member renews the lease, and validity counts from there. */
  *queued(end: number): Steps<Granted | null> {
    const { members, request } = this;
    this.#hasWaited = true;
    for (; this.#queue < this.order.length; this.#queue += 1) {
      const queue = this.order[this.#queue]!;
      if (!this.#mayVote(queue)) continue;
      this.#note([queue]);
      const isLast = !this.order.slice(this.#queue + 1).some((later) => this.#mayVote(later));
      const waiter = new Waiter(members, queue, request, this.token, this.limit);
      const answer = yield* waiter.wait(end, isLast);
      if (answer === true) return yield* this.#turn(now(), end);
      this.answers.set(queue, answer);
      if (answer === null) return null;
      // Not a RELEASE: it would end what this member grants later. Nobody keeps a position in two queues.
      const owed = new Owed(cancel(request.key, this.token), times.keep);
      yield new Owe(new Map([[queue, owed]]), () => true);
    }
    return null;
  }

  /** Whose queue decides the turn. */
  queue(): number | undefined {
    return this.order[this.#queue];
  }

  /** Where to queue next, if not at the first member as ever. One whose turn came, and who is refused by a
   * later member, meets others who queue there, as the earlier ones are out of their reach; it goes to them,
   * for they cannot come. The queue of a member that refuses, while others grant or nobody has a majority,
   * does not move: the next one does. And whoever has waited in a later queue than the first stays there, as
   * the others do: each that went back alone would keep their head from a majority. */
  nextQueue(): number | undefined {
    const queue = this.queue();
    if (queue === undefined) return undefined;
    const later = this.order.slice(this.#queue + 1);
    if (this.refused(queue)) return later[0];
    const refusing = later.find((member) => this.refused(member));
    if (refusing !== undefined) return refusing;
    const earlier = this.members.all().filter((member) => !this.order.includes(member));
    return earlier.some((member) => this.#hasWaited || this.refused(member)) ? queue : undefined;
  }

  /** Whether others have what it asked for. Otherwise too few could vote, or it was too late. */
  isTaken(): boolean {
    if (this.grants() >= this.members.majority) return this.#isBehind;
    const isAble = (member: number) => {
      if (!this.answers.has(member)) return this.#mayVote(member);
      return this.#granted(member) || this.refused(member);
    };
    return this.members.all().filter(isAble).length >= this.members.majority;
  }

  /** Whether waiting there makes sense. */
  isReachable(member: number): boolean {
    return this.#mayVote(member) && !(this.answers.get(member) instanceof Error);
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

  #mayVote(member: number): boolean {
    return this.members.voters().includes(member);
  }

  /** Its turn has come: asks the others, whose holds may be about to be given back. */
  *#turn(since: number, end = Number.POSITIVE_INFINITY): Steps<Granted | null> {
    const { members } = this;
    let pause = FIRST_PAUSE;
    for (let tries = 0; tries < TRIES; tries++) {
      if (!members.hasMajority()) break;
      yield* this.#ask(members.voters().filter((member) => !this.#granted(member)));
      if (this.grants() >= members.majority) return yield* this.#won(since);
      // Its turn has come in another queue than that of those who have the rest. Two that each kept a part
      // until a missing member is back would keep everybody from a majority.
      const next = this.#hasWaited ? this.nextQueue() : undefined;
      const goesOn = next !== undefined && next !== this.queue();
      if (now() >= end || (goesOn && tries >= BRIEF_TRIES)) break;
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
    const answers: Answers = yield new Ask(asked, acquire(key, this.token, lease, terms), enough, heard);
    this.answers = new Map([...before, ...answers]);
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
    return { token: this.token, fence: this.#fence, validUntil, holders: this.holders };
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
      const answers: Answers = yield new Ask(counted, confirm(key, this.token, fence, lease), enough);
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
