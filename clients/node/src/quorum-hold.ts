// A hold of a quorum: extension, release, and restoring the hold at members that have forgotten it.
//
// A member that restarted without its data, or was unreachable for a whole lease, has forgotten the hold. If
// the members forgot it one after the other, the hold would be lost, although a majority had it at every
// moment. So an extension asks such a member for the hold again, but only after a majority has extended
// without it. The new grant does not count as a vote; the answer of that member to a later EXTEND
// does. crates/quorum/src/extension.rs says why that is safe.

import { now } from "./clock.js";
import { errorWord, NoAnswerError, NoQuorumError } from "./errors.js";
import { MemberHolds, type Members } from "./members.js";
import { ANSWERS_TO_RELEASE, Owed } from "./owed.js";
import { extend, holds } from "./protocol.js";
import type { Renewal } from "./renewal.js";
import {
  type Granted,
  type Request,
  releaseAndClose,
  send,
  tryAcquire,
  whyEnded,
  zeroIfReplaced,
} from "./requests.js";
import type { Won } from "./round.js";
import { type Answers, Ask, Begin, Owe, Replicate, type Steps } from "./steps.js";

export class QuorumHold implements Granted {
  readonly token: string;
  readonly fence: number | null;
  readonly validUntil: number;
  isUnused = false;
  delayRefusal: unknown;
  readonly #holds: MemberHolds;
  readonly #grantedAt = now();

  constructor(
    private readonly members: Members,
    private request: Request,
    won: Won,
    /** Whether members that have forgotten the hold are asked for it again. */
    private readonly restores = true,
  ) {
    this.token = won.token;
    this.fence = won.fence;
    this.validUntil = won.validUntil;
    this.#holds = won.holds;
  }

  /** Returns a hold that another object acquired. Any member may have the hold. A member that has forgotten
   * the hold is not asked for it again, as the other object may have released the lock meanwhile. */
  static adopted(members: Members, request: Request, token: string, validUntil: number): QuorumHold {
    const holds = new MemberHolds(members);
    for (const member of members.all()) holds.asked.add(member);
    return new QuorumHold(members, request, { token, fence: null, validUntil, holds }, false);
  }

  *setLease(hold: Renewal, lease: number): Steps<boolean> {
    let isExtended = false;
    const withoutHold: number[] = [];
    const ask = function* (this: QuorumHold, member: number): Steps<boolean> {
      if (yield* this.#extend(member, lease)) return true;
      // If this answer comes after those of a majority, the member is asked for the hold at once.
      if (isExtended) yield new Begin(this.#restore(member, hold, lease));
      else withoutHold.push(member);
      return false;
    };
    isExtended = yield* this.#vote(ask.bind(this));
    if (isExtended) {
      for (const member of withoutHold) yield new Begin(this.#restore(member, hold, lease), member);
    }
    return isExtended;
  }

  /** Extends the lease at one member. Returns whether the member has the hold. While an earlier unanswered
   * request can still shorten the lease, throws `NoAnswerError`: the member then has no vote. */
  *#extend(member: number, lease: number): Steps<boolean> {
    const leases = this.#holds.leases(member);
    const command = leases.send(extend(this.request.key, this.token, lease), lease);
    const held = yield* zeroIfReplaced(this.members.ask(member, send(command)));
    if (held === 0) return false;
    this.#holds.noteConfirmed(member);
    if (!leases.isCertain(lease)) {
      throw new NoAnswerError(
        `${this.members.address(member)}: an earlier request for a shorter lease has no answer, and may still arrive`,
      );
    }
    return true;
  }

  /** Asks a member for the hold again, if the member has forgotten it. */
  *#restore(member: number, hold: Renewal, lease: number): Steps<void> {
    if (!this.restores || !this.#holds.hasForgotten(member, lease) || hold.isReleased || hold.isLost())
      return;
    // The member may read this ACQUIRE after the first RELEASE, so the release needs a second answer.
    hold.answersToRelease = ANSWERS_TO_RELEASE;
    this.#holds.asked.add(member);
    try {
      // The request asks for a queue position, as another client may hold the lock at this member. The EXTEND
      // of the next extension shows whether the lock was granted meanwhile. If not, another ACQUIRE retains the
      // position. The request names no owner: in its search for deadlocks, the server would otherwise count the
      // owner as waiting.
      const request = { ...this.request, lease, owner: undefined };
      const position = ["QUEUE", String(lease)];
      const restoring = tryAcquire(request, this.token, this.#holds.acquires(member), position);
      if (typeof (yield* this.members.ask(member, restoring)) === "number") this.#holds.noteConfirmed(member);
    } catch (why) {
      // The member may be in its grace period, for example. The next extension asks it again.
      if (!(why instanceof NoAnswerError || errorWord(why))) throw why;
    }
  }

  *whyEnded(): Steps<string | undefined> {
    const answers: Answers = yield new Ask(
      this.members.voters(),
      () => whyEnded(this.request.key, this.token, null),
      () => false,
    );
    return [...answers.values()].find((answer) => typeof answer === "string") as string | undefined;
  }

  // biome-ignore lint/correctness/useYield: the next renewal finds the loss
  *watchLoss(): Steps<undefined> {
    return undefined;
  }

  /** A member that has forgotten the hold grants a new one, which does not lengthen the validity. */
  *downgrade(): Steps<boolean> {
    this.request = { ...this.request, mode: ["SHARED"], owner: undefined };
    const { members, request, token } = this;
    const memberHolds = this.#holds;
    return yield* this.#vote(function* (member) {
      const found = yield* members.ask(member, tryAcquire(request, token, memberHolds.acquires(member)));
      return typeof found === "number";
    });
  }

  // biome-ignore lint/correctness/useYield: steps that always fail
  *upgrade(): Steps<never> {
    throw new TypeError(
      "an upgrade needs a single server: release the shared hold, and acquire the lock again",
    );
  }

  *replicate(replicas: number, timeout: number): Steps<boolean> {
    const { members, request, token } = this;
    const write = extend(request.key, token, request.lease);
    return yield* this.#vote((member) =>
      members.ask(
        member,
        (function* (): Steps<boolean> {
          return yield new Replicate(write, replicas, timeout);
        })(),
      ),
    );
  }

