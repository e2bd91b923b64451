// A cluster client of node-redis (`createCluster`).
//
// It hides over which connection a command goes, so the reply to another command could not be detected (see
// `NodeRedisReplies`). So each node has a connection of its own here, with the settings of the client's connection. It
// never connects anew: its end is the end of all its commands. The map of the slots is read here, too: the cluster client
// asks for its map only when a node redirects it, and so waits for a dead master for ever. A node that hangs keeps its
// connections open: if another one has taken over its slots, its connection is closed here.

import { whilePending, withTimeout } from "./clock.js";
import { errorWord } from "./errors.js";
import {
  type Connection,
  connectDuplicate,
  type Link,
  type NodeRedisClient,
  type NodeRedisCluster,
  type NodeRedisNode,
  SLOW,
  type Subscriber,
  type Subscription,
} from "./links.js";
import { type Args, type Key, slotOf } from "./protocol.js";

// Greatest number of redirections of a command. While a slot moves, its nodes may redirect to each other.
const REDIRECTIONS = 8;
// Pause before the subscriber connects anew, ms.
const RECONNECT_PAUSE = 200;
// Pause between two looks at a cluster client that is connecting: not every version reports the end, ms.
const CONNECTING_PAUSE = 20;

const ignore = () => {};

/** Returns the key of a command. In LOG .. KEY key, it is the last argument. */
function keyOf(command: Args): Key {
  return (/^dlock\.log$/i.test(String(command[0])) ? command.at(-1) : command[1]) as Key;
}

const addressOf = ({ host, port }: { host: string; port: number }) => `${host}:${port}`;

function split(address: string): { host: string; port: number } {
  const colon = address.lastIndexOf(":");
  return { host: address.slice(0, colon), port: Number(address.slice(colon + 1)) };
}

/** Returns the client of a node; undefined if it has none, or one that connects for the first time (node-redis 4). */
function clientOf(node: NodeRedisNode | undefined): NodeRedisClient | undefined {
  const client = node?.client;
  return client !== undefined && "isReady" in client ? client : undefined;
}

/** The connection to a node. */
interface Opened {
  readonly connection: Promise<Connection>;
  /** Ends it, also while it is being opened. */
  end(): void;
}

/** The nodes of a cluster, by their addresses `host:port`. */
class Nodes {
  /** The address of the master of each slot; empty before the map has been read. */
  #masters: string[] = [];
  #known: readonly string[] = [];
  /** Rises with each node that is asked for the map, so that each time another one is the first. */
  #turn = 0;
  #reading: Promise<void> | undefined;
  readonly #connections = new Map<string, Opened>();
  readonly #links = new Map<string, Link>();
  readonly #seen = new WeakSet<NodeRedisClient>();
  readonly #lost: (() => void)[] = [];
  readonly #ended: (() => void)[] = [];

