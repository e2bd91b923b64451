// Builds commands and reads replies. Sends nothing.

import { randomBytes } from "node:crypto";
import { field } from "./reading.js";

/** Key of a lock: text, or bytes. */
export type Key = string | Buffer;

/** A command with its arguments, or some of its options. */
export type Args = readonly Key[];

// Random bytes for the next tokens and secrets: a call of `randomBytes` for each of them would cost more than the
// rest of an acquisition.
let pool = Buffer.alloc(0);

/** Returns `length` random bytes in URL-safe base64. */
function random(length: number): string {
  if (pool.length < length) pool = randomBytes(4096);
  const text = pool.toString("base64url", 0, length);
  pool = pool.subarray(length);
  return text;
}

/** Returns a new token: 20 random bytes as 27 characters, like DLOCK.TOKEN. */
export function freshToken(): string {
  return random(20);
}

/** Returns a new secret of 8 random bytes, as 11 characters. */
export function freshSecret(): string {
  return random(8);
}

/** Returns the key with the `keyPrefix` of a client. */
export function withPrefix(prefix: string, key: Key): Key {
  return typeof key === "string" ? prefix + key : Buffer.concat([Buffer.from(prefix), key]);
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

/** Ends the hold, and removes the token from the queue. If this ends a hold, the lock is granted to no client for
 * `delay` more ms. */
export function release(key: Key, token: string, delay = 0): Args {
  const ends = ["DLOCK.RELEASE", key, token, "ALL"];
  return delay > 0 ? [...ends, "DELAY", String(delay)] : ends;
}

/** Asks whether the server accepts this delay, in ms, in RELEASE: 0 if it does, else an error. */
export function probeDelay(key: Key, delay: number): Args {
  return [...release(key, freshToken()), "DELAY", String(delay)];
}

/** A payload on the NOTIFY channel. `id` is that of the call, and shows whose payload this is. */
export interface Published {
  readonly id: string;
  /** How the wait ended; "wake" if the payload does not say it. */
  readonly outcome: "granted" | "timeout" | "cancelled" | "refused" | "wake";
  /** With "granted": the fence, and the secret of the call. */
  readonly fence: number | undefined;
  readonly secret: string | undefined;
}

/** Reads a payload: the grammar is in docs/writing-a-client.md. Returns undefined if it cannot be of a wait. */
export function readPublished(payload: string): Published | undefined {
  const [id, outcome, number, word] = payload.split(" ", 4);
  if (id === undefined || outcome === undefined) return undefined;
  if (outcome === "timeout" || outcome === "cancelled" || outcome === "refused")
    return { id, outcome, fence: undefined, secret: undefined };
  const fence = /^[1-9]\d{0,15}$/.test(number ?? "") ? Number(number) : undefined;
  if (outcome !== "granted" || !Number.isSafeInteger(fence))
    return { id, outcome: "wake", fence: undefined, secret: undefined };
  return { id, outcome, fence, secret: word };
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

/** A word of a user's command. */
export type Word = string | number | Buffer;

function words(command: readonly Word[]): Args {
  return command.map((word) => (typeof word === "number" ? String(word) : word));
}

/** Runs a command only if the token holds the key. */
export function guard(key: Key, token: string, command: readonly Word[]): Args {
  return ["DLOCK.GUARD", key, token, ...words(command)];
}

/** Runs a command only if the gate has seen no greater fence, and raises the gate. */
export function fencedBy(gate: Key, fence: number, command: readonly Word[]): Args {
  return ["DLOCK.FENCED", gate, String(fence), ...words(command)];
}

/** Asks for one holder. */
export function inspectOne(key: Key): Args {
  return ["DLOCK.INSPECT", key, "COUNT", "1"];
}

// Number of the incidents of a lock that are searched for the end of a hold.
const INCIDENTS = 20;

/** Asks for the last incidents of a lock. */
export function incidentsOf(key: Key): Args {
  return ["DLOCK.LOG", "COUNT", String(INCIDENTS), "KEY", key];
}

/** Returns the holders in a reply to INSPECT; undefined if the reply does not contain all of them. */
export function holders(reply: unknown): HoldAges | undefined {
  if (reply === null) return new Map();
  if (reply === undefined || reply instanceof Error) return undefined;
  const all = field(reply, "holders");
  if (!Array.isArray(all) || all.length >= MAX_HOLDERS) return undefined;
  return new Map(all.map((holder) => [String(field(holder, "token")), Number(field(holder, "held"))]));
}

/** Returns whether a reply to INSPECT shows that a DELAY keeps the lock closed. */
export function isClosed(reply: unknown): boolean {
  return reply !== null && Number(field(reply, "delay") ?? 0) > 0;
}

/** Returns the slot of a key in a cluster. */
export function slotOf(key: Key): number {
  const all = Buffer.from(key as string);
  const open = all.indexOf("{");
  const close = all.indexOf("}", open + 1);
  let crc = 0;
  for (const byte of open >= 0 && close > open + 1 ? all.subarray(open + 1, close) : all) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit++) crc = (crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1) & 0xffff;
  }
  return crc % 16_384;
}