  isHeld(): Steps<boolean> {
    const { members, request, token } = this;
    return this.#vote(function* (member) {
      return (yield* zeroIfReplaced(members.ask(member, send(holds(request.key, token))))) > 0;
    });
  }

  /** Ends the hold. Returns whether it still existed; undefined if a RELEASE without an answer may have ended
   * it. */
  *release({ longestLease, answersToRelease, loss }: Renewal): Steps<boolean | undefined> {
    const owed = new Map<number, Owed>();
    const hasReconnected = new Map<number, () => boolean>();
    const { key, atLeast } = this.request;
    // A hold that was lost keeps nothing closed.
    const closedUntil = this.isUnused || loss !== undefined ? 0 : this.#grantedAt + atLeast;
    // By member: the error with which it has refused the delay.
    const refusals = new Map<number, unknown>();
    for (const member of this.#holds.asked) {
      const isSettled = () => this.#holds.acquires(member).isEmpty;
      const onRefusal = (why: unknown) => refusals.set(member, why);
      const sendRelease = () =>
        this.members.ask(member, releaseAndClose(key, this.token, closedUntil, onRefusal));
      owed.set(member, new Owed(sendRelease, longestLease, answersToRelease, isSettled));
      hasReconnected.set(member, this.members.reconnectionCheck(member));
    }
    /** Returns whether the release ended the hold at a member; undefined before its first answer. With
     * `onlyCertain`, a RELEASE without an answer does not count. */
    const vote = (member: number, onlyCertain: boolean) => {
      const owedRelease = owed.get(member);
      // A member that was not asked has no hold.
      if (owedRelease === undefined) return false;
      if (owedRelease.removed === undefined) return undefined;
      if (owedRelease.removed > 0) return true;
      // After a reconnect, the client may have sent the RELEASE again. The first copy may have ended the hold,
      // so that the second copy found none.
      return !onlyCertain && (owedRelease.isUnanswered || hasReconnected.get(member)!());
    };
    const decide = (onlyCertain: boolean) =>
      this.members.decide(this.members.all().map((member) => vote(member, onlyCertain)));
    /** Returns whether a majority keeps the lock closed; undefined while missing answers could decide. */
    const isClosed = () =>
      this.members.decide(
        this.members.all().map((member) => (refusals.has(member) ? false : vote(member, false))),
      );
    yield new Owe(
      owed,
      () => decide(false) === false || (decide(false) === true && isClosed() !== undefined),
    );
    if (refusals.size > 0 && isClosed() !== true) [this.delayRefusal] = refusals.values();
    const mayBeReleased = decide(false);
    if (mayBeReleased === undefined) {
      throw new NoQuorumError("the release is not confirmed yet: it continues in the background");
    }
    if (decide(true) === true) return true;
    return mayBeReleased ? undefined : false;
  }

  *#vote(ask: (member: number) => Steps<boolean>): Steps<boolean> {
    const decided = yield* this.members.vote(ask);
    if (typeof decided === "boolean") return decided;
    throw this.members.undecided(decided, this.request.name);
  }
}
