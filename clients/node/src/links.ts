// The two client libraries, ioredis and node-redis, behind one interface. Neither is imported: the user
// passes a client.

import { errorMonitor } from "node:events";
import net from "node:net";
import type { Writable } from "node:stream";
import { whilePending } from "./clock.js";
import { type Args, freshSecret, type Key, slotOf } from "./protocol.js";

// biome-ignore-start lint/suspicious/noExplicitAny: describes only the parts that are used here
type Callback = (...args: any[]) => void;

/** `Redis` or `Cluster` of ioredis, version 5 or later. */
export interface IoredisClient {
  readonly status: string;
  readonly options: any;
  readonly isCluster?: boolean;
  readonly slots?: string[][];
  nodes?(role: "master"): IoredisClient[];
  refreshSlotsCache?(): void;
  call(command: string, ...args: (string | Buffer | number)[]): Promise<unknown>;
  connect(): Promise<void>;
  disconnect(reconnect?: boolean): void;
  duplicate(options?: object): any;
  quit(): Promise<unknown>;
  on(event: string, listener: Callback): unknown;
  once(event: string, listener: Callback): unknown;
}

/** A client of node-redis, version 4.2 or later. */
export interface NodeRedisClient {
  readonly isOpen: boolean;
  readonly isReady: boolean;
  readonly options?: any;
  sendCommand(args: any, options?: any): Promise<unknown>;
  listenerCount(event: string): number;
  duplicate(overrides?: any): any;
  quit(): Promise<unknown>;
  on(event: string, listener: Callback): unknown;
  once(event: string, listener: Callback): unknown;
}

/** A node of a cluster of node-redis. */
export interface NodeRedisNode {
  readonly host: string;
  readonly port: number;
  readonly client?: any;
}

/** A cluster client of node-redis, version 4.7 or later. */
export interface NodeRedisCluster {
  readonly isOpen: boolean;
  readonly slots: any;
  readonly masters: NodeRedisNode[];
  readonly nodeByAddress: Map<string, any>;
  readonly _options?: any;
  nodeClient(node: any): any;
  quit(): Promise<unknown>;
  on(event: string, listener: Callback): unknown;
}

/** A Sentinel client of node-redis, version 5 or later. */
export interface NodeRedisSentinel {
  readonly isOpen: boolean;
  readonly isReady: boolean;
  getMasterNode(): { host: string; port: number } | undefined;
  _execute(isReadonly: boolean, act: (client: any) => Promise<any>): Promise<any>;
  close(): Promise<unknown>;
  on(event: string, listener: Callback): unknown;
}
// biome-ignore-end lint/suspicious/noExplicitAny: describes only the parts that are used here

/** A client of ioredis or of node-redis. */
export type Client = IoredisClient | NodeRedisClient | NodeRedisCluster | NodeRedisSentinel;

/** In a cluster: time limit of the answer of a node that is asked for the map of the slots, and time without an answer to
 * another request after which the map is read again, ms. */
export const SLOW = 1000;

/** Receives the messages of a subscription. */
export interface Subscriber {
  readonly channel: string;
  onSubscribed(): void;
  onDisconnected(): void;
  onMessage(message: string): void;
}

export interface Subscription {
  ping(): Promise<unknown>;
  close(): void;
}

/** A connection apart from that of the user's client. */
export interface Connection {
  call(args: Args): Promise<unknown>;
  /** Calls `listener` with each message of the channel; with an empty text for null. */
  subscribe(channel: string, listener: (message: string) => void): Promise<unknown>;
  close(): void;
}

