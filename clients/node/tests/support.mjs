// Real servers, clients of both libraries, and a proxy that causes network faults.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { EventEmitter, once } from "node:events";
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { after, afterEach, beforeEach, describe } from "node:test";
import { Quorum } from "dlock";
import { Cluster, Redis } from "ioredis";
import * as nodeRedis from "redis";
import { times } from "../dist/waits.js";

const SERVERS = (process.env.DLOCK_TEST_SERVERS ?? "").split(",").filter(Boolean);
const MODULE = process.env.DLOCK_TEST_MODULE;
assert(
  SERVERS.length > 0 && MODULE,
  "set DLOCK_TEST_SERVERS and DLOCK_TEST_MODULE, or run make test-clients",
);

// Most tests count connections and requests, so that holds must not be watched for their loss: watch.test.mjs has those
// that watch them.
times.watch = Number.POSITIVE_INFINITY;

// Longest time for the tests of one `onEachServer`, ms. At its end, the tests that hang fail, and the report names them.
const SUITE_LIMIT = 480_000;
// Ends a hang outside of such tests.
setTimeout(() => {
  console.error("this file takes too long");
  process.exit(1);
}, 600_000).unref();
// Without this handler, SIGTERM would end the process without its `exit` handlers, which kill the servers.
process.once("SIGTERM", () => process.exit(1));
// Each server adds a listener to this process.
EventEmitter.defaultMaxListeners = 100;

/** The value of a lock of redis-py or node-redlock. */
export const FOREIGN_TOKEN = "0123456789abcdef0123456789abcdef";

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Waits until `condition` returns a true value, and returns that value. `limit` (ms) only ends a hang. */
export async function until(what, condition, limit = 60_000) {
  const end = performance.now() + limit;
  while (true) {
    const result = await condition();
    if (result) return result;
    assert(performance.now() < end, `not within ${limit} ms: ${what}`);
    await pause(5);
  }
}

const [wall, uptime] = [Date.now, os.uptime];
let suspended = 0;
Date.now = () => wall() + suspended;
os.uptime = () => uptime() + suspended / 1000;

/** Advances the clock of all clients, as if the machine had been suspended for `ms`. */
export function suspend(ms) {
  suspended += ms;
}

/** Sets long time limits for all tests of a file, because a busy machine answers late: 10 s for the answer of a
 * member, and `patience` (ms) for the time that a caller waits for answers to its RELEASEs. */
export function allowSlowAnswers(patience = 20_000) {
  Object.assign(times, { nodeTimeout: 10_000, patience });
}

/** Advances the clock by half the lease of `ttl` ms, so that the renewal is due, and waits for the renewal. A
 * busy machine must be able to renew within the other half. */
export async function untilRenewed(hold, ttl) {
  suspend(ttl / 2);
  assert(hold.validFor <= ttl / 2);
  await until("the hold is renewed", () => hold.validFor > ttl / 2);
}

/** Listens on a port. Returns the listener, or null if the port is in use. */
async function listen(port, host) {
  const listener = net.createServer().listen(port, host);
  try {
    await once(listener, "listening");
  } catch (why) {
    if (why.code !== "EADDRINUSE") throw why;
    return null;
  }
  return listener.unref();
}

/** A port of 127.0.0.1 that no other test takes until `close`, whether or not a server listens there. It is below
 * 32768, where the ports of outgoing connections begin.
 *
 * The claim is a socket that listens on the same port of 127.0.0.2. The tests in Rust and Python make such claims,
 * too. */
export class Port {
  #listener;

  static async claim() {
    while (true) {
      const port = new Port();
      port.number = 10_000 + Math.floor(Math.random() * 10_000);
      port.#listener = await listen(port.number, "127.0.0.2");
      if (port.#listener === null) continue;
      const probe = await listen(port.number, "127.0.0.1");
      if (probe !== null) {
        probe.close();
        await once(probe, "close");
        return port;
      }
      port.close();
    }
  }

  close() {
    this.#listener.close();
  }
}

/** A server with the module, on a free port, in its own folder. */
export class Server {
  static async start(program, options) {
    const server = new Server();
    server.program = program;
    server.claimedPort = await Port.claim();
    server.port = server.claimedPort.number;
    server.url = `redis://127.0.0.1:${server.port}`;
    server.folder = mkdtempSync(path.join(os.tmpdir(), "dlock-node-"));
    await server.start(options);
    return server;
  }

