// Builds commands and reads replies. Sends nothing.

import { randomBytes } from "node:crypto";

/** Key of a lock: text, or bytes. */
export type Key = string | Buffer;

/** A command with its arguments, or some of its options. */
export type Args = readonly Key[];

// Random bytes for the next 128 tokens: a call of `randomBytes` for each token would cost more than the rest
// of an acquisition.
let pool = Buffer.alloc(0);

/** Returns a new token: 20 random bytes as 27 characters, like DLOCK.TOKEN. */
export function freshToken(): string {
  if (pool.length === 0) pool = randomBytes(20 * 128);
  const token = pool.toString("base64url", 0, 20);
  pool = pool.subarray(20);
  return token;
}

export function acquire(key: Key, token: string, ttl: number, options: Args): Args {
  return ["DLOCK.ACQUIRE", key, token, String(ttl), ...options];
}

/** Returns the options of ACQUIRE for a position in the wait queue. The server keeps the position for `keep`
 * ms. */
export function queueOptions(keep: number, channel: string, message: string, notify: boolean): Args {
  const position = ["QUEUE", String(keep)];
  return notify ? [...position, "NOTIFY", channel, message] : position;
}

export function extend(key: Key, token: string, ttl: number): Args {
  return ["DLOCK.EXTEND", key, token, String(ttl)];
}

/** Raises the fence of the hold to `fence`, and sets the lease. The reply is the hold's new fence. */
export function confirm(key: Key, token: string, fence: number, ttl: number): Args {
  return ["DLOCK.CONFIRM", key, token, String(fence), String(ttl)];
}

/** Ends the hold, and removes the token from the queue. */
export function release(key: Key, token: string): Args {
  return ["DLOCK.RELEASE", key, token, "ALL"];
}

/** Removes the token from the queue, and ends no hold. */
export function cancel(key: Key, token: string): Args {
  return ["DLOCK.CANCEL", key, token];
}

/** Asks for the first waiter of the queue. */
export function firstWaiter(key: Key): Args {
  return ["DLOCK.WAITERS", key, "COUNT", "1"];
}

export function holds(key: Key, token: string): Args {
  return ["DLOCK.HOLDS", key, token];
}

export function pttl(key: Key): Args {
  return ["DLOCK.PTTL", key];
}

/** Asks for the run id: see `runId`. */
export const SERVER_INFO: Args = ["INFO", "server"];

/** Returns the run id in a reply to INFO; undefined if there is none. */
export function runId(reply: unknown): string | undefined {
  return /^run_id:(\w+)/m.exec(String(reply))?.[1];
}

// The client asks for at most this many holders. If a reply contains this many, the lock may have more, and
// `holders` returns undefined.
const MAX_HOLDERS = 100;

/** Asks for the holders: see `holders`. */
export function inspect(key: Key): Args {
  return ["DLOCK.INSPECT", key, "COUNT", String(MAX_HOLDERS)];
}

/** Age of each hold of a key, by token, in ms. */
export type HoldAges = ReadonlyMap<string, number>;

/** Returns the holders in a reply to INSPECT; undefined if the reply does not contain all of them. */
export function holders(reply: unknown): HoldAges | undefined {
  if (reply === null) return new Map();
  if (reply === undefined || reply instanceof Error) return undefined;
  const all = field(reply, "holders");
  if (!Array.isArray(all) || all.length >= MAX_HOLDERS) return undefined;
  return new Map(all.map((holder) => [String(field(holder, "token")), Number(field(holder, "held"))]));
}

/** Returns a field of a map: in RESP2 an array of names and values, in RESP3 an object or a Map. */
function field(map: unknown, name: string): unknown {
  if (map instanceof Map) return map.get(name);
  if (!Array.isArray(map)) return (map as Record<string, unknown> | undefined)?.[name];
  const at = map.findIndex((item, index) => index % 2 === 0 && String(item) === name);
  return at < 0 ? undefined : map[at + 1];
}