  constructor(private readonly cluster: NodeRedisCluster) {
    cluster.on("disconnect", () => this.#end());
  }

  get address(): string {
    const known = this.#known.length > 0 ? this.#known : this.cluster.masters.map(addressOf);
    return `the cluster of ${known.join(", ")}`;
  }

  /** The listener is called when the connection to a node has ended. */
  onLost(listener: () => void): void {
    this.#lost.push(listener);
  }

  onEnded(listener: () => void): void {
    this.#ended.push(listener);
  }

  /** Sends a command to the master of its key, and follows redirections: a node that redirects has done nothing. */
  async call(command: Args): Promise<unknown> {
    const slot = slotOf(keyOf(command));
    let address = await this.#reach(slot);
    let isAsking = false;
    const send = (connection: Connection) => {
      // A connection sends its commands in order, so nothing comes between the two.
      if (isAsking) connection.call(["ASKING"]).catch(ignore);
      return connection.call(command);
    };
    for (let left = REDIRECTIONS; ; left--) {
      let redirection: string;
      try {
        return await this.#patiently(slot, address, this.#connection(address).then(send));
      } catch (why) {
        if (errorWord(why) === "CLUSTERDOWN") this.#readSoon();
        redirection = (why as Error).message;
        const found = /^(MOVED|ASK) \d+ (\S+:\d+)$/.exec(redirection);
        if (found === null) throw why;
        isAsking = found[1] === "ASK";
        address = found[2]!;
      }
      if (left === 0) throw new Error(`too many redirections, at last: ${redirection}`);
      if (!isAsking) {
        this.#masters[slot] = address;
        this.#readSoon();
      }
    }
  }

  /** Returns the outcome of work at a node. Until then, reads the map again and again. If the slot has another master,
   * the node hangs, and its connection ends: so do all commands that wait for it. */
  #patiently<T>(slot: number, address: string, work: Promise<T>): Promise<T> {
    let isPending = true;
    const look = async () => {
      await this.#read().catch(ignore);
      if (isPending && this.#masters[slot] !== address) this.#connections.get(address)?.end();
    };
    return whilePending(work, SLOW, look).finally(() => {
      isPending = false;
    });
  }

  /** Connects to the master of a slot, and returns its address. If it cannot be reached, reads the map again. */
  async #reach(slot: number): Promise<string> {
    if (this.#masters.length === 0) await this.#read();
    const before = this.#masters[slot];
    let why: unknown = new Error("no node serves the slot of the key");
    if (before !== undefined) {
      try {
        await this.#patiently(slot, before, this.#connection(before));
        return before;
      } catch (failure) {
        why = failure;
      }
    }
    await this.#read();
    const present = this.#masters[slot];
    if (present === undefined || present === before) throw why;
    return present;
  }

  #connection(address: string): Promise<Connection> {
    const known = this.#connections.get(address);
    if (known !== undefined) return known.connection;
    let end!: () => void;
    const ended = new Promise<never>((_, reject) => {
      end = () => {
        reject(new Error(`${address} does not answer, and is not the master of the slot any more`));
        forget();
      };
    });
    const forget = () => {
      if (this.#connections.get(address) !== opened) return;
      this.#connections.delete(address);
      opening.then((connection) => {
        connection.close();
        for (const listener of this.#lost) listener();
        this.#readSoon();
      }, ignore);
    };
    const opening = this.open(address, () => forget());
    const opened: Opened = { connection: Promise.race([opening, ended]), end };
    this.#connections.set(address, opened);
    opened.connection.catch(
      () => this.#connections.get(address) === opened && this.#connections.delete(address),
    );
    return opened.connection;
  }

  /** Opens a connection to a node, which never reconnects. */
  async open(address: string, onEnded: () => void): Promise<Connection> {
    const { cluster } = this;
    const node = cluster.nodeByAddress.get(address);
    const own = clientOf(node);
    const client =
      own ??
      cluster.masters.map(clientOf).find((found) => found !== undefined) ??
      (await cluster.nodeClient(cluster.masters[0]!));
    this.#watchEnd(client);
    const to = own === undefined ? this.#translated(address) : {};
    const connection = await connectDuplicate(client, { readonly: false }, to, onEnded);
    if (cluster.isOpen) return connection;
    connection.close();
    throw new Error("the client is closed");
  }

  /** Returns where to connect to a node that the cluster client does not know yet. */
  #translated(address: string): object {
    const map = this.cluster._options?.nodeAddressMap;
    return (typeof map === "function" ? map(address) : map?.[address]) ?? split(address);
  }

  /** node-redis 4 does not report the end of a cluster client, but that of its clients. */
  #watchEnd(client: NodeRedisClient | undefined): void {
    if (client === undefined || this.#seen.has(client)) return;
    this.#seen.add(client);
    client.once("end", () => this.cluster.isOpen || this.#end());
  }

  #end(): void {
    const connections = [...this.#connections.values()];
    this.#connections.clear();
    for (const opened of connections) opened.connection.then((connection) => connection.close(), ignore);
    for (const listener of this.#ended) listener();
  }

  #readSoon(): void {
    this.#read().catch(ignore);
  }

  /** Reads the map of the slots. */
  #read(): Promise<void> {
    this.#reading ??= this.#readFromAny().finally(() => {
      this.#reading = undefined;
    });
    return this.#reading;
  }

  async #readFromAny(): Promise<void> {
    const { cluster } = this;
    while (cluster.isOpen && cluster.masters.length === 0)
      await new Promise((resolve) => setTimeout(resolve, CONNECTING_PAUSE));
    for (const node of cluster.masters) this.#watchEnd(clientOf(node));
    let failure: unknown = new Error("the client is closed");
    for (const address of this.#inTurn()) {
      if (!cluster.isOpen) break;
      try {
        const reply = this.#connection(address).then((connection) => connection.call(["CLUSTER", "SLOTS"]));
        this.#note((await withTimeout(reply, SLOW)) as unknown[][], address);
        return;
      } catch (why) {
        failure = why;
      }
    }
    throw failure;
  }

  /** Returns the addresses of all known nodes, each time beginning with another one. */
  #inTurn(): readonly string[] {
    const all = [...new Set([...this.#known, ...this.cluster.masters.map(addressOf)])];
    const first = all.length === 0 ? 0 : this.#turn++ % all.length;
    return [...all.slice(first), ...all.slice(0, first)];
  }

  /** Records a reply to CLUSTER SLOTS. A node without a name is at the address of the one that was asked. */
  #note(ranges: unknown[][], asked: string): void {
    const masters: string[] = [];
    const known = new Set<string>();
    for (const [from, to, ...nodes] of ranges) {
      const addresses = (nodes as [string | null, number][]).map(([host, port]) =>
        addressOf({ host: host || split(asked).host, port }),
      );
      for (let slot = Number(from); slot <= Number(to); slot++) masters[slot] = addresses[0]!;
      for (const address of addresses) known.add(address);
    }
    if (known.size === 0) throw new Error("the node does not know the cluster yet");
    this.#masters = masters;
    this.#known = [...known];
  }

  /** Returns a link to each master that serves slots. */
  async masters(): Promise<readonly Link[]> {
    await this.#read();
    return [...new Set(Object.values(this.#masters))].map((address) => this.#link(address));
  }

  /** Returns a link to the master of a key. */
  async masterOf(key: Key): Promise<Link> {
    if (this.#masters.length === 0) await this.#read();
    const address = this.#masters[slotOf(key)];
    if (address === undefined) throw new Error("no node serves the slot of the key");
    return this.#link(address);
  }

  #link(address: string): Link {
    const known = this.#links.get(address);
    if (known !== undefined) return known;
    const link: Link = {
      ...this.common(),
      address,
      isOneServer: true,
      call: async (args) => (await this.#connection(address)).call(args),
      connect: (onEnded = ignore) => this.open(address, onEnded),
      subscribe: (subscriber) => this.subscribe(subscriber, () => address),
    };
    this.#links.set(address, link);
    return link;
  }

  /** What the links of the cluster and of its nodes have in common. Each call waits for its own connection. */
  common() {
    return {
      prefix: "",
      isReady: () => this.cluster.isOpen,
      isClosed: () => !this.cluster.isOpen,
      onceReady: ignore,
      onReady: (listener: () => void) => this.onLost(listener),
      onEnded: (listener: () => void) => this.onEnded(listener),
      onError: ignore,
      refusal: async () => undefined,
      reconnect: ignore,
    };
  }

  /** Subscribes at a node: at the next one after each end of the connection. */
  subscribe(subscriber: Subscriber, next = () => this.#inTurn()[0]): Subscription {
    const open = async (onEnded: () => void) => {
      if (this.#known.length === 0) await this.#read();
      return this.open(next()!, onEnded);
    };
    return subscribeOver(subscriber, open, () => this.cluster.isOpen);
  }
}

/** Subscribes over a connection that `open` opens, and over another one after each end while `isOpen`. */
export function subscribeOver(
  subscriber: Subscriber,
  open: (onEnded: () => void) => Promise<Connection>,
  isOpen: () => boolean,
): Subscription {
  let connection: Connection | undefined;
  let isClosed = false;
  const begin = async () => {
    let hasEnded = false;
    const ended = () => {
      if (hasEnded) return;
      hasEnded = true;
      connection?.close();
      connection = undefined;
      if (isClosed) return;
      subscriber.onDisconnected();
      if (isOpen()) setTimeout(begin, RECONNECT_PAUSE).unref();
    };
    if (isClosed) return;
    try {
      const opened = await open(ended);
      if (isClosed || hasEnded) return opened.close();
      connection = opened;
      await opened.subscribe(subscriber.channel, (message) => subscriber.onMessage(message));
      if (!isClosed && !hasEnded) subscriber.onSubscribed();
    } catch {
      ended();
    }
  };
  void begin();
  return {
    ping: async () => {
      if (connection === undefined) throw new Error("not subscribed");
      return connection.call(["PING"]);
    },
    close: () => {
      isClosed = true;
      connection?.close();
    },
  };
}

export function isNodeRedisCluster(client: unknown): client is NodeRedisCluster {
  if (typeof client !== "object" || client === null) return false;
  return "slots" in client && "nodeByAddress" in client && "nodeClient" in client;
}

/** Returns the link to a cluster client of node-redis. */
export function clusterLink(cluster: NodeRedisCluster): Link {
  const nodes = new Nodes(cluster);
  return {
    ...nodes.common(),
    get address() {
      return nodes.address;
    },
    isOneServer: false,
    masters: () => nodes.masters(),
    masterOf: (key) => nodes.masterOf(key),
    call: (args) => nodes.call(args),
    async connect() {
      throw new TypeError("a cluster has no connection of its own: see `masterOf`");
    },
    subscribe: (subscriber) => nodes.subscribe(subscriber),
  };
}