  async start(options = []) {
    const log = openSync(path.join(this.folder, "log"), "a");
    const fixed = ["--bind", "127.0.0.1", "--port", `${this.port}`, "--dir", this.folder, "--save", ""];
    this.process = spawn(this.program, [...fixed, ...options, "--loadmodule", MODULE], {
      stdio: ["ignore", log, log],
    });
    closeSync(log);
    const child = this.process;
    this.exited = once(child, "exit");
    const kill = () => child.kill("SIGKILL");
    process.once("exit", kill);
    this.exited.then(([code, signal]) => {
      process.off("exit", kill);
      if (!child.killed) console.error(`the server ended by itself (${signal ?? code}): ${this.log()}`);
    });
    await until("the server answers", () => {
      assert.equal(this.process.exitCode, null, this.log());
      return new Promise((resolve) => {
        const socket = net.connect(this.port, "127.0.0.1", () => socket.write("PING\r\n"));
        socket.once("data", (data) => resolve(data.toString().startsWith("+PONG")));
        socket.once("error", () => resolve(false));
        socket.once("data", () => socket.destroy());
      });
    });
    this.redis = new Redis(this.port, "127.0.0.1");
    this.redis.on("error", () => {});
  }

  log() {
    return readFileSync(path.join(this.folder, "log"), "utf8");
  }

  /** Sends a command over a connection of the test's own. */
  ask(...command) {
    return this.redis.call(...command);
  }

  /** Removes all keys and waiters. FLUSHALL does not remove the waiters. After it, the server grants each lock to
   * the head of its queue. So FLUSHALL is repeated until no lock is left. */
  async clear() {
    do await this.ask("FLUSHALL");
    while ((await this.ask("DLOCK.LIST", "0"))[1].length > 0);
  }

  async exists(key = "foo") {
    return (await this.ask("EXISTS", key)) === 1;
  }

  async waiters(key = "foo") {
    return (await this.ask("DLOCK.WAITERS", key)).length;
  }

  async runId() {
    return /run_id:(\w+)/.exec(await this.ask("INFO", "server"))[1];
  }

  /** Returns how many calls of a command the server has executed since the last CONFIG RESETSTAT. */
  async calls(command) {
    const stats = await this.ask("INFO", "commandstats");
    return Number(new RegExp(`cmdstat_${command}:calls=(\\d+)`, "i").exec(stats)?.[1] ?? 0);
  }

  /** Stops the process until `thaw`. Its connections stay open. */
  freeze() {
    this.process.kill("SIGSTOP");
  }

  thaw() {
    this.process.kill("SIGCONT");
  }

  async kill() {
    this.redis.disconnect();
    this.process.kill("SIGKILL");
    await this.exited;
  }

