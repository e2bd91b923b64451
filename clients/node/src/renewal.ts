// The validity of a hold, its renewal and its loss. Does no I/O and starts no timer: `run.ts` wakes each
// `Task` at its times, and carries out the steps that the task returns.

import { now, onGrid, validity } from "./clock.js";
import { errorWord, NotHeldError } from "./errors.js";
import { noteHeld, noteReleased } from "./owner.js";
import type { Args } from "./protocol.js";
import { Send, Sleep, type Steps, type Task } from "./steps.js";

// Pause before the claim of a grant by message, ms.
const CLAIM_PAUSE = 1;
// The reason of a loss by `maxHold`.
const HELD_TOO_LONG = "it was held for longer than maxHold";

/** What a hold asks the servers for, to learn of its loss: see `Granted` in `requests.ts`. */
interface WatchedHold {
  watchLoss(onGone: () => void): Steps<(() => void) | undefined>;
  isHeld(): Steps<boolean>;
}

/** The validity of one hold: the time for which its owner may rely on it. */
export class Renewal implements Task {
  /** See `Task`. */
  onChange: (() => void) | undefined;
  isReleased = false;
  /** Set once the hold is lost. */
  loss: NotHeldError | undefined;
  /** End of the longest time of the hold, on the clock of `now()`. */
  endsAt = Number.POSITIVE_INFINITY;
  #lossListeners: (() => void)[] | undefined;
  /** Longest lease that was requested, ms: the servers may retain the hold for this time. */
  longestLease: number;
  /** Number of RELEASEs that each member of a quorum must answer: 2 once the client has sent a member another
   * ACQUIRE for the hold. The member may read that ACQUIRE after the first RELEASE. */
  answersToRelease = 1;
  /** Time of the next try after a failed renewal. */
  #retryAt: number | undefined;
  /** Reason why the last renewal failed, for the message of the loss. */
  #failure = "";
  /** When a grant by message is claimed: in the background, after its owner has run. So an owner that releases the
   * lock at once causes no claim. */
  readonly #claimAt = now() + CLAIM_PAUSE;
  /** What the servers know of the hold; undefined until `watch`. */
  #watched: WatchedHold | undefined;
  /** When to watch the hold for its loss, or to ask for it after a report. */
  #watchAt = Number.POSITIVE_INFINITY;
  #isReportedGone = false;
  #endWatch: (() => void) | undefined;
  // Set during a renewal or an extension by the owner: two EXTENDs at once could be answered in either order.
  #isExtending = false;

  constructor(
    private readonly name: string,
    /** Lease that each renewal asks for, in ms. */
    public lease: number,
    /** End of the validity, on the clock of `now()`. */
    public validUntil: number,
    public isRenewed: boolean,
    /** The steps that set the lease. They return whether the token holds the lock. */
    private readonly setLease: (hold: Renewal, lease: number) => Steps<boolean>,
    /** Owner of the hold; undefined for none. */
    private readonly owner?: string,
    /** Set if a message has brought the grant: the lease in ms that the hold has until it is claimed. The first
     * extension claims it. */
    private shortLease?: number,
    /** The steps that find out why the servers no longer have the hold. */
    private readonly whyEnded?: () => Steps<string | undefined>,
  ) {
    this.longestLease = lease;
    if (owner !== undefined) noteHeld(owner, name, this);
  }

  /** Returns whether the hold is lost. Marks it as lost first if its validity has ended. */
  isLost(): boolean {
    if (this.loss === undefined && !this.isReleased) {
      const at = now();
      if (at >= this.endsAt) this.lose(HELD_TOO_LONG);
      else if (at >= this.validUntil) this.lose(`its lease ended${this.#failure}`);
    }
    return this.loss !== undefined;
  }

  /** Watches the hold for its loss from the time `at` on. */
  watch(hold: WatchedHold, at: number): void {
    this.#watched = hold;
    this.#watchAt = at;
  }