/** A client of either library. */
export interface Link {
  /** Name of the server for messages: host:port, a path, or how the client finds the server. */
  readonly address: string;
  /** Prefix that the client is configured to put before each key. */
  readonly prefix: string;
  /** Whether all commands go to one server. */
  readonly isOneServer: boolean;
  /** Whether the client would send a command now. */
  isReady(): boolean;
  /** Whether the client will never send a command again: its user has closed it, or it has given up. */
  isClosed(): boolean;
  onceReady(listener: () => void): void;
  /** The listener is called at each new connection. In a cluster, it is also called when the connection to one
   * node has ended: ioredis then replaces that connection without a further event. */
  onReady(listener: () => void): void;
  onEnded(listener: () => void): void;
  /** The listener is called with each error of the connection that the client reports. It does not count as a listener
   * for errors of the user: ioredis prints an error without one, and node-redis throws it. */
  onError(listener: (why: Error) => void): void;
  /** Returns the error with which the server refuses a new connection; undefined if it is not known within
   * `limit` ms. */
  refusal(limit: number): Promise<string | undefined>;
  call(args: Args): Promise<unknown>;
  /** In a cluster: a client of each master, or a link to it. */
  readonly masters?: (() => Promise<readonly (Client | Link)[]>) | undefined;
  /** In a cluster: the master of a key. */
  readonly masterOf?: ((key: Key) => Promise<Client | Link>) | undefined;
  /** Closes the connection, so that the client connects anew and resolves the server's name again. Does nothing
   * if the client is not connected, would not connect anew, or is a cluster, which finds its masters by itself. */
  reconnect(): void;
  /** Opens a connection, which never reconnects. `onEnded` is called when it has ended, or could not be opened. Throws a
   * `TypeError` if the client is a cluster. */
  connect(onEnded?: () => void): Promise<Connection>;
  /** Opens a connection that subscribes to `subscriber.channel`. */
  subscribe(subscriber: Subscriber): Subscription;
}

/** Returns the link to a client, but not to a cluster or Sentinel client of node-redis (see `cluster.ts` and
 * `sentinel.ts`). Throws a `TypeError` that says what to pass if `client` is not a client. */
export function linkTo(client: Client): Link {
  if (isIoredis(client)) return ioredisLink(client);
  if (!isNodeRedis(client)) throw notAClient(client);
  if (client.options?.legacyMode) {
    throw new TypeError("a client in legacyMode: pass client.duplicate({ legacyMode: false }), connected");
  }
  return nodeRedisLink(client);
}

function isIoredis(client: unknown): client is IoredisClient {
  // A pipeline of ioredis has `call` too, but sends nothing by itself.
  const { call, status, isPipeline } = (client ?? {}) as { [name: string]: unknown };
  return typeof call === "function" && typeof status === "string" && isPipeline !== true;
}

function isNodeRedis(client: unknown): client is NodeRedisClient {
  if (typeof client !== "object" || client === null) return false;
  // Clusters have `slots`, and clients of Sentinel have `getMasterNode`.
  return (
    "isReady" in client && "sendCommand" in client && !("slots" in client) && !("getMasterNode" in client)
  );
}

/** Returns the error for a value that is not a client. */
export function notAClient(given: unknown): TypeError {
  const isObject = typeof given === "object" && given !== null;
  const kind = isObject ? (given.constructor?.name ?? "object") : given === null ? "null" : typeof given;
  const remedy = Array.isArray(given)
    ? "for several masters, pass new Quorum(clients)"
    : "pass a client of ioredis 5 or later, or of node-redis 4.2 or later (createClient). In place of a pool of " +
      "node-redis, pass a client of createClient: dlock sends no command that blocks it, so a pool is not needed. In " +
      "place of a pipeline or of multi, pass the client itself. For a cluster or Sentinel, pass a client of createCluster " +
      "(node-redis 4.7 or later), of createSentinel (6.2 or later) or of ioredis. For several masters, pass new " +
      "Quorum(clients)";
  return new TypeError(`this is not a client, but ${kind}: ${remedy}`);
}

const ignore = () => {};

/** Calls `listener` with each error that the client emits, in addition to the listeners for errors. */
function onError(
  client: { on(event: string, listener: Callback): unknown },
  listener: (why: Error & { lastNodeError?: Error }) => void,
): void {
  client.on(errorMonitor as unknown as string, listener);
}

