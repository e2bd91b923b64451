// The members of a quorum: who they are, and who holds what.

import { now } from "./clock.js";
import { LockError, NoAnswerError } from "./errors.js";
import { type Answers, Ask, type Steps } from "./steps.js";

// How often members are asked who they are, ms: one that was restarted is another server.
const TELL_APART = 10_000;

/** The members, and what is known of them. */
export class Members {
  readonly majority: number;
  /** Who each member was when it was last asked. */
  readonly runIds = new Map<number, string>();
  /** When to ask again. */
  tellApartAt = 0;
  /** One that is the same server as another. */
  #double: number | undefined;

  constructor(readonly addresses: readonly string[]) {
    this.majority = Math.floor(addresses.length / 2) + 1;
  }

  /** The order in which everybody tries their queues, however the addresses are spelled. */
  order(): readonly number[] {
    const rank = (member: number) => this.runIds.get(member) ?? `unknown ${this.addresses[member]}`;
    return [...this.all()].sort((one, other) => (rank(one) < rank(other) ? -1 : 1));
  }

  all(): readonly number[] {
    return [...this.addresses.keys()];
  }

  /** Finds the members that may vote. Two addresses of one server would vote twice, so one that has not said
   * who it is has no vote. Those that are known are asked again without waiting for them. */
  *tellApart(): Steps<void> {
    const unknown = this.all().filter((member) => !this.runIds.has(member));
    if (this.runIds.size < this.majority || now() >= this.tellApartAt) {
      this.tellApartAt = now() + TELL_APART;
      const enough = (answers: Answers) => unknown.every((member) => answers.has(member));
      yield new Ask(this.all(), ["INFO", "server"], enough, (member, answer) => this.heard(member, answer));
    }
    const double = this.#double;
    this.#double = undefined;
    if (double !== undefined) {
      const address = this.addresses[double];
      throw new LockError(`two members of the quorum are the same server: name ${address} once`);
    }
  }

  /** Who a member says it is. */
  heard(member: number, answer: unknown): undefined {
    if (answer instanceof NoAnswerError) return;
    // Without the right to ask, nobody can tell.
    const runId = /^run_id:(\w+)/m.exec(String(answer))?.[1] ?? `unknown ${member}`;
    if ([...this.runIds].some(([other, known]) => other !== member && known === runId)) {
      this.runIds.delete(member);
      this.#double = member;
    } else {
      this.runIds.set(member, runId);
    }
  }

  report(answers: Answers): string {
    const said = (answer: unknown) => {
      if (typeof answer === "number") return "granted";
      if (answer === null) return "taken";
      return answer instanceof Error ? answer.message : "no answer yet";
    };
    return this.addresses.map((address, member) => `${address}: ${said(answers.get(member))}`).join("; ");
  }
}

/** The members that hold one token's hold, as far as is known. */
export class Holders {
  /** Who each was, and when it said so. */
  readonly #noted = new Map<number, readonly [runId: string | undefined, when: number]>();

  constructor(private readonly members: Members) {}

  note(member: number): void {
    this.#noted.set(member, [this.members.runIds.get(member), now()]);
  }

  /** Whether a member that does not hold it has forgotten it: it never did, is another server since, or was
   * not reached for a lease. Otherwise somebody has taken it away there, and it stays so. */
  hasForgotten(member: number, lease: number): boolean {
    const [runId, when] = this.#noted.get(member) ?? [undefined, 0];
    if (runId !== this.members.runIds.get(member) || now() >= when + lease) return true;
    this.#noted.set(member, [runId, Number.POSITIVE_INFINITY]);
    return false;
  }
}
