// One server, as its client reaches it: commands over the client itself, messages over one connection more.

import { bounded, TimeLimit } from "./bounded.js";
import { now } from "./clock.js";
import { NoAnswerError, word } from "./errors.js";
import { type Client, type Link, linkTo } from "./links.js";
import type { Args } from "./protocol.js";
import { Aborted } from "./steps.js";
import { Desk, times, type Wait } from "./waits.js";

// How often the listener is looked after, and how long it has to answer, ms.
const TICK = 1000;

/** A refusal is an answer, too, but for that of a server that starts. */
function isAnswer(why: unknown): boolean {
  return word(why) !== "" && word(why) !== "LOADING";
}

const channels = new WeakMap<Client, Channel>();

export class Channel {
  readonly channels: readonly Channel[] = [this];
  /** Whether an answer is overdue, or could not be asked for, and none has come since. */
  silent = false;
  /** How many connections there have been: over each it may be another server. */
  connections = 0;
  #answers = 0;
  #ready: Promise<void> | undefined;
  #endWait: (() => void) | undefined;
  #desk: Desk | undefined;
  #closeDesk: (() => void) | undefined;

  /** The channel of this client: all its locks share it. */
  static of(client: Client): Channel {
    let channel = channels.get(client);
    if (channel === undefined) {
      channel = new Channel(linkTo(client));
      channels.set(client, channel);
    }
    return channel;
  }

  private constructor(readonly link: Link) {
    link.onReady(() => {
      this.connections += 1;
    });
    link.onEnded(() => {
      this.#closeDesk?.();
      this.#endWait?.();
    });
  }

  get address(): string {
    return this.link.address;
  }

  /** Whether there will be no answers any more. */
  get closed(): boolean {
    return this.link.isClosed();
  }

  /** The answer. What could not go out in time is not sent later: clients would keep it until they are
   * connected. */
  async send(args: Args, within: number, signal?: AbortSignal): Promise<unknown> {
    let left = within;
    const before = this.#answers;
    try {
      if (!this.link.isReady() && !this.closed) {
        const end = now() + within;
        await bounded(this.#whenReady(), within, signal);
        left = end - now();
      }
      return await bounded(this.#heard(this.link.call(args)), left, signal);
    } catch (why) {
      if (why instanceof Aborted || isAnswer(why)) throw why;
      // If others came meanwhile it is busy, and not silent.
      if (this.#answers === before) this.silent = true;
      const { address } = this;
      if (why instanceof TimeLimit) throw new NoAnswerError(`${address}: no answer within ${within} ms`);
      throw new NoAnswerError(`${address}: ${(why as Error).message}`, undefined, why);
    }
  }

  /** Notes the answer, also one that comes too late. */
  #heard(reply: Promise<unknown>): Promise<unknown> {
    const note = () => {
      this.#answers += 1;
      this.silent = false;
    };
    reply.then(note, (why) => isAnswer(why) && note());
    return reply;
  }

  /** Or closed: a command then fails at once. */
  #whenReady(): Promise<void> {
    // One listener, however many commands wait.
    this.#ready ??= new Promise<void>((resolve) => {
      this.#endWait = resolve;
      this.link.onceReady(resolve);
    }).then(() => {
      this.#ready = undefined;
    });
    return this.#ready;
  }

  listen(): Wait {
    this.#desk ??= this.#attend(new Desk());
    return this.#desk.open();
  }

  /** Keeps the desk's subscription alive, as long as somebody waits. */
  #attend(desk: Desk): Desk {
    let subscription = this.link.subscribe(desk);
    let asking = false;
    const anew = () => {
      subscription.close();
      desk.disconnected();
      desk.heardAt = now();
      if (this.#desk === desk) subscription = this.link.subscribe(desk);
    };
    const close = () => {
      clearInterval(timer);
      if (this.#desk === desk) this.#desk = undefined;
      subscription.close();
      desk.disconnected();
    };
    const look = async () => {
      if (desk.isIdle()) return close();
      if (asking || now() - desk.heardAt < times.silence) return;
      asking = true;
      try {
        await bounded(subscription.ping(), TICK);
        desk.heardAt = now();
      } catch (why) {
        // A refusal is an answer, too.
        if (word(why)) desk.heardAt = now();
        else anew();
      }
      asking = false;
    };
    const timer = setInterval(look, TICK);
    timer.unref();
    this.#closeDesk = close;
    return desk;
  }
}
