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

/** Removes the token from the queue, and ends no hold. */
export function cancel(key: Key, token: string): Args {
  return ["DLOCK.CANCEL", key, token];
}

/** Who waits: one of them. */
export function waiters(key: Key): Args {
  return ["DLOCK.WAITERS", key, "COUNT", "1"];
}

// Of a key with more holders it is not asked who they are.
const MOST_HOLDERS = 100;

export function inspect(key: Key): Args {
  return ["DLOCK.INSPECT", key, "COUNT", String(MOST_HOLDERS)];
}

/** The tokens of INSPECT's answer, with the ms since each grant; undefined where that is not known. */
export function holders(answer: unknown): ReadonlyMap<string, number> | undefined {
  if (answer === null) return new Map();
  if (answer === undefined || answer instanceof Error) return undefined;
  const all = field(answer, "holders");
  if (!Array.isArray(all) || all.length >= MOST_HOLDERS) return undefined;
  return new Map(all.map((holder) => [String(field(holder, "token")), Number(field(holder, "held"))]));
}

/** A field of a map: in RESP2 an array, in RESP3 what the client makes of it. */
function field(map: unknown, name: string): unknown {
  if (map instanceof Map) return map.get(name);
  if (!Array.isArray(map)) return (map as Record<string, unknown> | undefined)?.[name];
  const at = map.findIndex((item, at) => at % 2 === 0 && String(item) === name);
  return at < 0 ? undefined : map[at + 1];
}

export function holds(key: Key, token: string): Args {
  return ["DLOCK.HOLDS", key, token];
}

export function pttl(key: Key): Args {
  return ["DLOCK.PTTL", key];
}
