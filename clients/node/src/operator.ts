// The commands that show locks, and those that end holds and waits by force: for operators.

import { Channel } from "./channel.js";
import { type Client, notAClient } from "./links.js";
import { checkKey, checkNames } from "./options.js";
import { type Args, type Key, withPrefix } from "./protocol.js";
import {
  type Incident,
  type Inspection,
  incidents,
  inspection,
  type Listed,
  listed,
  type Waiting,
  waiting,
} from "./reading.js";
import { integerOf } from "./requests.js";

const MOST_WAITERS = 1000;

function checkCount(name: string, count: number): void {
  if (!Number.isSafeInteger(count) || count < 1) {
    throw new RangeError(`${name}: ${count}; it must be a whole number, 1 or more`);
  }
}

/** Shows and ends the locks of one server, or of a cluster. Keys are those of the server: a `keyPrefix` of
 * ioredis counts for `inspect`, `waiters`, `cancel` and `break` only. In a cluster, `list` and `log` ask each master, and
 * throw an error if one of them does not answer; `list` can miss a lock whose slot moves meanwhile. Each method throws `NoAnswerError` if the server does not answer, and an error `NOPERM` if the user has no right to the command:
 * `+dlock.inspect` for `inspect`, and so on. For a quorum, make an `Operator` for each member. */
export class Operator {
  readonly #channel: Channel;

  /** Throws a `TypeError` unless `client` is a client of ioredis or node-redis. Sends nothing. */
  constructor(client: Client) {
    if (Array.isArray(client)) throw notAClient(client);
    this.#channel = Channel.of(client);
  }

  /** Returns the state of the lock; null if it has no holder, no waiter and no delay. */
  async inspect(key: Key): Promise<Inspection | null> {
    return inspection(await this.#ask("DLOCK.INSPECT", this.#keyOf(key)));
  }

  /** Returns the wait queue, the head first, at most `count` waiters (1 to 1000). */
  async waiters(key: Key, options: { count?: number | undefined } = {}): Promise<Waiting[]> {
    checkNames(options, ["count"]);
    const { count = MOST_WAITERS } = options;
    checkCount("count", count);
    return waiting(await this.#ask("DLOCK.WAITERS", this.#keyOf(key), "COUNT", String(count)));
  }

  /** Iterates over the locks that are held, waited for or in a delay. `match`: only those whose names match this pattern
   * (of the command KEYS); `waited`: only those that have waiters. A lock that exists during the whole iteration is
   * returned at least once. */
  async *list(
    options: { match?: string | undefined; waited?: boolean | undefined } = {},
  ): AsyncGenerator<Listed, void, undefined> {
    checkNames(options, ["match", "waited"]);
    const { match, waited = false } = options;
    const filters = [...(match === undefined ? [] : ["MATCH", match]), ...(waited ? ["WAITED"] : [])];
    for (const server of await this.#servers()) {
      let cursor = "0";
      do {
        const [next, locks] = listed(await server.ask(["DLOCK.LIST", cursor, ...filters]));
        yield* locks;
        cursor = next;
      } while (cursor !== "0");
    }
  }

  /** Returns recent incidents, the newest first, at most `count`. `key`: only those of this lock. */
  async log(options: { count?: number | undefined; key?: Key | undefined } = {}): Promise<Incident[]> {
    checkNames(options, ["count", "key"]);
    const { count = 100, key } = options;
    checkCount("count", count);
    const command = ["DLOCK.LOG", "COUNT", String(count)];
    if (key !== undefined) return incidents(await this.#ask(...command, "KEY", this.#keyOf(key)));
    const found = await Promise.all(
      (await this.#servers()).map(async (server) => incidents(await server.ask(command))),
    );
    if (found.length === 1) return found[0]!;
    return found
      .flat()
      .sort((one, other) => other.time - one.time)
      .slice(0, count);
  }

  /** Removes the waiters of a token from the queue, and returns how many. Their waits end. */
  async cancel(key: Key, token: string): Promise<number> {
    return integerOf(await this.#ask("DLOCK.CANCEL", this.#keyOf(key), token));
  }

  /** Ends every hold of the lock, and a delay, and returns how many holds. The next waiter is granted the lock at once,
   * while the old holder continues until it notices. */
  async break(key: Key): Promise<number> {
    return integerOf(await this.#ask("DLOCK.BREAK", this.#keyOf(key)));
  }

  /** The channels of all masters. */
  async #servers(): Promise<readonly Channel[]> {
    return this.#channel.masters();
  }

  #ask(...command: Args): Promise<unknown> {
    return this.#channel.ask(command);
  }

  #keyOf(key: Key): Key {
    checkKey(key);
    return withPrefix(this.#channel.link.prefix, key);
  }
}
