// EXTEND on all members of a quorum, and the hold anew on those that have forgotten it.
//
// A member that restarted without its data, or that was away for a lease, holds nothing any more. If one
// after the other did, the hold would be lost, although a majority had it all the time. So such a member is
// asked for it again, by the rule of the Rust client: only once a majority has extended without it, and what
// it grants is no vote, as only a later EXTEND is. `crates/quorum/src/extension.rs` says why.

import type { Granted, Request } from "./attempt.js";
import { NoAnswerError, word } from "./errors.js";
import type { Members } from "./members.js";
import { type Args, acquire, extend } from "./protocol.js";
import type { Renewal } from "./renewal.js";
import { Begin, type Heard, type Steps } from "./steps.js";

export class Extension {
  constructor(
    private readonly members: Members,
    private readonly request: Request,
    private readonly granted: Granted,
    /** Whether a majority answers 1. */
    private readonly decided: (command: Args, heard: Heard) => Steps<boolean>,
  ) {}

  /** Whether a majority has the new lease. */
  *ask(hold: Renewal, lease: number): Steps<boolean> {
    const { token, holders } = this.granted;
    let extended = false;
    const notHeld = new Map<number, Steps<void>>();
    const heard: Heard = (member, answer) => {
      if (answer === 1) holders!.note(member);
      if (answer !== 0) return undefined;
      const restoring = this.#restore(member, hold, lease);
      if (extended) return restoring;
      notHeld.set(member, restoring);
      return undefined;
    };
    extended = yield* this.decided(extend(this.request.key, token, lease), heard);
    if (extended) for (const [member, restoring] of notHeld) yield new Begin(restoring, member);
    return extended;
  }

  *#restore(member: number, hold: Renewal, lease: number): Steps<void> {
    const { key, terms } = this.request;
    const { token, holders } = this.granted;
    try {
      this.members.heard(member, yield ["INFO", "server"]);
      if (!holders!.hasForgotten(member, lease) || hold.over || hold.isLost()) return;
      // With a position in the queue, for others may be there already. The next extension tells what came of
      // it, and keeps the position.
      // Without an answer, the server may carry it out after the first RELEASE.
      hold.releases = 2;
      holders!.asked.add(member);
      const granted: number | null = yield acquire(key, token, lease, [...terms, "QUEUE", String(lease)]);
      if (granted !== null) holders!.note(member);
    } catch (why) {
      // In its grace period, for example: the next extension asks again.
      if (!(why instanceof NoAnswerError || word(why))) throw why;
    }
  }
}