/** Connects to an address without TLS, and returns the error reply that the server sends before any request;
 * undefined if there is none within `limit` ms. A server in protected mode, or with too many clients, sends one
 * and closes the connection. The client libraries do not show it. */
function refusalOf(
  address: { host?: string; port?: number; path?: string },
  limit: number,
): Promise<string | undefined> {
  return new Promise((resolve) => {
    const { host = "localhost", port = 6379, path } = address;
    const socket = net.connect(path === undefined ? { host, port } : { path });
    let received = "";
    socket.setTimeout(limit, () => socket.destroy());
    socket.on("data", (data) => {
      received += data;
      if (received.includes("\n")) socket.destroy();
    });
    socket.on("error", ignore);
    socket.on("close", () => resolve(/^-(.+)\r?\n/.exec(received)?.[1]));
  });
}

function ioredisLink(client: IoredisClient): Link {
  const { keyPrefix, retryStrategy } = client.options;
  const { stringNumbers } = client.options.redisOptions ?? client.options;
  const commander = client.isCluster || keyPrefix ? direct(client) : client;
  const batch = client.isCluster ? () => {} : batchWrites(client);
  const call = (args: Args) => {
    batch();
    const reply = commander.call(args[0] as string, ...args.slice(1));
    // ioredis reads the map of the slots only after an error, and a node that hangs sends none.
    return client.isCluster ? whilePending(reply, SLOW, () => client.refreshSlotsCache?.()) : reply;
  };
  return {
    address: addressOf(client),
    prefix: keyPrefix ?? "",
    isOneServer: !client.isCluster,
    isReady: () => client.status === "ready",
    isClosed: () => client.status === "end",
    onceReady(listener) {
      client.once("ready", listener);
      connectIfLazy(client);
    },
    onReady(listener) {
      client.on("ready", listener);
      client.on("-node", listener);
    },
    onEnded: (listener) => client.on("end", listener),
    // The error of a cluster says only that no node can be reached.
    onError: (listener) => onError(client, (why) => listener(why.lastNodeError ?? why)),
    async refusal(limit) {
      const { sentinels, tls } = client.options;
      return client.isCluster || sentinels || tls ? undefined : refusalOf(client.options, limit);
    },
    masters: client.isCluster ? async () => (await untilReady(client)).nodes!("master") : undefined,
    masterOf: client.isCluster ? async (key) => masterOf(await untilReady(client), key) : undefined,
    call: stringNumbers ? async (args) => toNumber(await call(args)) : call,
    reconnect() {
      const reconnects = !client.isCluster && typeof retryStrategy === "function";
      if (reconnects && client.status === "ready") client.disconnect(true);
    },
    async connect(onEnded = ignore) {
      if (client.isCluster) throw new TypeError("a cluster has no connection of its own: see `masterOf`");
      const duplicate = client.duplicate({
        lazyConnect: true,
        retryStrategy: null,
        keyPrefix: "",
        protocol: 2,
      });
      duplicate.on("error", ignore);
      duplicate.on("end", onEnded);
      await duplicate.connect();
      return {
        call: (args) => duplicate.call(args[0] as string, ...args.slice(1)),
        subscribe(channel, listener) {
          duplicate.on("message", (_: string, message: string) => listener(message));
          return duplicate.subscribe(channel);
        },
        close: () => duplicate.disconnect(),
      };
    },
    subscribe(subscriber) {
      // With `autoResubscribe`, a `Redis` would send SUBSCRIBE by itself after a reconnect, and not handle its
      // error: if the connection is closed before the reply, the unhandled error ends the process. A `Cluster`
      // handles the error.
      const duplicate = client.isCluster ? client.duplicate() : client.duplicate({ autoResubscribe: false });
      duplicate.on("error", ignore);
      duplicate.on("close", () => subscriber.onDisconnected());
      duplicate.on("message", (_: string, message: string) => subscriber.onMessage(message));
      duplicate.on("ready", () =>
        duplicate.subscribe(subscriber.channel).then(
          () => subscriber.onSubscribed(),
          () => subscriber.onDisconnected(),
        ),
      );
      connectIfLazy(duplicate);
      return { ping: () => duplicate.ping(), close: () => duplicate.disconnect() };
    },
  };
}

