// Three members of a quorum, without servers.

import { Members } from "../dist/members.js";

export const request = {
  key: "foo",
  name: "foo",
  lease: 10_000,
  mode: [],
  owner: undefined,
  retryDelay: 100,
};

/** The reply to INFO of a server with this run id. */
export const info = (runId) => `# Server\r\nrun_id:${runId}\r\n`;

/** Returns members whose run ids are unknown, and their channels (connections), which a test may change. */
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

/** Returns members that may vote, as their run ids are known, and their channels. */
export function threeMembers() {
  const { members, channels } = unknownMembers();
  for (const member of members.all()) members.record(member, info(member));
  return { members, channels };
}
