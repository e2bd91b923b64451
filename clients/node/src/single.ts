// A lock on a single server: one acquisition with its wait in the queue, and the hold.

import { now, onGrid, validity } from "./clock.js";
import { errorWord, GraceError, isNotNow, LateError, LockError, NoAnswerError, refusal } from "./errors.js";
import { ANSWERS_TO_RELEASE, Owed, timeUntilExpired } from "./owed.js";
import { cancel, extend, freshToken, holds, release } from "./protocol.js";
import { type Renewal, reconnectionCheck, UnansweredLeases } from "./renewal.js";
import {
  type Acquired,
  type Acquisition,
  type DelayServer,
  type Granted,
  MAX_LATE,
  QueuePosition,
  type Request,
  releaseAndClose,
  requireDelay,
  send,
  tryAcquire,
  whyEnded,
  zeroIfReplaced,
} from "./requests.js";
import { Listen, Owe, Pause, Replicate, Sleep, type Steps, WatchLoss } from "./steps.js";
import { ContendedKeys, times, type Wait } from "./waits.js";

// Longest pause between two requests during the grace period of the server, ms.
const GRACE_CHECK = 2000;

// The locks that this process found taken within the last second, on any server.
const contended = new ContendedKeys();

/** What this file reads of the server's `Channel`. */
interface Server extends DelayServer {
  readonly isClosed: boolean;
}

/** One acquisition, with one token. */
export class SingleAttempt implements Acquisition {
  readonly #token = freshToken();
  readonly #acquires: UnansweredLeases;
  /** Whether a request was sent, so that the server may have granted the lock. */
  #isAsked = false;
  /** Undefined until the acquisition waits in the queue. */
  #position: QueuePosition | undefined;
  /** The error of the last request if it had no answer, or if the server could not carry it out (see
   * `isNotNow`). */
  #failure: unknown;
  /** Time of the first request since the last answer. The server may have executed that request, and then
   * counts the lease from that time. */
  #sentAt: number | undefined;
  /** Time of the last answer. */
  #answeredAt = now();

  constructor(
    private readonly request: Request,
    private readonly server: Server,
  ) {
    this.#acquires = new UnansweredLeases(server);
  }