/** Returns the client once it is ready. Before, a `Cluster` knows only a part of the nodes. */
async function untilReady(client: IoredisClient): Promise<IoredisClient> {
  if (client.status !== "ready") {
    await new Promise<unknown>((resolve) => {
      client.once("ready", resolve);
      connectIfLazy(client);
    });
  }
  return client;
}

/** Returns the client of the master that serves the slot of a key in a cluster of ioredis. */
function masterOf(cluster: IoredisClient, key: Key): IoredisClient {
  const [address] = cluster.slots?.[slotOf(key)] ?? [];
  const isIt = ({ options: { host, port } }: IoredisClient) => `${host}:${port}` === address;
  const master = cluster.nodes!("master").find(isIt);
  if (master === undefined) throw new Error("no node serves the slot of the key");
  return master;
}

/** Returns a function to call before each command. ioredis writes each command by itself; with thousands of waits, these
 * writes cost more than all the rest. So commands that follow another one within a turn of the event loop are written
 * together at its end. A single command is written at once. */
function batchWrites(client: IoredisClient): () => void {
  let isInTurn = false;
  let corked: Writable | undefined;
  const endTurn = () => {
    isInTurn = false;
    corked?.uncork();
    corked = undefined;
  };
  return () => {
    if (!isInTurn) {
      isInTurn = true;
      setImmediate(endTurn);
    } else if (corked === undefined) {
      corked = (client as { stream?: Writable }).stream;
      corked?.cork?.();
    }
  };
}

function addressOf(client: IoredisClient): string {
  const { isCluster, options } = client;
  const node = ({ host, port }: { host?: string; port?: number }, defaultPort = 6379) =>
    `${host ?? "localhost"}:${port ?? defaultPort}`;
  if (isCluster) {
    // A private field of `Cluster`: a class with a private field fits no interface that names the field.
    const { startupNodes = [] } = client as { startupNodes?: (object | string | number)[] };
    const nodes = startupNodes.map((at) => (typeof at === "object" ? node(at) : at));
    return `the cluster of ${nodes.join(", ")}`;
  }
  if (options.sentinels) {
    const sentinels = options.sentinels.map((sentinel: object) => node(sentinel, 26379));
    return `${options.name} of the Sentinels ${sentinels.join(", ")}`;
  }
  return options.path ?? node(options);
}

/** Connects a client with the option `lazyConnect`, which by itself would connect only at its first command. */
function connectIfLazy(client: IoredisClient): void {
  if (client.status === "wait") client.connect().catch(ignore);
}

/** Returns the number in a reply. With the option `stringNumbers`, ioredis returns integers as strings. */
function toNumber(reply: unknown): unknown {
  return typeof reply === "string" && /^-?\d+$/.test(reply) ? Number(reply) : reply;
}

/** Returns a view of the client that sends each command with its key unchanged. In a cluster, the view sends
 * the command to the node that serves the key.
 *
 * ioredis does not know which argument of dlock's commands is the key. In a cluster, it would send them to a
 * random node, which redirects them. If that node hangs, the holds at other nodes could not be renewed.
 *
 * The view has no `keyPrefix`, because `prefixed` in `service.ts` has already put the prefix before each key.
 * ioredis would put it before the key of GET and TYPE a second time, because it knows which argument is their
 * key. The view also has no auto-pipelining. An automatic pipeline would add the `keyPrefix` of the original
 * client, and in a cluster, a pipeline with several of dlock's commands would fail. */
