// The two connections to one server. Commands go over the user's client. The messages that end waits arrive
// over a second connection, the subscriber. It is open while the client waits for locks, and for a short time
// afterwards.

import { Aborted, now, Timed, TimedOut, withTimeout } from "./clock.js";
import { clusterLink, isNodeRedisCluster } from "./cluster.js";
import { errorWord, isLoginRefusal, isNoMaster, LockError, NoAnswerError } from "./errors.js";
import { type Client, type Link, linkTo, type Subscriber } from "./links.js";
import { LossWatcher, type Watched } from "./loss-watcher.js";
import { type Args, holds, type Key } from "./protocol.js";
import { isNodeRedisSentinel, sentinelLink } from "./sentinel.js";
import type { Replicate, Send } from "./steps.js";
import { times, type Wait, WaitRegistry } from "./waits.js";

// Pause between two checks of the subscriber, and time limit of the answer to its PING, ms.
const TICK = 1000;
// Least time between two new connections after answers of a server that is no master, ms.
const LEAVE_INTERVAL = 500;
// Pause before a hold is watched at the node that serves its key by then, ms.
const FIND_PAUSE = 1000;

/** Returns whether an error is the server's reply to the command. LOADING does not count: a server that is
 * loading its data executes no command. */
function isAnswer(why: unknown): boolean {
  return errorWord(why) !== "" && errorWord(why) !== "LOADING";
}

/** Returns an error that says what to do if the server lacks the module, or else `why` itself. */
function explained(why: Error, address: string): Error {
  const [unknown] = /^ERR unknown command .DLOCK\.\w+./i.exec(why.message) ?? [];
  return unknown === undefined
    ? why
    : new LockError(`${unknown}: load the dlock module on ${address}`, undefined, why);
}

/** Returns the text of an error of a connection. Node's error for a name with several addresses has none of its own. */
function textOf(why: Error): string {
  return why.message || (why as AggregateError).errors?.[0]?.message || why.name;
}

/** The answer to a command over the user's client. Records it, even a late one. A server answers in the order of the
 * requests: while it answers earlier ones, this one waits for its turn. */
class Answer extends Timed<unknown> {
  readonly #answersAtStart: number;
  #answersBefore: number;

  constructor(
    private readonly channel: Channel,
    private readonly command: Args | Send,
    /** Time limit of the command in ms, for the error. */
    private readonly limit: number,
    /** What is left of it. */
    left: number,
    signal: AbortSignal | undefined,
  ) {
    super(left, signal);
    this.#answersAtStart = channel.answers;
    this.#answersBefore = channel.answers;
    let reply: Promise<unknown>;
    try {
      // A mock may return no promise: its reply is refused where it is read.
      reply = Promise.resolve(channel.link.call("command" in command ? command.command : command));
    } catch (why) {
      this.reject(why);
      return;
    }
    if ("command" in command) command.sent();
    reply.then(
      (answer) => {
        this.#record();
        this.resolve(answer);
      },
      (why) => {
        if (isAnswer(why)) this.#record();
        this.reject(why);
      },
    );
  }