  async stop() {
    await this.kill();
    this.claimedPort.close();
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** A Redis Cluster of `count` masters, which share the slots evenly, in order. */
export class TestCluster {
  nodes = [];
  #busPorts = [];

  static async start(program, count, options = []) {
    const cluster = new TestCluster();
    cluster.program = program;
    cluster.options = options;
    for (let at = 0; at < count; at++) await cluster.#add();
    for (const [at, node] of cluster.nodes.entries()) {
      const [firstSlot, endSlot] = [at, at + 1].map((part) => Math.floor((16_384 * part) / count));
      await node.ask("CLUSTER", "ADDSLOTSRANGE", firstSlot, endSlot - 1);
      await node.ask("CLUSTER", "SET-CONFIG-EPOCH", at + 1);
      await cluster.#meet(node);
    }
    await cluster.untilComplete();
    return cluster;
  }

  async #add() {
    const busPort = await Port.claim();
    this.#busPorts.push(busPort);
    const cluster = ["--cluster-enabled", "yes", "--cluster-port", `${busPort.number}`];
    this.nodes.push(await Server.start(this.program, [...cluster, ...this.options]));
    return this.nodes.at(-1);
  }

  #meet(node) {
    return node.ask("CLUSTER", "MEET", "127.0.0.1", this.nodes[0].port, this.#busPorts[0].number);
  }

  async untilComplete() {
    const isComplete = (info) => /cluster_state:ok/.test(info) && /cluster_slots_assigned:16384/.test(info);
    for (const node of this.nodes)
      await until("the cluster is complete", async () => isComplete(await node.ask("CLUSTER", "INFO")));
  }

  /** Moves the slot of a key, with its keys. */
  async moveSlot(key, from, to) {
    const slot = await from.ask("CLUSTER", "KEYSLOT", key);
    const [fromId, toId] = [await from.ask("CLUSTER", "MYID"), await to.ask("CLUSTER", "MYID")];
    await to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", fromId);
    await from.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", toId);
    const moved = await from.ask("CLUSTER", "GETKEYSINSLOT", slot, "100");
    assert(moved.includes(key));
    await from.ask("MIGRATE", "127.0.0.1", to.port, "", "0", "10000", "KEYS", ...moved);
    const others = this.nodes.filter((node) => node !== from && node !== to);
    for (const node of [to, from, ...others]) await node.ask("CLUSTER", "SETSLOT", slot, "NODE", toId);
  }

  /** Adds a replica of a node, and waits until all nodes know it and it has the master's data. */
  async addReplica(master) {
    const replica = await this.#add();
    await this.#meet(replica);
    const id = await master.ask("CLUSTER", "MYID");
    await until("the replica knows its master", async () =>
      `${await replica.ask("CLUSTER", "NODES")}`.includes(id),
    );
    await replica.ask("CLUSTER", "REPLICATE", id);
    const own = await replica.ask("CLUSTER", "MYID");
    for (const node of this.nodes)
      await until("all nodes know the replica", async () => {
        const nodes = await node.ask("CLUSTER", "NODES");
        return new RegExp(`^${own}.* (myself,)?slave `, "m").test(nodes);
      });
    await until("the replica is in step", async () =>
      /master_link_status:up/.test(await replica.ask("INFO", "replication")),
    );
    return replica;
  }

  async stop() {
    await Promise.all(this.nodes.map((node) => node.stop()));
    for (const port of this.#busPorts) port.close();
  }
}

/** Passes bytes between clients and a server. Each switch can be set at any time, for all connections. */
export class FaultProxy {
  silent = false; // nothing passes; connections stay open
  stallRequests = false; // nothing passes from clients to the server
  refuse = false; // new connections are closed at once
  delay = 0; // replies are late by this many ms
  match = ""; // `cutReplies` applies only to replies whose request contains this text
  cutReplies = 0; // number of replies to discard; each time, the connection is closed
  lost = 0; // number of replies that were discarded so far
  accepted = 0; // number of connections so far
  requests = ""; // everything that clients have sent
  #pairs = new Set();
  #stalled = [];

  static async to(port) {
    const proxy = new FaultProxy();
    proxy.target = port; // the port to which new connections lead
    proxy.listener = net.createServer((client) => proxy.#accept(client)).listen(0, "127.0.0.1");
    await once(proxy.listener, "listening");
    proxy.url = `redis://127.0.0.1:${proxy.listener.address().port}`;
    return proxy;
  }

  /** Returns how often clients have sent a command. */
  requestCount(command) {
    return this.requests.split(`\r\n${command}\r\n`).length - 1;
  }

  /** Returns the open connections to clients. */
  sockets() {
    return [...this.#pairs].map(({ client }) => client);
  }

  /** Closes all connections. */
  drop() {
    for (const pair of this.#pairs) pair.end();
  }

  /** From now on, holds back the requests over the present connections, and discards their replies. New
   * connections work. */
  stall() {
    for (const pair of this.#pairs) {
      pair.isStalled = true;
      this.#stalled.push(pair);
    }
  }

  /** Closes the stalled connections to the clients. Those to the server stay open for `deliver`. */
  breakStalled() {
    for (const { client } of this.#stalled) client.destroy();
  }

  /** Sends the server the requests that `stall` held back, and waits until the server has read them. */
  async deliver() {
    for (const { server, heldBack } of this.#stalled.splice(0)) {
      const replies = once(server, "data");
      for (const [, data] of heldBack.splice(0)) server.write(data);
      server.write("PING\r\n");
      await replies;
      server.destroy();
    }
  }

  close() {
    this.listener.close();
    this.drop();
    for (const { server } of this.#stalled) server.destroy();
  }

  #accept(client) {
    this.accepted += 1;
    client.on("error", () => {});
    if (this.refuse) return client.destroy();
    const server = net.connect(this.target, "127.0.0.1");
    const pair = { client, server, heldBack: [], isStalled: false };
    this.#pairs.add(pair);
    let lastRequestMatches = false;
    const isHeldBack = (to) => this.silent || pair.isStalled || (this.stallRequests && to === server);
    const pass = (to, data) => (isHeldBack(to) ? pair.heldBack.push([to, data]) : to.write(data));
    const flushTimer = setInterval(() => {
      for (const [to, data] of pair.heldBack.splice(0)) pass(to, data);
    }, 10);
    client.on("data", (data) => {
      this.requests += data;
      lastRequestMatches = data.includes(this.match);
      pass(server, data);
    });
    server.on("data", async (data) => {
      if (this.cutReplies > 0 && lastRequestMatches) {
        this.cutReplies -= 1;
        this.lost += 1;
        return client.destroy();
      }
      if (this.delay) await pause(this.delay);
      if (!pair.isStalled) pass(client, data);
    });
    server.on("error", () => {});
    pair.end = () => {
      clearInterval(flushTimer);
      this.#pairs.delete(pair);
      client.destroy();
      if (!pair.isStalled) server.destroy();
    };
    client.on("close", pair.end);
    server.on("close", pair.end);
  }
}

/** By the name of a library: a function that makes a client. */
const libraries = {
  ioredis(url, name) {
    const { hostname, port, username, password } = new URL(url);
    const identity = { username: username || undefined, password: password || undefined };
    const client = new Redis(Number(port), hostname, { ...identity, connectionName: name });
    client.on("error", () => {});
    return { client, close: () => client.disconnect() };
  },
  async "node-redis"(url, name) {
    const client = nodeRedis.createClient({ url, name });
    client.on("error", () => {});
    const close = async () => {
      // `destroy` from node-redis 5 on.
      if (client.isOpen) await (client.destroy ? client.destroy() : client.disconnect());
    };
    // If the server is down, the client keeps trying to connect: do not wait for that.
    await Promise.race([client.connect().catch(() => {}), pause(500)]);
    return { client, close };
  },
};

/** Makes a cluster client of a library, of the cluster with a node at each of the ports. */
export async function clusterClient(library, ports, options = {}) {
  if (library === "ioredis") {
    const nodes = ports.map((port) => ({ host: "127.0.0.1", port }));
    const client = new Cluster(nodes, { clusterRetryStrategy: () => 50, ...options });
    client.on("error", () => {});
    return { client, close: () => client.disconnect() };
  }
  const rootNodes = ports.map((port) => ({ url: `redis://127.0.0.1:${port}` }));
  const client = nodeRedis.createCluster({ rootNodes, ...options });
  client.on("error", () => {});
  await client.connect();
  return { client, close: () => (client.destroy ? client.destroy() : client.disconnect()) };
}

/** Whether the installed version of a library has a Sentinel client. */
export const hasSentinel = (library) => library === "ioredis" || nodeRedis.createSentinel !== undefined;

/** Makes a Sentinel client of a library. The sentinel names the master "main". `options` are those of ioredis. */
export async function sentinelClient(library, port, options = {}) {
  const sentinels = [{ host: "127.0.0.1", port }];
  if (library === "ioredis") {
    const client = new Redis({ sentinels, name: "main", retryStrategy: () => 50, ...options });
    client.on("error", () => {});
    return { client, close: () => client.disconnect() };
  }
  const client = nodeRedis.createSentinel({ name: "main", sentinelRootNodes: sentinels });
  client.on("error", () => {});
  await client.connect();
  return { client, close: () => client.close() };
}

/** The environment of a suite: one server, and clients of one library. */
class TestEnvironment {
  /** Called after each test, the last added function first. */
  #cleanups = [];

  constructor(program, library) {
    this.program = program;
    this.clientLibrary = library;
  }

  async client(url = this.server.url, name = "test") {
    const { client, close } = await libraries[this.clientLibrary](url, name);
    this.#cleanups.push(close);
    return client;
  }

  async proxy(port = this.server.port) {
    const proxy = await FaultProxy.to(port);
    this.#cleanups.push(() => proxy.close());
    return proxy;
  }

  /** Starts a server that the test may kill. */
  async ownServer() {
    const server = await Server.start(this.program);
    this.#cleanups.push(() => server.stop());
    return server;
  }

  async closeAll() {
    for (const cleanup of this.#cleanups.splice(0).reverse()) await cleanup();
  }
}

/** Runs a suite on each server, with clients of each library, or of the libraries in `only`. Each test begins
 * with an empty server. With `isParallel`, all runs take place at the same time: for suites that mostly wait.
 * Their tests must change neither the clock nor `times` (the client's time limits and pauses), as the runs
 * share both. */
export function onEachServer(suite, { only = Object.keys(libraries), isParallel = false } = {}) {
  const concurrency = isParallel ? SERVERS.length * only.length : 1;
  describe("on each server", { concurrency, timeout: SUITE_LIMIT }, () => describeAll(suite, only));
}

function describeAll(suite, only) {
  for (const entry of SERVERS) {
    const [name, program] = entry.split("=");
    const started = Server.start(program);
    for (const library of only) {
      describe(`${library} on ${name}`, { concurrency: 1 }, () => {
        const env = new TestEnvironment(program, library);
        beforeEach(async () => {
          env.server = await started;
          await env.server.clear();
        });
        afterEach(() => env.closeAll());
        suite(env);
      });
    }
    after(async () => (await started).stop());
  }
}

/** Gives each test of a suite empty masters, each behind a proxy. The masters are sorted by run
 * id, because all clients try the masters' wait queues in this order. */
export function mastersFor(env, count = 3) {
  const masters = [];
  const proxies = [];
  beforeEach(async () => {
    while (masters.length < count) masters.push(await Server.start(env.program));
    const ids = new Map();
    for (const master of masters) {
      await master.clear();
      ids.set(master, await master.runId());
    }
    masters.sort((one, other) => (ids.get(one) < ids.get(other) ? -1 : 1));
    proxies.splice(0, count, ...(await Promise.all(masters.map(({ port }) => env.proxy(port)))));
  });
  after(() => Promise.all(masters.map((master) => master.stop())));

  const clients = (endpoints) => Promise.all(endpoints.map(({ url }) => env.client(url)));
  const waiters = (key) => Promise.all(masters.map((master) => master.waiters(key)));
  /** Waits until the masters with these indices have a hold of the lock "foo", and no other master has one. */
  const untilHeldAt = (...indices) =>
    until(`the lock is held at the masters ${indices}`, async () => {
      const held = await Promise.all(masters.map((master) => master.exists()));
      return `${[...held.keys()].filter((index) => held[index])}` === `${indices}`;
    });
  return {
    masters,
    proxies,
    clients,
    /** Makes a quorum of these servers or proxies. The default time limit of an answer is long, so that no
     * member counts as silent because the machine is busy. */
    quorumOf: async (endpoints, nodeTimeout = 10_000) =>
      new Quorum(await clients(endpoints), { nodeTimeout }),
    untilHeldAt,
    untilFree: () => untilHeldAt(),
    /** Waits until each master has its number of waiters in `counts`. */
    untilWaiters: (...counts) =>
      until(`${counts} clients wait`, async () => `${await waiters()}` === `${counts}`),
    /** Waits until one of the masters has a waiter. */
    untilAnyWaiter: (key) => until("a client waits", async () => (await waiters(key)).some(Boolean)),
  };
}
