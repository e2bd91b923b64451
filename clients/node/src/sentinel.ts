// A Sentinel client of node-redis (`createSentinel`).
//
// It sends commands again by itself, and hides over which connection a command goes. So there is a connection of its own
// here to the master that the client has found, with the client's settings. It never connects anew: its end is the end of
// all its commands, and another one is opened, to the master of then.

import { subscribeOver } from "./cluster.js";
import {
  type Connection,
  connectDuplicate,
  type Link,
  type NodeRedisClient,
  type NodeRedisSentinel,
} from "./links.js";

// Pause between two tries to connect, or two looks at the client, ms.
const PAUSE = 50;
const pause = () => new Promise((resolve) => setTimeout(resolve, PAUSE).unref());

export function isNodeRedisSentinel(client: unknown): client is NodeRedisSentinel {
  if (typeof client !== "object" || client === null) return false;
  return "getMasterNode" in client && "_execute" in client;
}

const ignore = () => {};

/** Opens a connection to the master. `watchEnd` is called with the client's own connection. */
async function open(
  sentinel: NodeRedisSentinel,
  onEnded: () => void,
  watchEnd: (client: NodeRedisClient) => void,
): Promise<Connection> {
  if (sentinel.getMasterNode() === undefined) throw new Error("the client has found no master");
  // The client that would carry out a command. It is connected, so that this asks no sentinel.
  const client = await sentinel._execute(false, async (master) => master);
  watchEnd(client);
  const connection = await connectDuplicate(client, {}, {}, onEnded);
  if (sentinel.isReady) return connection;
  connection.close();
  throw new Error(sentinel.isOpen ? "the client has found no master" : "the client is closed");
}

/** Returns the link to a Sentinel client of node-redis. */
export function sentinelLink(sentinel: NodeRedisSentinel): Link {
  const onReady: (() => void)[] = [];
  const onEnded: (() => void)[] = [];
  const onError: ((why: Error) => void)[] = [];
  const waiting: (() => void)[] = [];
  let address = "the master of a Sentinel client";
  let connection: Connection | undefined;
  let isConnecting = false;
  const leave = () => {
    connection?.close();
    connection = undefined;
  };
  const watched = new WeakSet<NodeRedisClient>();
  const watchEnd = (client: NodeRedisClient) => {
    if (watched.has(client)) return;
    watched.add(client);
    client.once("end", async () => {
      // The client closes such a connection also when it has found another master, and from version 6.3 on, it is not
      // ready before it is connected there.
      while (sentinel.isOpen && !sentinel.isReady) await pause();
      if (sentinel.isOpen) return;
      leave();
      for (const listener of onEnded) listener();
    });
  };
  const connectOnce = async () => {
    let hasEnded = false;
    let opened: Connection | undefined;
    const ended = () => {
      hasEnded = true;
      if (opened !== undefined && connection === opened) leave();
    };
    opened = await open(sentinel, ended, watchEnd);
    if (hasEnded) return opened.close();
    connection = opened;
    const { host, port } = sentinel.getMasterNode() ?? {};
    if (host !== undefined) address = `${host}:${port}`;
    for (const listener of onReady) listener();
  };
  /** Connects, and calls those who wait for it, also once the client is closed. */
  const connect = async () => {
    if (isConnecting) return;
    isConnecting = true;
    while (connection === undefined && sentinel.isOpen) {
      await connectOnce().catch((why) => {
        for (const listener of onError) listener(why);
      });
      if (connection === undefined) await pause();
    }
    isConnecting = false;
    for (const listener of waiting.splice(0)) listener();
  };
  sentinel.on("topology-change", ({ type }) => {
    if (type === "MASTER_CHANGE") leave();
  });
  return {
    get address() {
      return address;
    },
    prefix: "",
    isOneServer: true,
    isReady: () => connection !== undefined,
    isClosed: () => !sentinel.isOpen,
    onceReady(listener) {
      waiting.push(listener);
      void connect();
    },
    onReady: (listener) => onReady.push(listener),
    onEnded: (listener) => onEnded.push(listener),
    onError: (listener) => onError.push(listener),
    refusal: async () => undefined,
    async call(args) {
      if (connection === undefined) throw new Error("the client is not connected to a master");
      return connection.call(args);
    },
    reconnect: leave,
    connect: (ended = ignore) => open(sentinel, ended, watchEnd),
    subscribe: (subscriber) =>
      subscribeOver(
        subscriber,
        (ended) => open(sentinel, ended, watchEnd),
        () => sentinel.isOpen,
      ),
  };
}
