// For tests without servers: three members of a quorum, a round and an acquisition.

import { Members } from "../dist/members.js";
import { QueueChoice } from "../dist/queue-choice.js";
import { QuorumAttempt } from "../dist/quorum-attempt.js";
import { Round } from "../dist/round.js";

// Time limit of an answer, ms.
const LIMIT = 1000;

export const request = {
  key: "foo",
  name: "foo",
  lease: 10_000,
  mode: [],
  terms: [],
  isEphemeral: false,
  hasDelay: false,
  owner: undefined,
  retryDelay: 100,
  atLeast: 0,
};

/** The reply to INFO of a server with this run id. */
export const info = (runId) => `# Server\r\nrun_id:${runId}\r\n`;

/** Returns members with unknown run ids, and the channel to each member, which a test may change. */
export function unknownMembers() {
  const channels = ["a", "b", "c"].map((address) => ({
    address,
    isSilent: false,
    isReady: true,
    isClosed: false,
    connections: 1,
  }));
  return { members: new Members(channels), channels };
}

/** Returns members with known run ids, so that they may vote, and their channels. The run id
 * of a member is its number. */
export function threeMembers() {
  const { members, channels } = unknownMembers();
  for (const member of members.all()) members.record(member, info(member));
  return { members, channels };
}

/** Returns a round of an acquisition. `order`: the members in whose queues the round may wait. */
export function roundOf(members, order, { fenced = false, lease = request.lease } = {}) {
  return new Round(members, new QueueChoice(members), { ...request, lease }, fenced, LIMIT, order);
}

/** Returns an acquisition as a generator of steps. With `waits`, the acquisition waits without a timeout;
 * otherwise it does not wait. */
export function acquisition(members, { waits, choice = new QueueChoice(members), atLeast = 0 }) {
  return new QuorumAttempt(members, choice, { ...request, atLeast }, false, LIMIT).run(
    waits,
    Number.POSITIVE_INFINITY,
  );
}
