// A wait in the queue of one member of a quorum. The queue position belongs to the token, not to a
// connection: all waits at the member share one connection, and keep their positions if it breaks. The member
// publishes the grant. As a message can be lost, a wait also repeats its request, which retains the position.

import { now, onGrid } from "./clock.js";
import { errorWord, GraceError, isOwnDeadlock, type LockError, NoAnswerError, refusal } from "./errors.js";
import type { Members } from "./members.js";
import { Owed } from "./owed.js";
import { acquire, freshToken, release } from "./protocol.js";
import type { QueueChoice, QueueWatch } from "./queue-choice.js";
import type { UnansweredLeases } from "./renewal.js";
import { QueuePosition, type Request, send, tryAcquire, zeroIfReplaced } from "./requests.js";
import { type Answers, Ask, at, Begin, Listen, Owe, Pause, Sleep, type Steps, To } from "./steps.js";
import { times, type Wait } from "./waits.js";

// Pauses between two requests of a wait that receives no messages, ms: it begins with FIRST_PAUSE, which doubles
// up to LONGEST_PAUSE, and is longer if the client has many waits.
const FIRST_PAUSE = 100;
const LONGEST_PAUSE = 500;
// Time after which the position or hold of a `#probe` ends by itself, ms.
const PROBE_KEPT_FOR = 1000;

/** Outcome of a wait. "granted": the token holds the lock at the member, since an unknown time. "left": the
 * wait timed out, an operator cancelled it, or the client moves all its waits for this lock to another queue.
 * An error: the member cannot grant. */
export type Waited = "granted" | "left" | Error;

/** One token in the queue of one member. */
export class Waiter {
  #pause = FIRST_PAUSE;
  /** The DEADLOCK of an earlier member: see `#askEarlier`. */
  #deadlock: unknown;

  constructor(
    private readonly members: Members,
    private readonly choice: QueueChoice,
    private readonly queue: number,
    private readonly request: Request,
    private readonly token: string,
    private readonly unanswered: UnansweredLeases,
    /** Time limit of an answer, ms. */
    private readonly limit: number,
  ) {}

  /** Waits for the grant, at most until `end`. `isLast`: whether this is the last queue that the client tries
   * (see `QueueWatch.check`). Throws an error that ends the whole acquisition, such as a `DeadlockError`. */
  *wait(end: number, isLast: boolean): Steps<Waited> {
    const wait: Wait = yield new To(this.queue, new Listen());
    const watch = this.choice.watch(this.queue, this.request);
    watch.waits.add(wait);
    try {
      // Waits until the client is subscribed, because it never receives messages that were published earlier.
      if (!wait.hasTriedToSubscribe) yield new Pause(wait, Math.min(this.limit, LONGEST_PAUSE));
      return yield* this.#askRepeatedly(wait, watch, end, isLast);
    } finally {
      wait.close();
      watch.waits.delete(wait);
      if (watch.waits.size === 0) this.choice.closeWatch(this.queue, this.request);
    }
  }