function direct(client: IoredisClient): IoredisClient {
  const sendCommand = (command: { name: string; args: unknown[]; keys?: unknown[] }, ...rest: unknown[]) => {
    // In LOG .. KEY key, the key is the last argument.
    command.keys = /^dlock\.log$/i.test(command.name) ? command.args.slice(-1) : command.args.slice(0, 1);
    // biome-ignore lint/suspicious/noExplicitAny: `IoredisClient` does not describe this method
    return (client as any).sendCommand(command, ...rest);
  };
  const options = { ...client.options, keyPrefix: undefined, enableAutoPipelining: false };
  return Object.create(client, { sendCommand: { value: sendCommand }, options: { value: options } });
}

/** The commands that node-redis has not written yet, in the form of an `AbortSignal`: one that serves any number of
 * commands cheaply, and can abort again. */
class UnwrittenCommands {
  readonly aborted = false;
  readonly #listeners = new Set<() => void>();

  addEventListener(_event: string, listener: () => void): void {
    this.#listeners.add(listener);
  }

  removeEventListener(_event: string, listener: () => void): void {
    this.#listeners.delete(listener);
  }

  abortAll(): void {
    const listeners = [...this.#listeners];
    this.#listeners.clear();
    for (const listener of listeners) listener();
  }
}

/** Sends commands over a client of node-redis, and makes sure that each one gets its own reply.
 *
 * node-redis 5 writes a command in a later turn of the event loop. If the connection breaks in between, it writes the
 * command to the broken connection, and takes the first reply on the next connection for the reply to this command.
 * From then on, each command gets the reply to another one. A fence of another lock would then be a grant. Three
 * rules prevent that, whatever other commands the user sends over the client:
 *
 * 1. Commands that are not written yet when the connection breaks fail.
 * 2. A reply over a later connection than that of its command does not count.
 * 3. The first command on each connection is an ECHO of a secret. Replies count only after its right reply. */
class NodeRedisReplies {
  readonly #unwritten = new UnwrittenCommands();
  /** Rises with each connection, and at its end. */
  #connection = 0;
  /** The ECHO on the present connection; undefined before it is sent. */
  #check: Promise<void> | undefined;
  #isChecked = false;
  /** Whether the ECHO on the present connection got another reply. */
  isMixedUp = false;

  /** `onMixedUp`: called when the replies on the present connection are those to other commands. */
  constructor(
    private readonly client: NodeRedisClient,
    private readonly onMixedUp: () => void,
  ) {
    client.on("ready", () => this.#begin());
    client.on("reconnecting", () => {
      this.#begin();
      this.#unwritten.abortAll();
    });
  }

  #begin(): void {
    this.#connection += 1;
    this.#check = undefined;
    this.#isChecked = false;
    this.isMixedUp = false;
  }

