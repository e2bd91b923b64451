// Writes on another server than that of the lock, guarded by the fence.

import { Channel } from "./channel.js";
import { errorWord, StaleFenceError } from "./errors.js";
import type { Client } from "./links.js";
import { checkKey } from "./options.js";
import { fencedBy, type Key, type Word } from "./protocol.js";

/** Runs a command on the server of `client`, and raises the gate, a key there, to the fence, in one step: for data on
 * another server than that of the lock. Returns the reply. Throws `StaleFenceError` if the gate has seen a greater
 * fence; then the command was not run. Throws `NoAnswerError` if it is unknown whether it was run. Use one gate for each
 * lock. The gate and the keys of the command are sent as they are, without a `keyPrefix`. ioredis may send the command
 * again after a reconnect. */
export async function fenced(
  client: Client,
  gate: Key,
  fence: number | null,
  command: string,
  ...args: Word[]
): Promise<unknown> {
  checkKey(gate);
  if (!Number.isSafeInteger(fence) || (fence as number) < 1) {
    throw new RangeError(
      `fence: ${fence}; it must be the fence of a hold: in a quorum, set the option fenced`,
    );
  }
  try {
    return await Channel.of(client).ask(fencedBy(gate, fence as number, [command, ...args]));
  } catch (why) {
    if (errorWord(why) !== "STALEFENCE") throw why;
    const greatest = Number(/^STALEFENCE (\d+)/.exec((why as Error).message)?.[1]);
    const text = `${gate}: the fence ${fence} is stale: the gate has seen ${greatest}`;
    throw new StaleFenceError(text, String(gate), fence as number, greatest, why);
  }
}