  /** Asks for the lock. Asks again when a message arrives, and before the position expires. */
  *#askRepeatedly(wait: Wait, watch: QueueWatch, end: number, isLast: boolean): Steps<Waited> {
    // The count rises when the client moves its waits to another queue.
    const departuresBefore = watch.departures;
    const position = new QueuePosition(wait, this.request.lease);
    let answeredAt = now();
    // Even if the wait receives no messages, and repeats its request more often.
    let askEarlierAt = now() + times.ask / 2;
    while (true) {
      wait.bell.clear();
      let pause: number;
      try {
        const acquired = yield* at(
          this.queue,
          tryAcquire(this.request, this.token, this.unanswered, position.beginCall()),
        );
        if (typeof acquired === "number") return "granted";
        wait.noteNull();
        answeredAt = now();
        // No message announces the end of a lock of another kind, such as `SET NX PX`.
        if (acquired === "foreign") pause = this.request.retryDelay;
        else if (position.receivesMessages) pause = position.pauseForMessage();
        else pause = position.pauseWithoutMessages(this.#backoff());
      } catch (why) {
        // The server may refuse an option of the request: asks again without it.
        if (position.changeRefusedOption(why)) continue;
        if (!(why instanceof NoAnswerError)) return this.#refused(why);
        // Ends the wait if the member is silent, or has not answered for as long as it retains a position.
        if (this.members.isSilent(this.queue) || now() > answeredAt + times.keep) {
          // Wakes the other waits at this member, which then find it silent, too.
          wait.wakeAll();
          return why;
        }
        pause = this.#backoff();
      }
      const askAt = Math.min(onGrid(now() + pause, pause), end);
      while (!wait.bell.isRung && now() < askAt && !this.members.isSilent(this.queue)) {
        yield new Pause(wait, Math.max(Math.min(askAt, watch.wakeAt()) - now(), 0));
        if (!wait.bell.isRung) yield* watch.check(isLast);
      }
      if (wait.granted !== undefined) return "granted";
      if (this.#deadlock !== undefined) throw refusal(this.#deadlock, this.request.name);
      if (wait.cancelled || watch.departures !== departuresBefore || now() >= end) return "left";
      if (this.members.isSilent(this.queue)) {
        wait.wakeAll();
        return new NoAnswerError("the master of the queue is silent");
      }
      if (wait.delay > 0) yield new Sleep(wait.takeDelay());
      const { owner } = this.request;
      const earlier = this.choice.before(this.queue);
      if (owner !== undefined && earlier.length > 0 && now() >= askEarlierAt) {
        askEarlierAt = now() + times.ask;
        yield new Begin(this.#askEarlier(earlier, owner, wait));
      }
    }
  }

  /** Asks the members before this one in the order whether the wait would close a cycle there. Each server sees its own
   * queue only, so no server finds a deadlock of this wait with one in the queue of an earlier member, which was silent
   * when this wait began. A deadlock wakes the wait; any other outcome means nothing. */
  *#askEarlier(earlier: readonly number[], owner: string, wait: Wait): Steps<void> {
    // The owner may have another token there for a moment, such as a position that it has given up.
    const isFound = (answer: unknown) => errorWord(answer) === "DEADLOCK" && !isOwnDeadlock(answer);
    const answers: Answers = yield new Ask(
      earlier,
      (member) => this.#probe(member, owner),
      (found) => [...found.values()].some(isFound),
    );
    const deadlock = [...answers.values()].find(isFound);
    if (deadlock === undefined) return;
    this.#deadlock = deadlock;
    wait.bell.ring();
  }

  /** Asks a member for a queue position of a fresh token, and releases the token at once. Throws the error with which
   * the member refuses. */
  *#probe(member: number, owner: string): Steps<void> {
    const { members } = this;
    const { key, lease, mode } = this.request;
    if (!members.mayVote(member)) yield* members.identify(member);
    const token = freshToken();
    const kept = Math.min(lease, PROBE_KEPT_FOR);
    const options = [...mode, "OWNER", owner, "QUEUE", String(kept)];
    try {
      yield* members.ask(member, send(acquire(key, token, kept, options)));
    } catch (why) {
      if (!(why instanceof NoAnswerError)) throw why;
    }
    const sendRelease = () => zeroIfReplaced(members.ask(member, send(release(key, token))));
    // These steps run at the member (see `Ask`), where its number is 0.
    yield new Owe(new Map([[0, new Owed(sendRelease, kept, 1)]]), () => true);
  }

  /** Returns an error that concerns only this member, such as GRACE: the round then tries the next queue.
   * Throws an error that ends the whole acquisition, such as DEADLOCK. */
  #refused(why: unknown): Error {
    const refused = refusal(why, this.request.name);
    if (!errorWord(why) || (refused !== undefined && !(refused instanceof GraceError))) throw refused ?? why;
    return why as LockError;
  }

  /** Returns the pause of a wait that receives no messages, ms. */
  #backoff(): number {
    const pause = this.#pause;
    this.#pause = Math.min(pause * 2, LONGEST_PAUSE);
    return pause;
  }
}