  async call(args: Args): Promise<unknown> {
    const connection = this.#connection;
    if (!this.#isChecked) this.#check ??= this.#echo(connection);
    const sent = this.#send(args);
    if (!this.#isChecked) {
      sent.catch(ignore);
      await this.#check;
    }
    try {
      const reply = await sent;
      if (connection === this.#connection) return reply;
    } catch (why) {
      if (connection === this.#connection) throw why;
    }
    throw new Error("the connection broke before the reply");
  }

  /** Replaces the user's type mapping by an empty one, so that numbers arrive as numbers. */
  #send(args: Args): Promise<unknown> {
    return this.client.sendCommand(args, { typeMapping: {}, abortSignal: this.#unwritten });
  }

  async #echo(connection: number): Promise<void> {
    const secret = freshSecret();
    let reply: unknown;
    try {
      reply = await this.#send(["ECHO", secret]);
    } catch (why) {
      // The user may not run ECHO, or no command at all. After another error, the next command checks again.
      const isForbidden = /^NOPERM.*echo|^NOAUTH/i.test((why as Error).message);
      if (!isForbidden) {
        if (connection === this.#connection) this.#check = undefined;
        throw why;
      }
      reply = secret;
    }
    if (connection !== this.#connection) return;
    if (reply === secret) {
      this.#isChecked = true;
      return;
    }
    this.isMixedUp = true;
    this.onMixedUp();
    throw new Error("node-redis has mixed up the replies on its connection");
  }
}

// biome-ignore lint/suspicious/noExplicitAny: `NodeRedisClient` does not describe these methods
function closeDuplicate(duplicate: any): void {
  // `destroy` exists from node-redis 5 on. Closing a closed client throws.
  const close = async () => (duplicate.destroy ? duplicate.destroy() : duplicate.disconnect());
  // Not at once: node-redis 4 may be handing over a message. It would then throw at the next reply that it has read, as
  // the closed connection has no request any more, and so end the process.
  setImmediate(() => close().catch(ignore));
}

/** Opens a connection with the settings of a client of node-redis but for those in `options` and `socket`. It never
 * reconnects. */
export async function connectDuplicate(
  client: NodeRedisClient,
  options: object,
  socket: object,
  onEnded: () => void,
): Promise<Connection> {
  // Over RESP2, node-redis refuses the options that need RESP3.
  const onlyResp3 = {
    maintNotifications: "disabled",
    clientSideCache: undefined,
    emitInvalidate: undefined,
  };
  const duplicate = client.duplicate({
    ...onlyResp3,
    ...options,
    RESP: 2,
    socket: { ...client.options?.socket, ...socket, reconnectStrategy: false },
  });
  duplicate.on("error", onEnded);
  duplicate.on("end", onEnded);
  await duplicate.connect();
  return {
    call: (args) => duplicate.sendCommand(args, { typeMapping: {} }),
    subscribe: (channel, listener) =>
      duplicate.subscribe(channel, (message: unknown) => listener(String(message ?? ""))),
    close: () => closeDuplicate(duplicate),
  };
}

function nodeRedisLink(client: NodeRedisClient): Link {
  const { path, host, port, tls, reconnectStrategy } = client.options?.socket ?? {};
  // True from a QUIT to the next connection: a command that is sent meanwhile would be lost.
  let isLeaving = false;
  client.on("ready", () => {
    isLeaving = false;
  });
  const leave = () => {
    // The server closes the connection after it has answered all commands. The client then emits an error,
    // which would end the process if its user does not listen.
    if (!client.isReady || isLeaving || reconnectStrategy === false || !client.listenerCount("error")) return;
    isLeaving = true;
    client.sendCommand(["QUIT"]).catch(ignore);
  };
  const replies = new NodeRedisReplies(client, leave);
  return {
    address: path ?? `${host ?? "localhost"}:${port ?? 6379}`,
    prefix: "",
    isOneServer: true,
    isReady: () => client.isReady && !isLeaving && !replies.isMixedUp,
    isClosed: () => !client.isOpen,
    onceReady: (listener) => client.once("ready", listener),
    onReady: (listener) => client.on("ready", listener),
    onEnded: (listener) => client.on("end", listener),
    onError: (listener) => onError(client, listener),
    refusal: async (limit) => (tls ? undefined : refusalOf({ host, port, path }, limit)),
    call: (args) => replies.call(args),
    reconnect: leave,
    connect: (onEnded = ignore) => connectDuplicate(client, {}, {}, onEnded),
    subscribe(subscriber) {
      const duplicate = client.duplicate();
      let subscribed = false;
      duplicate.on("error", ignore);
      duplicate.on("reconnecting", () => subscriber.onDisconnected());
      // On "ready" after a reconnect, node-redis has already subscribed again.
      duplicate.on("ready", () => subscribed && subscriber.onSubscribed());
      duplicate
        .connect()
        .then(() =>
          duplicate.subscribe(subscriber.channel, (message: string) => subscriber.onMessage(message)),
        )
        .then(() => {
          subscribed = true;
          subscriber.onSubscribed();
        })
        .catch(() => subscriber.onDisconnected());
      return { ping: () => duplicate.ping(), close: () => closeDuplicate(duplicate) };
    },
  };
}
