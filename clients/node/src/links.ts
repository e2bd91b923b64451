// What ioredis and node-redis have in common. Neither is imported: whoever passes a client has it.

import type { Args } from "./protocol.js";
import type { Desk } from "./waits.js";

// biome-ignore-start lint/suspicious/noExplicitAny: of each client, only what is used here is described
type Listener = (...args: any[]) => void;

/** `Redis` or `Cluster` of ioredis, 5 or later. */
export interface IoredisClient {
  readonly status: string;
  readonly options: any;
  readonly isCluster?: boolean;
  call(command: string, ...args: (string | Buffer | number)[]): Promise<unknown>;
  connect(): Promise<void>;
  duplicate(): any;
  quit(): Promise<unknown>;
  on(event: string, listener: Listener): unknown;
  once(event: string, listener: Listener): unknown;
}

/** A client of node-redis, 4.2 or later. */
export interface NodeRedisClient {
  readonly isOpen: boolean;
  readonly isReady: boolean;
  readonly options?: any;
  sendCommand(args: any, options?: any): Promise<unknown>;
  duplicate(): any;
  quit(): Promise<unknown>;
  on(event: string, listener: Listener): unknown;
  once(event: string, listener: Listener): unknown;
}
// biome-ignore-end lint/suspicious/noExplicitAny: as above

export type Client = IoredisClient | NodeRedisClient;

export interface Subscription {
  ping(): Promise<unknown>;
  close(): void;
}

export interface Link {
  /** host:port, or a path. */
  readonly address: string;
  /** What the client puts before each key. */
  readonly prefix: string;
  /** Whether a command would go out now. */
  isReady(): boolean;
  /** Whether none ever will: its user has closed the client, or it has given up. */
  isClosed(): boolean;
  onceReady(listener: () => void): void;
  /** At each new connection; in a cluster, when one is lost. */
  onReady(listener: () => void): void;
  onEnded(listener: () => void): void;
  call(args: Args): Promise<unknown>;
  /** A connection of its own that listens for the desk. */
  subscribe(desk: Desk): Subscription;
}

export function linkTo(client: Client): Link {
  if ("call" in client) return ioredis(client);
  // Those of node-redis for a cluster and for Sentinel are of another shape.
  if (!("isReady" in client) || "slots" in client || "getMasterNode" in client) {
    throw new TypeError(
      "not a client of ioredis 5, or of node-redis 4.2, or later. In place of a pool of node-redis, pass a " +
        "client of createClient: no command blocks it. For a cluster or Sentinel, use ioredis",
    );
  }
  if (client.options?.legacyMode) {
    throw new TypeError("a client in legacyMode: pass client.duplicate({ legacyMode: false }), connected");
  }
  return nodeRedis(client);
}

const ignore = () => {};

function ioredis(client: IoredisClient): Link {
  const { path, host, port, keyPrefix } = client.options;
  const { stringNumbers } = client.options.redisOptions ?? client.options;
  const commander = client.isCluster ? routed(client) : client;
  const call = (args: Args) => commander.call(args[0] as string, ...args.slice(1));
  return {
    address: path ?? `${host ?? "localhost"}:${port ?? 6379}`,
    prefix: keyPrefix ?? "",
    isReady: () => client.status === "ready",
    isClosed: () => client.status === "end",
    onceReady(listener) {
      client.once("ready", listener);
      if (client.status === "wait") client.connect().catch(ignore);
    },
    onReady(listener) {
      client.on("ready", listener);
      client.on("-node", listener);
    },
    onEnded: (listener) => client.on("end", listener),
    call: stringNumbers ? async (args) => number(await call(args)) : call,
    subscribe(desk) {
      const own = client.duplicate();
      own.on("error", ignore);
      own.on("close", () => desk.disconnected());
      own.on("message", (_: string, message: string) => desk.heard(message));
      own.on("ready", () =>
        own.subscribe(desk.channel).then(
          () => desk.subscribed(),
          () => desk.disconnected(),
        ),
      );
      if (own.status === "wait") own.connect().catch(ignore);
      return { ping: () => own.ping(), close: () => own.disconnect() };
    },
  };
}

function number(answer: unknown): unknown {
  return typeof answer === "string" && /^-?\d+$/.test(answer) ? Number(answer) : answer;
}

/** ioredis does not know where the keys of our commands are. It would send each to any node of a cluster, and
 * then where that one points to: if one hangs, that costs holds at the others. Several in one pipeline, that of
 * `enableAutoPipelining`, would fail. */
function routed(cluster: IoredisClient): IoredisClient {
  const sendCommand = (command: { args: unknown[]; keys?: unknown[] }, ...rest: unknown[]) => {
    command.keys = command.args.slice(0, 1);
    // biome-ignore lint/suspicious/noExplicitAny: not part of what is described
    return (cluster as any).sendCommand(command, ...rest);
  };
  const options = { ...cluster.options, enableAutoPipelining: false };
  return Object.create(cluster, { sendCommand: { value: sendCommand }, options: { value: options } });
}

function nodeRedis(client: NodeRedisClient): Link {
  const { path, host, port } = client.options?.socket ?? {};
  return {
    address: path ?? `${host ?? "localhost"}:${port ?? 6379}`,
    prefix: "",
    isReady: () => client.isReady,
    isClosed: () => !client.isOpen,
    onceReady: (listener) => client.once("ready", listener),
    onReady: (listener) => client.on("ready", listener),
    onEnded: (listener) => client.on("end", listener),
    // Numbers as numbers, whatever the user has made of them.
    call: (args) => client.sendCommand(args, { typeMapping: {} }),
    subscribe(desk) {
      const own = client.duplicate();
      let subscribed = false;
      own.on("error", ignore);
      own.on("reconnecting", () => desk.disconnected());
      // It has subscribed anew by then.
      own.on("ready", () => subscribed && desk.subscribed());
      own
        .connect()
        .then(() => own.subscribe(desk.channel, (message: string) => desk.heard(message)))
        .then(() => {
          subscribed = true;
          desk.subscribed();
        })
        .catch(() => desk.disconnected());
      // `destroy` from node-redis 5 on. A client that is closed already throws.
      const close = async () => (own.destroy ? own.destroy() : own.disconnect());
      return { ping: () => own.ping(), close: () => void close().catch(ignore) };
    },
  };
}