  takeBack(): Owe | undefined {
    if (!this.#isAsked) return undefined;
    const { key, lease } = this.request;
    const sendRelease = () => zeroIfReplaced(send(release(key, this.#token)));
    const isSettled = () => this.#acquires.isEmpty;
    const answers = this.#acquires.hasOrphans ? ANSWERS_TO_RELEASE : 1;
    const owed = new Owed(sendRelease, timeUntilExpired(lease), answers, isSettled);
    return new Owe(new Map([[0, owed]]), () => owed.removed !== undefined);
  }

  *run(waits: boolean, end: number): Steps<Granted | null> {
    try {
      const granted = yield* this.#acquire(waits, end);
      if (granted !== null) return granted;
      if (this.#failure !== undefined) throw this.#failure;
      // Removes the position, or ends a hold that was granted in the meantime.
      const leave = send(release(this.request.key, this.#token));
      if (this.#position !== undefined) yield* zeroIfReplaced(leave);
      // If a connection broke, the client has sent the ACQUIRE again, and the server may read the first copy
      // after this release.
      if (!this.#acquires.isEmpty) yield this.takeBack()!;
      return null;
    } finally {
      this.#position?.wait.close();
    }
  }

  *#acquire(waits: boolean, end: number): Steps<Granted | null> {
    const { name, retryDelay } = this.request;
    let lateGrants = 0;
    let held: Granted | null;
    if (waits && now() < end && !this.server.isClosed && contended.has(name)) yield* this.#listen(end);
    while (true) {
      let pause: number;
      try {
        const acquired = yield* this.#tryAcquire();
        if (typeof acquired === "number") {
          const granted = this.#granted(acquired);
          if (granted !== null) return granted;
          lateGrants += 1;
          if (lateGrants === MAX_LATE) {
            throw new LateError(`${name}: the ttl is too short for this server`, name);
          }
          continue;
        }
        if (waits && acquired === null) contended.note(name);
        if (waits && acquired === null && this.#position === undefined && now() < end) {
          yield* this.#listen(end);
          continue;
        }
        pause = acquired === null ? this.#pauseForMessage() : retryDelay;
        held = this.#holdByMessage();
        if (held !== null) return held;
      } catch (why) {
        // If the server refused an option, repeats the request without the option.
        if (this.#position?.changeRefusedOption(why)) continue;
        held = this.#holdByMessage();
        if (held !== null) return held;
        pause = this.#pauseAfter(why, waits, end);
      }
      const left = end - now();
      if (!waits || left <= 0) return null;
      pause = Math.min(onGrid(now() + pause, pause) - now(), left);
      const wait = this.#position?.wait;
      yield wait === undefined ? new Sleep(pause) : new Pause(wait, pause);
      if (wait?.cancelled) {
        if (!(yield* this.#hasReconnectedSince(wait.cancelledOn))) return null;
        wait.cancelled = false;
      }
      if (wait !== undefined && wait.delay > 0) yield new Sleep(wait.takeDelay());
      held = this.#holdByMessage();
      if (held !== null) return held;
    }
  }

  /** Returns whether an ephemeral position on this connection has ended with it, and not by an operator. */
  *#hasReconnectedSince(connection: number): Steps<boolean> {
    if (!this.request.isEphemeral) return false;
    try {
      // The reply shows whether the connection is still the same.
      yield holds(this.request.key, this.#token);
    } catch (why) {
      if (!(why instanceof NoAnswerError) && !errorWord(why)) throw why;
    }
    return this.server.connections !== connection;
  }

  *#tryAcquire(): Steps<Acquired> {
    yield* requireDelay(this.request, this.server);
    this.#sentAt ??= now();
    this.#isAsked = true;
    this.#position?.wait.bell.clear();
    const position = this.#position?.beginCall(this.server.connections);
    const acquired = yield* tryAcquire(this.request, this.#token, this.#acquires, position);
    if (acquired === null) this.#position?.wait.noteNull();
    this.#answeredAt = now();
    this.#failure = undefined;
    if (typeof acquired !== "number") this.#sentAt = undefined;
    return acquired;
  }

  /** Returns the hold; null if the grant arrived after the end of its lease. */
  #granted(fence: number): Granted | null {
    const validUntil = this.#sentAt! + validity(this.request.lease);
    this.#sentAt = undefined;
    if (this.#answeredAt >= validUntil) return null;
    const { request, server } = this;
    return new SingleHold(request, server, this.#token, fence, validUntil, this.#answeredAt, this.#acquires);
  }

  /** Returns the hold that a message has brought; null if there is none, if too little of its lease is left, if the
   * lock has a `delay`, which follows no hold that is not claimed, or if an unanswered request may still show that this
   * hold has ended: then the next request claims the grant. */
  #holdByMessage(): Granted | null {
    const position = this.#position;
    const granted = position?.wait.granted;
    if (position === undefined || granted === undefined || this.request.hasDelay) return null;
    const { shortLease } = position;
    if (granted.validUntil - now() < shortLease / 3 || !this.#acquires.isEmpty) return null;
    const { request, server } = this;
    return new SingleHold(
      request,
      server,
      this.#token,
      granted.fence,
      granted.validUntil,
      granted.receivedAt,
      this.#acquires,
      position,
    );
  }

  /** Opens a wait. The following requests ask for a queue position. */
  *#listen(end: number): Steps<void> {
    const wait: Wait = yield new Listen();
    this.#position = new QueuePosition(wait, this.request.lease);
    // Waits for the subscription, as a message that the server sends earlier is lost. If the client cannot
    // subscribe, only its first wait is delayed.
    if (!wait.hasTriedToSubscribe) yield new Pause(wait, Math.min(times.connect, end - now()));
  }

  /** Returns the pause before the next request if no message arrives, ms. */
  #pauseForMessage(): number {
    if (this.#position === undefined) return this.request.retryDelay;
    if (!this.#position.receivesMessages) return this.#position.pauseWithoutMessages(this.request.retryDelay);
    return this.#position.pauseForMessage();
  }

  /** Returns the pause before the next request after one that failed, ms. Throws the error of the acquisition if
   * it cannot wait for a better answer. */
  #pauseAfter(why: unknown, waits: boolean, end: number): number {
    const { name, retryDelay } = this.request;
    this.#failure = why;
    if (why instanceof NoAnswerError) {
      const isLoading = isNotNow(why.cause);
      // The position may have expired.
      const isLost = now() - this.#answeredAt > times.keep;
      if (this.server.isClosed || !waits || (isLost && !isLoading)) throw why;
      return retryDelay;
    }
    this.#answeredAt = now();
    // Only a wait that ended with UNBLOCKED may have been granted before.
    if (errorWord(why) !== "UNBLOCKED") this.#sentAt = undefined;
    if (waits && isNotNow(why)) return retryDelay;
    const refused = why instanceof LockError ? undefined : refusal(why, name);
    // An operator can end the grace period early.
    if (refused instanceof GraceError && waits && now() + refused.left < end) {
      this.#failure = undefined;
      return Math.min(refused.left, GRACE_CHECK);
    }
    throw refused ?? why;
  }
}

export class SingleHold implements Granted {
  readonly #leases: UnansweredLeases;
  readonly shortLease: number | undefined;
  isUnused = false;
  delayRefusal: unknown;

  constructor(
    private request: Request,
    private readonly server: Server,
    readonly token: string,
    readonly fence: number | null,
    readonly validUntil: number,
    /** When the grant arrived, on the clock of `now()`. */
    private readonly grantedAt: number,
    /** The ACQUIREs with the token that have no answer. */
    private readonly acquires = new UnansweredLeases(server),
    /** Set if a message has brought the grant: the position of the wait. */
    private unclaimed?: QueuePosition,
  ) {
    this.#leases = new UnansweredLeases(server);
    this.shortLease = unclaimed?.shortLease;
  }

  *setLease(hold: Renewal, lease: number): Steps<boolean> {
    if (this.unclaimed !== undefined) {
      const isClaimed = yield* this.#claim(hold, lease, this.unclaimed.keep);
      if (isClaimed !== undefined) return isClaimed;
    }
    const command = this.#leases.send(extend(this.request.key, this.token, lease), lease);
    const held = yield* zeroIfReplaced(send(command));
    if (held > 0 && !this.#leases.isCertain(lease)) {
      throw new NoAnswerError(
        `${this.server.address}: an earlier request for a shorter lease has no answer, and may still arrive`,
      );
    }
    return held > 0;
  }

  /** Claims a grant that a message has brought, which sets its lease. Unlike EXTEND, ACQUIRE shows the fence: after
   * BREAK, a request of the wait that the server reads late can give the token another hold. Returns whether the
   * token still has the hold; undefined if the server is out of memory, and would carry out an EXTEND. */
  *#claim(hold: Renewal, lease: number, keep: number): Steps<boolean | undefined> {
    const { request, token } = this;
    let found: Acquired;
    try {
      const position = ["QUEUE", String(keep)];
      found = yield* tryAcquire({ ...request, lease }, token, this.acquires, position);
    } catch (why) {
      if (errorWord(why) === "OOM") return undefined;
      throw why;
    }
    this.unclaimed = undefined;
    if (found === this.fence) return true;
    // The token has a queue position or another hold, or the message was forged.
    const sendRelease = () => zeroIfReplaced(send(release(request.key, token)));
    const owed = new Owed(sendRelease, timeUntilExpired(hold.longestLease), ANSWERS_TO_RELEASE);
    yield new Owe(new Map([[0, owed]]), () => true);
    return false;
  }

  *isHeld(): Steps<boolean> {
    return (yield* zeroIfReplaced(send(holds(this.request.key, this.token)))) > 0;
  }

  whyEnded(): Steps<string | undefined> {
    return whyEnded(this.request.key, this.token, this.fence);
  }

  *watchLoss(onGone: () => void): Steps<() => void> {
    return yield new WatchLoss(this.request.key, this.token, onGone);
  }

  *downgrade(): Steps<boolean> {
    const request = { ...this.request, mode: ["SHARED"] };
    const found = yield* tryAcquire(request, this.token, this.acquires);
    if (found !== this.fence) return false;
    this.request = request;
    return true;
  }

  *upgrade(hold: Renewal, end: number): Steps<boolean | null> {
    const exclusive: Request = { ...this.request, mode: [], lease: hold.lease };
    const wait: Wait = yield new Listen();
    const position = new QueuePosition(wait, hold.lease);
    try {
      if (!wait.hasTriedToSubscribe) yield new Pause(wait, Math.max(Math.min(times.connect, end - now()), 0));
      while (!hold.isLost()) {
        wait.bell.clear();
        let pause = this.request.retryDelay;
        try {
          const found = yield* tryAcquire(exclusive, this.token, this.acquires, position.beginCall());
          if (typeof found === "number") {
            if (found !== this.fence) return null;
            this.request = exclusive;
            return true;
          }
          wait.noteNull();
          pause = position.receivesMessages ? position.pauseForMessage() : pause;
        } catch (why) {
          if (position.changeRefusedOption(why)) continue;
          if (!(why instanceof NoAnswerError || isNotNow(why))) throw refusal(why, this.request.name) ?? why;
        }
        if (now() >= end || wait.cancelled) break;
        yield new Pause(wait, Math.max(Math.min(pause, end - now()), 0));
      }
    } catch (why) {
      yield* this.#leaveUpgrade();
      throw why;
    } finally {
      wait.close();
    }
    yield* this.#leaveUpgrade();
    return hold.isLost() ? null : false;
  }

  /** Leaves the queue of an upgrade. If the upgrade was granted meanwhile, makes the hold a shared one again. */
  *#leaveUpgrade(): Steps<void> {
    try {
      yield cancel(this.request.key, this.token);
      yield* tryAcquire({ ...this.request, owner: undefined }, this.token, this.acquires);
    } catch (why) {
      // Without an answer, the position ends by itself, and the hold may be exclusive.
      if (!(why instanceof NoAnswerError) && !errorWord(why)) throw why;
    }
  }

  *replicate(replicas: number, timeout: number): Steps<boolean> {
    return yield new Replicate(extend(this.request.key, this.token, this.request.lease), replicas, timeout);
  }

  *release({ longestLease, loss }: Renewal): Steps<boolean | undefined> {
    const hasReconnected = reconnectionCheck(this.server);
    const { key, atLeast } = this.request;
    // A hold that was lost keeps nothing closed.
    const closedUntil = this.isUnused || loss !== undefined ? 0 : this.grantedAt + atLeast;
    const onRefusal = (why: unknown) => (this.delayRefusal = why);
    const sendRelease = () => releaseAndClose(key, this.token, closedUntil, onRefusal);
    const owed = new Owed(sendRelease, longestLease, ANSWERS_TO_RELEASE, () => this.acquires.isEmpty);
    let removed: number;
    try {
      removed = yield* sendRelease();
    } catch (why) {
      // The release is owed after an error reply, too: a server that refuses writes retains the hold.
      yield new Owe(new Map([[0, owed]]), () => owed.removed !== undefined);
      if (owed.removed === undefined) throw why;
      return owed.removed > 0 ? true : undefined;
    }
    // If a connection broke, the client has sent the ACQUIRE again, and the server may read the first copy
    // after this release.
    if (!this.acquires.isEmpty) yield new Owe(new Map([[0, owed]]), () => true);
    if (removed > 0) return true;
    // After a reconnect, the client has sent the RELEASE again, and the first copy may have ended the hold.
    return hasReconnected() ? undefined : false;
  }
}