  *#watch(): Steps<void> {
    const hold = this.#watched!;
    this.#watchAt = Number.POSITIVE_INFINITY;
    if (this.#isReportedGone) {
      this.#isReportedGone = false;
      try {
        if (!(yield* hold.isHeld())) yield* this.loseElsewhere();
      } catch {
        // The next renewal finds the loss.
      }
      return;
    }
    const end = yield* hold.watchLoss(() => {
      this.#isReportedGone = true;
      this.#watchAt = now();
      this.onChange?.();
    });
    if (this.finished()) end?.();
    else this.#endWatch = end;
  }

  lose(why: string): void {
    if (this.loss !== undefined || this.isReleased) return;
    this.#endWatch?.();
    this.loss = new NotHeldError(`the lock ${this.name} is lost: ${why}`, this.name);
    if (this.owner !== undefined) noteReleased(this.owner, this.name, this);
    this.onChange?.();
    const listeners = this.#lossListeners ?? [];
    this.#lossListeners = undefined;
    for (const listener of listeners) listener();
  }

  /** Calls `listener` when the hold is lost. */
  whenLost(listener: () => void): void {
    if (this.isLost()) {
      listener();
    } else {
      this.#lossListeners ??= [];
      this.#lossListeners.push(listener);
    }
  }

  /** Loses a hold that the servers do not have any more. */
  *loseElsewhere(): Steps<void> {
    const reason = this.whyEnded === undefined ? undefined : yield* this.whyEnded();
    this.lose(`it was taken away: ${reason ?? "an operator or another command ended it"}`);
  }

  end(): void {
    this.isReleased = true;
    this.#endWatch?.();
    if (this.owner !== undefined) noteReleased(this.owner, this.name, this);
    this.onChange?.();
  }

  finished(): boolean {
    return this.isReleased || this.loss !== undefined;
  }

  /** Returns the time at which the hold is declared lost: the end of its validity. A renewed hold is declared
   * lost a tenth of the lease earlier, so that its owner has time to stop. */
  #lostAt(): number {
    return Math.min(this.validUntil - (this.isRenewed ? this.#presentLease / 10 : 0), this.endsAt);
  }

  get #presentLease(): number {
    return this.shortLease ?? this.lease;
  }

  wakeAt(): number {
    return Math.min(this.#watchAt, this.#renewAt());
  }

  #renewAt(): number {
    if (this.#isExtending) return this.#lostAt();
    if (this.shortLease !== undefined) return Math.min(this.#retryAt ?? this.#claimAt, this.#lostAt());
    if (!this.isRenewed) return this.#lostAt();
    // A renewal is due after a third of the lease, so that two thirds are left for retries.
    const renewAt = onGrid(this.validUntil - (this.lease * 2) / 3, this.lease);
    return Math.min(this.#retryAt ?? renewAt, this.#lostAt());
  }

  wake(): Steps<void> | undefined {
    if (now() >= this.#lostAt()) {
      if (now() >= this.endsAt) this.lose(HELD_TOO_LONG);
      else this.lose(this.isRenewed ? `not renewed in time${this.#failure}` : "its lease ended");
      return undefined;
    }
    if (now() >= this.#watchAt) return this.#watch();
    if (this.#isExtending) return undefined;
    this.#isExtending = true;
    return this.#renew();
  }

  *#renew(): Steps<void> {
    try {
      yield* this.#extend(this.lease);
      this.#retryAt = undefined;
    } catch (why) {
      this.#failure = `: ${(why as Error).message}`;
      // The next try follows after 5 to 10 % of the lease.
      this.#retryAt = now() + ((0.5 + Math.random() / 2) * this.#presentLease) / 10;
    } finally {
      this.#isExtending = false;
    }
  }

  /** Sets the lease at the owner's request, after the end of any renewal that is under way. Returns whether
   * the token holds the lock. */
  *extending(lease: number): Steps<boolean> {
    while (this.#isExtending) yield new Sleep(5);
    this.#isExtending = true;
    try {
      const isHeld = yield* this.#extend(lease);
      this.lease = lease;
      return isHeld;
    } catch (why) {
      // The request has no answer, so a server may set the requested lease later, even after a renewal. A
      // renewal for a longer lease would not extend the validity (see `UnansweredLeases.isCertain`), so renewals
      // ask for at most this lease.
      if (!errorWord(why)) this.lease = Math.min(this.lease, lease);
      throw why;
    } finally {
      this.#isExtending = false;
      this.onChange?.();
    }
  }

  *#extend(lease: number): Steps<boolean> {
    if (this.isLost()) return false;
    const sent = now();
    // The validity ends with the new lease at the latest, even if no reply arrives: the server may have set a
    // shorter lease.
    this.validUntil = Math.min(this.validUntil, sent + validity(lease));
    this.longestLease = Math.max(this.longestLease, lease);
    const isHeld = yield* this.setLease(this, lease);
    // A loss is final, even if the server has extended the hold: the owner may have stopped its work.
    if (this.isLost()) return false;
    if (!isHeld) {
      yield* this.loseElsewhere();
      return false;
    }
    this.validUntil = sent + validity(lease);
    this.shortLease = undefined;
    return true;
  }
}

/** Returns a function that returns whether the client has reconnected to the server since this call. */
export function reconnectionCheck(server: { readonly connections: number }): () => boolean {
  const { connections } = server;
  return () => server.connections !== connections;
}

/** A request that sets the lease to `lease` ms. */
class LeaseRequest extends Send {
  /** Number of the connection that carried the request. */
  connection = 0;

  constructor(
    command: Args,
    readonly lease: number,
    private readonly leases: UnansweredLeases,
  ) {
    super(command);
  }

  sent(): void {
    this.leases.noteSent(this);
  }

  replied(): void {
    this.leases.noteReplied(this);
  }
}

const NO_REQUESTS: readonly LeaseRequest[] = [];

/** The leases that unanswered requests of one hold may still set at one server. A reply shows that the server
 * has carried out all earlier requests on the same connection. A request on an earlier connection may arrive
 * at any time until the hold ends, and set its lease. Until then, a longer lease is not certain. */
export class UnansweredLeases {
  #sent: readonly LeaseRequest[] = NO_REQUESTS;

  constructor(private readonly server: { readonly connections: number }) {}

  /** Whether no unanswered request may still set a lease. */
  get isEmpty(): boolean {
    return this.#sent.length === 0;
  }

  /** Whether an unanswered request was sent over an earlier connection: it may arrive after any later request. */
  get hasOrphans(): boolean {
    return this.#sent.some(({ connection }) => connection !== this.server.connections);
  }

  /** Returns the step that sends a command which sets the lease to `lease` ms. */
  send(command: Args, lease: number): Send {
    return new LeaseRequest(command, lease, this);
  }

  noteSent(request: LeaseRequest): void {
    request.connection = this.server.connections;
    this.#sent = [...this.#sent, request];
  }

  /** Whether no unanswered request can still shorten a lease of `lease` ms. */
  isCertain(lease: number): boolean {
    return this.#sent.every((sent) => sent.lease >= lease);
  }

  noteReplied(request: LeaseRequest): void {
    // The client has resent the request over a new connection. This reply answers the second copy, and the
    // first copy may still arrive.
    if (request.connection !== this.server.connections) return;
    const at = this.#sent.indexOf(request);
    const left = this.#sent.filter(
      ({ connection }, index) => index > at || connection !== request.connection,
    );
    this.#sent = left.length === 0 ? NO_REQUESTS : left;
  }
}
