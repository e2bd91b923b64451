// The commands. Sends nothing.

import { randomBytes } from "node:crypto";

export type Key = string | Buffer;
export type Args = readonly Key[];

// Randomness for many tokens at once: to ask for it costs more than all else that an acquisition does here.
let pool = Buffer.alloc(0);

/** A token that nobody has used: 27 characters, as DLOCK.TOKEN makes them. */
export function freshToken(): string {
  if (pool.length === 0) pool = randomBytes(20 * 128);
  const token = pool.toString("base64url", 0, 20);
  pool = pool.subarray(20);
  return token;
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
