// The election of a leader: the holder of a lock leads, and the fence is the number of its term.

import { setTimeout as pause } from "node:timers/promises";
import {
  GraceError,
  isNotNow,
  NoAnswerError,
  NoQuorumError,
  NotHeldError,
  QueueFullError,
  ResourceLockedError,
} from "./errors.js";
import type { Client } from "./links.js";
import { type AcquireOptions, type Hold, Lock, type LockOptions } from "./lock.js";
import { checkNames, checkSignal } from "./options.js";
import type { Key } from "./protocol.js";
import type { Holder } from "./reading.js";
import type { Quorum } from "./service.js";

// First and longest pause after a campaign that failed, ms.
const FIRST_PAUSE = 50;
const LONGEST_PAUSE = 2000;
// Pause between two looks at who leads, ms.
const LOOK_PAUSE = 1000;

/** Elects one of many processes, as `dlock elect` does. */
export class Leader {
  readonly #lock: Lock;

  /** Takes the arguments of `new Lock`, without `shared` and `permits`, with which several processes would lead at once.
   * The label of the leader is what `current` and `observe` show. */
  constructor(client: Client | Quorum, key: Key, options: Omit<LockOptions, "shared" | "permits"> = {}) {
    this.#lock = new Lock(client, key, options);
    for (const name of ["shared", "permits"] as const) {
      if ((options as LockOptions)[name]) {
        throw new TypeError(`${name}: a leader holds its lock alone: leave ${name} out`);
      }
    }
  }

  /** Waits until this process leads. Returns the term: lead until `term.signal` is aborted, and call `term.release()` to
   * resign. Goes on while the servers are away, until the signal is aborted: then throws its reason. */
  async campaign(options: Pick<AcquireOptions, "signal"> = {}): Promise<Hold> {
    const signal = signalOf(options);
    for (let wait = FIRST_PAUSE; ; wait = Math.min(wait * 2, LONGEST_PAUSE)) {
      try {
        return await this.#lock.acquire({ signal });
      } catch (why) {
        signal?.throwIfAborted();
        if (!mayPass(why)) throw why;
      }
      await pause(wait, undefined, { signal }).catch(() => signal?.throwIfAborted());
    }
  }

  /** Campaigns, and calls `lead` with the term and a signal: it is aborted when the term is lost, or when the signal of
   * the options is aborted. Campaigns again when a term was lost. When `lead` returns otherwise, resigns and returns its
   * result. When the signal of the options is aborted, resigns and throws its reason. */
  async run<T>(
    lead: (term: Hold, signal: AbortSignal) => T | Promise<T>,
    options: Pick<AcquireOptions, "signal"> = {},
  ): Promise<T> {
    const signal = signalOf(options);
    while (true) {
      const term = await this.campaign({ signal });
      const ends = signal === undefined ? term.signal : AbortSignal.any([signal, term.signal]);
      let result: T | undefined;
      let failure: { why: unknown } | undefined;
      try {
        result = await lead(term, ends);
      } catch (why) {
        failure = { why };
      }
      const isLost = term.signal.aborted;
      await resign(term).catch((why) => {
        // The error of `lead` passes, as in `using`.
        if (failure === undefined) throw why;
      });
      signal?.throwIfAborted();
      if (isLost) continue;
      if (failure !== undefined) throw failure.why;
      return result as T;
    }
  }

  /** Returns the present leader; undefined if there is none, or if the user has no right to INSPECT. Over a quorum, a
   * majority has the leader. Throws `NoQuorumError` if no majority answers, and `NoAnswerError` if a single server does
   * not. */
  async current(): Promise<Holder | undefined> {
    return this.#lock.leader();
  }

  /** Iterates over the leaders: the present one first, and undefined for a time without one, until the signal is aborted.
   * Looks once a second, so it may miss a short term. An error of `current` ends the iteration: a new one begins with the
   * present leader. */
  async *observe(
    options: Pick<AcquireOptions, "signal"> = {},
  ): AsyncGenerator<Holder | undefined, void, undefined> {
    const signal = signalOf(options);
    let seen: string | undefined;
    while (!signal?.aborted) {
      const leader = await this.current();
      const token = leader?.token ?? "";
      if (token !== seen) yield leader;
      seen = token;
      await pause(LOOK_PAUSE, undefined, { signal }).catch(() => {});
    }
  }
}

function signalOf(options: Pick<AcquireOptions, "signal">): AbortSignal | undefined {
  checkNames(options, ["signal"]);
  checkSignal(options.signal);
  return options.signal ?? undefined;
}

/** Releases a term. A release without an answer continues in the background. */
async function resign(term: Hold): Promise<void> {
  try {
    await term.release();
  } catch (why) {
    const isKnown = [NotHeldError, NoAnswerError, NoQuorumError].some((kind) => why instanceof kind);
    if (!isKnown && !isNotNow(why)) throw why;
  }
}

/** Returns whether a later campaign may succeed. */
function mayPass(why: unknown): boolean {
  const passing = [NoAnswerError, NoQuorumError, ResourceLockedError, QueueFullError, GraceError];
  return passing.some((kind) => why instanceof kind) || isNotNow(why);
}
