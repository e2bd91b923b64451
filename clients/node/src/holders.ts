// The holders of one lock, as the members of a quorum see them.

import type { Tokens } from "./protocol.js";

export class Holders {
  constructor(
    /** The holders by member; undefined at a member that did not show them. */
    private readonly tokens: readonly (Tokens | undefined)[],
    private readonly majority: number,
  ) {}

  /** Returns the holders at a member; undefined if they are unknown. */
  at(member: number): Tokens | undefined {
    return this.tokens[member];
  }

  /** Returns whether one holder has a majority. */
  hasMajority(): boolean {
    return this.tokens.some((tokens) => [...(tokens?.keys() ?? [])].some((token) => this.#isMajority(token)));
  }

  /** Returns whether the wait queue of a member can move: one of its holders has, or may have, a majority. A
   * holder without a majority does not release its hold there. */
  queueCanMove(member: number): boolean {
    const holders = this.at(member);
    const unknown = this.tokens.filter((tokens) => tokens === undefined).length;
    return !holders?.size || [...holders.keys()].some((token) => this.#isMajority(token, unknown));
  }

  /** Returns the holders at a member other than `own` that have no majority, as far as is known. */
  partialHolders(member: number, own: string): Tokens {
    const isPartial = (token: string) => token !== own && !this.#isMajority(token);
    return new Map([...(this.at(member) ?? [])].filter(([token]) => isPartial(token)));
  }

  /** Returns whether the members where `token` holds the lock, and this number of others, are a majority. */
  #isMajority(token: string, others = 0): boolean {
    return this.tokens.filter((tokens) => tokens?.has(token)).length + others >= this.majority;
  }
}
