// Learns of the loss of a hold before its next renewal.
//
// Two connections for each server, in a cluster for each node that has a watched hold: over the reader, the client asks
// for each hold, so that the server tracks its key (CLIENT TRACKING). The server reports a change of the key over the
// subscriber. The client then asks again, which also makes the server track the key again. A report is only a hint: the
// hold itself asks over its own connection before it counts as lost. Everything works without this file, only later.

import { withTimeout } from "./clock.js";
import { errorWord } from "./errors.js";
import type { Connection, Link } from "./links.js";
import { holds, type Key } from "./protocol.js";
import { times } from "./waits.js";

const CHANNEL = "__redis__:invalidate";
// Greatest number of holds that are watched at once. Each renewal of a watched hold costs a report and a request.
const MOST_WATCHED = 1000;
// Time limit of an answer, ms.
const ANSWER = 5000;
// Pause before the connections are opened anew, ms.
const REOPEN_PAUSE = 1000;

/** A hold. */
export interface Watched {
  readonly key: Key;
  readonly token: string;
  /** Called when the server seems not to have the hold any more. */
  onGone(): void;
  /** In a cluster: called when the hold is not watched any more, because this node does not serve its key, or cannot be
   * asked. */
  onMoved?(): void;
}

export class LossWatcher {
  /** By key, as text. */
  readonly #watched = new Map<string, Set<Watched>>();
  #count = 0;
  /** The reader, and what closes both connections. */
  #reader: Promise<Connection> | undefined;
  #close: (() => void) | undefined;
  #timer: NodeJS.Timeout | undefined;
  /** The server or the client library does not allow it. */
  #isUseless = false;

  constructor(private readonly link: Link) {}

  add(hold: Watched): void {
    if (this.#isUseless || this.link.isClosed() || this.#count >= MOST_WATCHED) return;
    const name = String(hold.key);
    this.#watched.set(name, (this.#watched.get(name) ?? new Set()).add(hold));
    this.#count += 1;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    void this.#check(hold);
  }

  /** Returns whether the hold was watched. */
  remove(hold: Watched): boolean {
    const name = String(hold.key);
    const all = this.#watched.get(name);
    if (!all?.delete(hold)) return false;
    this.#count -= 1;
    if (all.size === 0) this.#watched.delete(name);
    if (this.#count === 0) this.#schedule(times.idle, () => this.close());
    return true;
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#close?.();
    this.#close = undefined;
    this.#reader = undefined;
  }

  /** Opens the connections anew, and asks for all holds. */
  reopen(): void {
    if (this.#reader === undefined) return;
    this.close();
    for (const hold of this.#all()) void this.#check(hold);
  }

  /** Closes the connections for ever. */
  end(): void {
    this.close();
    this.#moved(this.#all());
  }

  #moved(holds: readonly Watched[]): void {
    for (const hold of holds) {
      if (hold.onMoved !== undefined && this.remove(hold)) hold.onMoved();
    }
  }

  #schedule(ms: number, act: () => void): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(act, ms);
    this.#timer.unref();
  }

  /** `key` is empty if all keys have changed. */
  #changed(key: string): void {
    for (const hold of key === "" ? this.#all() : [...(this.#watched.get(key) ?? [])]) void this.#check(hold);
  }

  #all(): Watched[] {
    return [...this.#watched.values()].flatMap((holds) => [...holds]);
  }

  /** Asks for a hold over the reader. */
  async #check(hold: Watched): Promise<void> {
    let reader: Promise<Connection> | undefined;
    try {
      this.#reader ??= this.#open();
      reader = this.#reader;
      const count = await withTimeout((await reader).call(holds(hold.key, hold.token)), ANSWER);
      if (Number(count) === 0) this.#gone(hold);
    } catch (why) {
      if (errorWord(why) === "WRONGTYPE") this.#gone(hold);
      else if (["MOVED", "ASK"].includes(errorWord(why))) this.#moved([hold]);
      else if (reader === this.#reader) this.#fail(why);
    }
  }

  #gone(hold: Watched): void {
    if (this.#watched.get(String(hold.key))?.has(hold)) hold.onGone();
  }

  async #open(): Promise<Connection> {
    const opened: Connection[] = [];
    let isClosed = false;
    const close = () => {
      isClosed = true;
      for (const connection of opened) connection.close();
    };
    this.#close = close;
    const open = async () => {
      const connection = await this.link.connect(() => {
        if (!isClosed && this.#close === close) this.#fail(undefined);
      });
      opened.push(connection);
      if (isClosed) connection.close();
      return connection;
    };
    const subscriber = await open();
    const id = await subscriber.call(["CLIENT", "ID"]);
    await subscriber.subscribe(CHANNEL, (key) => this.#changed(key));
    const reader = await open();
    await reader.call(["CLIENT", "TRACKING", "ON", "REDIRECT", String(id)]);
    return reader;
  }

  /** Closes the connections. Opens them anew after a pause, unless the server refuses what they need. */
  #fail(why: unknown): void {
    this.close();
    this.#isUseless = why instanceof TypeError || ["NOPERM", "ERR"].includes(errorWord(why));
    if (this.#isUseless || this.link.isClosed()) return;
    this.#moved(this.#all());
    if (this.#count === 0) return;
    this.#schedule(REOPEN_PAUSE, () => {
      for (const hold of this.#all()) void this.#check(hold);
    });
  }
}