  #record(): void {
    this.channel.noteAnswer();
    if ("command" in this.command) this.command.replied();
  }

  override reject(why: unknown): void {
    super.reject(this.isSettled ? why : this.channel.failure(why, this.limit, this.#answersAtStart));
  }

  protected override mayGoOn(): boolean {
    const { channel } = this;
    const hasAnswered = channel.link.isOneServer && channel.answers !== this.#answersBefore;
    this.#answersBefore = channel.answers;
    return hasAnswered;
  }
}

const channels = new WeakMap<Client | Link, Channel>();

function linkOf(client: Client | Link): Link {
  if (typeof client === "object" && client !== null && "isOneServer" in client) return client;
  if (isNodeRedisSentinel(client)) return sentinelLink(client);
  return isNodeRedisCluster(client) ? clusterLink(client) : linkTo(client as Client);
}

export class Channel {
  /** A channel is itself a `Servers` (see `run.ts`), with one server. */
  readonly channels: readonly Channel[] = [this];
  /** Set when an answer is overdue or a command could not be sent, and no other answer has arrived meanwhile.
   * Cleared by the next answer. */
  isSilent = false;
  /** Number of connections so far. A rise shows a reconnect, which may have led to another server. */
  connections = 0;
  /** See `DelayServer`. */
  knownDelay: { readonly connection: number; readonly longest: number } | undefined;
  /** See `announce`. */
  #libraryName: string | undefined;
  /** Number of answers so far. */
  answers = 0;
  /** Pending while commands wait for the client to connect. */
  #ready: Promise<void> | undefined;
  #settleReady: { resolve(): void; reject(why: Error): void } | undefined;
  #isListeningForReady = false;
  /** The last error that the client has reported since it was last connected. */
  #connectionError: Error | undefined;
  /** The error with which the server refused the last connection; undefined if it is unknown. */
  #refusal: string | undefined;
  #isAskingForRefusal = false;
  #registry: WaitRegistry | undefined;
  #lossWatcher: LossWatcher | undefined;
  #closeRegistry: (() => void) | undefined;
  #resubscribe: (() => void) | undefined;
  /** When `leave` last closed the connections. */
  #leftAt = Number.NEGATIVE_INFINITY;

  /** Returns the channel of a client, which all its locks share, or of a link. Throws a `TypeError` if `client` is not a
   * client. */
  static of(client: Client | Link): Channel {
    let channel = channels.get(client);
    if (channel === undefined) {
      channel = new Channel(linkOf(client));
      channels.set(client, channel);
    }
    return channel;
  }

  private constructor(readonly link: Link) {
    let wasConnected = link.isReady();
    link.onReady(() => {
      this.connections += 1;
      this.#connectionError = undefined;
      this.#sendLibraryName();
      // The other connections follow, as the address may lead to another server now. They connect after the commands,
      // so that they never stay on a server that the commands have left.
      if (link.isOneServer && wasConnected) {
        this.#resubscribe?.();
        this.#lossWatcher?.reopen();
      }
      wasConnected = true;
    });
    link.onEnded(() => {
      this.#closeRegistry?.();
      this.#lossWatcher?.end();
      this.#settleReady?.resolve();
    });
    link.onError((why) => {
      this.#connectionError = why;
      if (isLoginRefusal(why)) this.#settleReady?.reject(why);
    });
  }

  get address(): string {
    return this.link.address;
  }

  /** Whether a command would be sent now. */
  get isReady(): boolean {
    return this.link.isReady();
  }

  /** Whether the user has closed the client: no answer will arrive any more. */
  get isClosed(): boolean {
    return this.link.isClosed();
  }

  /** Sets the library name of the connection in CLIENT LIST, now and after each reconnect. Errors are
   * ignored: servers before Redis 7.2 do not know the command, and the user may have no right to it. */
  announce(libraryName: string): void {
    if (libraryName === this.#libraryName) return;
    this.#libraryName = libraryName;
    if (this.isReady) this.#sendLibraryName();
  }

  /** Like `announce`, but does nothing if a quorum has already set its own name. */
  announceDefault(libraryName: string): void {
    if (this.#libraryName === undefined) this.announce(libraryName);
  }

  #sendLibraryName(): void {
    if (this.#libraryName === undefined || !this.link.isOneServer) return;
    this.link.call(["CLIENT", "SETINFO", "LIB-NAME", this.#libraryName]).catch(() => {});
  }

  /** Sends a command and returns the reply. Throws `NoAnswerError` after `limit` ms without any answer of the
   * server. While the client is not connected, the command waits here: in the client's own queue, it would still be
   * sent after the limit. If the server has refused the user or the password, throws that error at once. */
  send(command: Args | Send, limit: number, signal?: AbortSignal): Promise<unknown> {
    if (this.isReady || this.isClosed) return new Answer(this, command, limit, limit, signal).promise;
    return this.#sendWhenReady(command, limit, signal);
  }

  async #sendWhenReady(command: Args | Send, limit: number, signal?: AbortSignal): Promise<unknown> {
    const end = now() + limit;
    const answersBefore = this.answers;
    const timer = setTimeout(() => this.#askForRefusal(limit / 2), limit / 2);
    try {
      await withTimeout(this.#whenReady(), limit, signal);
    } catch (why) {
      throw this.failure(why, limit, answersBefore);
    } finally {
      clearTimeout(timer);
    }
    return new Answer(this, command, limit, end - now(), signal).promise;
  }

  /** Returns the error for a command without a reply. */
  failure(why: unknown, limit: number, answersBefore: number): unknown {
    if (why instanceof Aborted) return why;
    if (isNoMaster(why)) this.leave();
    if (isAnswer(why)) return explained(why as Error, this.address);
    // If the server has answered other commands in the meantime, it is slow, and not silent.
    if (this.answers === answersBefore) this.isSilent = true;
    if (this.isReady) return this.#noAnswer(why, limit);
    const [refusal, error] = [this.#refusal, this.#connectionError];
    let more = "";
    if (refusal !== undefined) more = `; the server refuses the connection: ${refusal}`;
    else if (error !== undefined && error !== why)
      more = `; the last error of the connection: ${textOf(error)}`;
    return this.#noAnswer(why, limit, more, error);
  }

  #noAnswer(why: unknown, limit: number, more = "", connectionError?: Error): NoAnswerError {
    const isLate = why instanceof TimedOut;
    const text = isLate ? `no answer within ${limit} ms` : (why as Error).message;
    const cause = isLate ? connectionError : why;
    return new NoAnswerError(`${this.address}: ${text}${more}`, undefined, cause);
  }

  /** Sends a command of the user's once, and returns the reply. Throws `NoAnswerError` if there is none. */
  ask(command: Args): Promise<unknown> {
    return this.send(command, times.answer);
  }

  /** Returns the channels of all masters. Throws `NoAnswerError` if a cluster does not say which they are. */
  async masters(): Promise<readonly Channel[]> {
    if (this.link.masters === undefined) return [this];
    const answersBefore = this.answers;
    try {
      const masters = await withTimeout(this.link.masters(), times.answer);
      return masters.map((master) => Channel.of(master));
    } catch (why) {
      throw this.failure(why, times.answer, answersBefore);
    }
  }

  /** Returns the link to the server that has the key: in a cluster, to the master of its slot. */
  async #linkOf(key: Key): Promise<Link> {
    const { masterOf } = this.link;
    return masterOf === undefined ? this.link : Channel.of(await masterOf(key)).link;
  }

  /** Carries out a `Replicate`. A write that the server answers with 0 has no effect, and is no success. */
  async replicate(
    { write, replicas, timeout }: Replicate,
    limit: number,
    signal?: AbortSignal,
  ): Promise<boolean> {
    const own = this.#linkOf(write[1]!).then((link) => link.connect());
    try {
      const wait =
        replicas === 0 ? ["WAITAOF", "1", "0", String(timeout)] : ["WAIT", String(replicas), String(timeout)];
      // WAIT is about the last write of its connection.
      const replies = own.then((connection) => Promise.all([connection.call(write), connection.call(wait)]));
      const [written, copies] = await withTimeout(replies, limit + timeout, signal);
      const count = Array.isArray(copies) ? copies[0] : copies;
      return Number(written) > 0 && Number(count) >= Math.max(replicas, 1);
    } catch (why) {
      if (why instanceof Aborted) throw why;
      if (errorWord(why)) throw explained(why as Error, this.address);
      throw this.#noAnswer(why, limit + timeout);
    } finally {
      own.then(
        (connection) => connection.close(),
        () => {},
      );
    }
  }

  /** Asks within `limit` ms why the server refuses the connection. */
  async #askForRefusal(limit: number): Promise<void> {
    if (this.#isAskingForRefusal) return;
    this.#isAskingForRefusal = true;
    this.#refusal = await this.link.refusal(limit);
    this.#isAskingForRefusal = false;
  }

  /** Connects anew through the address, which may lead to another server now. Called when the server has shown
   * that it is no master any more. */
  leave(): void {
    if (!this.link.isOneServer || now() < this.#leftAt + LEAVE_INTERVAL) return;
    this.#leftAt = now();
    this.link.reconnect();
  }

  noteAnswer(): void {
    this.answers += 1;
    this.isSilent = false;
  }

  /** Resolves once the client is ready or closed: a closed client fails each command at once. Rejects once the server
   * has refused the user or the password. */
  #whenReady(): Promise<void> {
    if (isLoginRefusal(this.#connectionError)) return Promise.reject(this.#connectionError);
    // All waiting commands share one listener.
    this.#ready ??= new Promise<void>((resolve, reject) => {
      this.#settleReady = { resolve, reject };
    }).finally(() => {
      this.#ready = undefined;
    });
    if (!this.#isListeningForReady) {
      this.#isListeningForReady = true;
      this.link.onceReady(() => {
        this.#isListeningForReady = false;
        this.#settleReady?.resolve();
      });
    }
    return this.#ready;
  }

  /** Watches a hold for its loss: in a cluster, at the master of its key. Returns the function that ends it. */
  watchLoss(hold: Watched): () => void {
    const { masterOf } = this.link;
    if (masterOf === undefined) return this.#watch(hold);
    let end: (() => void) | undefined;
    let timer: NodeJS.Timeout | undefined;
    let isOver = false;
    let hasMoved = false;
    const onMoved = () => {
      hasMoved = true;
      if (!isOver) timer = setTimeout(begin, FIND_PAUSE).unref();
    };
    const begin = async () => {
      if (this.isClosed) return;
      try {
        // The client library follows the redirection, and so learns where the key is.
        if (hasMoved) await this.link.call(holds(hold.key, hold.token));
        const master = Channel.of(await masterOf(hold.key));
        const { key, token } = hold;
        if (!isOver) end = master.#watch({ key, token, onGone: () => hold.onGone(), onMoved });
      } catch {
        onMoved();
      }
    };
    void begin();
    return () => {
      isOver = true;
      clearTimeout(timer);
      end?.();
    };
  }

  #watch(hold: Watched): () => void {
    this.#lossWatcher ??= new LossWatcher(this.link);
    const watcher = this.#lossWatcher;
    watcher.add(hold);
    return () => void watcher.remove(hold);
  }

  /** Returns a new `Wait`, which receives the messages about one queue position. The first wait opens the
   * subscription. */
  listen(): Wait {
    this.#registry ??= this.#keepSubscribed(new WaitRegistry(() => this.leave()));
    return this.#registry.open();
  }

  /** Subscribes for the registry, reconnects if the subscriber is silent, and closes the subscription once
   * the registry is idle. */
  #keepSubscribed(registry: WaitRegistry): WaitRegistry {
    let subscriber: Subscriber;
    const subscribe = () => {
      const own: Subscriber = {
        channel: registry.channel,
        // An earlier connection may end after the present one has subscribed.
        onSubscribed: () => own === subscriber && registry.onSubscribed(),
        onDisconnected: () => own === subscriber && registry.onDisconnected(),
        onMessage: (message) => registry.onMessage(message),
      };
      subscriber = own;
      return this.link.subscribe(own);
    };
    let subscription = subscribe();
    let isChecking = false;
    const reconnect = () => {
      subscription.close();
      registry.onDisconnected();
      registry.receivedAt = now();
      if (this.#registry === registry) subscription = subscribe();
    };
    const close = () => {
      clearInterval(timer);
      if (this.#registry === registry) this.#registry = undefined;
      if (this.#resubscribe === reconnect) this.#resubscribe = undefined;
      subscription.close();
      registry.onDisconnected();
    };
    const check = async () => {
      if (registry.isIdle()) return close();
      if (isChecking || now() - registry.receivedAt < times.silence) return;
      isChecking = true;
      try {
        await withTimeout(subscription.ping(), TICK);
        registry.receivedAt = now();
      } catch (why) {
        // An error reply shows that the connection works.
        if (errorWord(why)) registry.receivedAt = now();
        else reconnect();
      }
      isChecking = false;
    };
    const timer = setInterval(check, TICK);
    timer.unref();
    this.#closeRegistry = close;
    this.#resubscribe = reconnect;
    return registry;
  }
}
