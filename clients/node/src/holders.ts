// The holders of one lock, as the members of a quorum see them.

import type { HoldAges } from "./protocol.js";

export class Holders {
  constructor(
    /** The ages of the holds by member; undefined for a member that did not show its holders. */
    private readonly ages: readonly (HoldAges | undefined)[],
    private readonly majority: number,
    /** The number of members that are closed by a DELAY. */
    private readonly closed = 0,
  ) {}

  /** Returns the holders at a member; undefined if they are unknown. */
  at(member: number): HoldAges | undefined {
    return this.ages[member];
  }

  /** Returns whether any holder has a majority, or a DELAY keeps the lock closed at one. */
  isTaken(): boolean {
    if (this.closed >= this.majority) return true;
    return this.ages.some((ages) => [...(ages?.keys() ?? [])].some((token) => this.#isMajority(token)));
  }

  /** Returns whether the wait queue of a member can move. It can if the member has no holder, or does not
   * show its holders. It also can if one of its holders has a majority, because that holder will release
   * the lock. Members that do not show their holders count towards each majority. A hold without a majority
   * may have been left behind by a client that died, and then lasts until its lease ends. */
  queueCanMove(member: number): boolean {
    const holders = this.at(member);
    const unknown = this.ages.filter((ages) => ages === undefined).length;
    return !holders?.size || [...holders.keys()].some((token) => this.#isMajority(token, unknown));
  }

  /** Returns the holders at a member, without the token `own`, that are not known to have a majority. */
  partialHolders(member: number, own: string): HoldAges {
    const isPartial = (token: string) => token !== own && !this.#isMajority(token);
    return new Map([...(this.at(member) ?? [])].filter(([token]) => isPartial(token)));
  }

  /** Returns whether the members where `token` holds the lock and `others` further members are a majority. */
  #isMajority(token: string, others = 0): boolean {
    return this.ages.filter((ages) => ages?.has(token)).length + others >= this.majority;
  }
}
