// The commands. Sends nothing.

import { randomBytes } from "node:crypto";

export type Key = string | Buffer;
export type Args = readonly Key[];

/** A token that nobody has used: 27 characters, as DLOCK.TOKEN makes them. */
export function freshToken(): string {
  return randomBytes(20).toString("base64url");
}

export function acquire(key: Key, token: string, ttl: number, terms: Args): Args {
  return ["DLOCK.ACQUIRE", key, token, String(ttl), ...terms];
}

/** ACQUIRE's terms for a position in the wait queue, kept for `keep` ms. */
export function queued(keep: number, channel: string, message: string, notify: boolean): Args {
  const position = ["QUEUE", String(keep)];
  return notify ? [...position, "NOTIFY", channel, message] : position;
}

export function extend(key: Key, token: string, ttl: number): Args {
  return ["DLOCK.EXTEND", key, token, String(ttl)];
}

export function confirm(key: Key, token: string, fence: number, ttl: number): Args {
  return ["DLOCK.CONFIRM", key, token, String(fence), String(ttl)];
}

/** Ends the hold, and removes the token from the queue. */
export function release(key: Key, token: string): Args {
  return ["DLOCK.RELEASE", key, token, "ALL"];
}

export function holds(key: Key, token: string): Args {
  return ["DLOCK.HOLDS", key, token];
}

export function pttl(key: Key): Args {
  return ["DLOCK.PTTL", key];
}
