// Real servers, the clients of both kinds, and a proxy that does what networks do.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, afterEach, beforeEach, describe } from "node:test";
import { Redis } from "ioredis";
import { createClient } from "redis";

const SERVERS = (process.env.DLOCK_TEST_SERVERS ?? "").split(",").filter(Boolean);
const MODULE = process.env.DLOCK_TEST_MODULE;
assert(
  SERVERS.length > 0 && MODULE,
  "set DLOCK_TEST_SERVERS and DLOCK_TEST_MODULE, or run make test-clients",
);

// Node 18 has no time limit for tests.
setTimeout(() => {
  console.error("this file takes too long");
  process.exit(1);
}, 600_000).unref();
// The servers end with this process.
process.once("SIGTERM", () => process.exit(1));

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Waits for a condition, and names it when it does not come. */
export async function until(what, condition, limit = 30_000) {
  const end = performance.now() + limit;
  while (true) {
    const result = await condition();
    if (result) return result;
    assert(performance.now() < end, `not in ${limit} ms: ${what}`);
    await pause(5);
  }
}

export async function freePort() {
  const probe = net.createServer().listen(0, "127.0.0.1");
  await once(probe, "listening");
  const { port } = probe.address();
  probe.close();
  await once(probe, "close");
  return port;
}

/** A server with the module, on a free port, in a folder of its own. */
export class Server {
  static async start(program, options) {
    const server = new Server();
    server.program = program;
    server.port = await freePort();
    server.url = `redis://127.0.0.1:${server.port}`;
    server.folder = mkdtempSync(path.join(tmpdir(), "dlock-node-"));
    await server.start(options);
    return server;
  }

  async start(options = []) {
    const log = openSync(path.join(this.folder, "log"), "a");
    const place = ["--bind", "127.0.0.1", "--port", `${this.port}`, "--dir", this.folder, "--save", ""];
    this.process = spawn(this.program, [...place, ...options, "--loadmodule", MODULE], {
      stdio: ["ignore", log, log],
    });
    closeSync(log);
    this.exited = once(this.process, "exit");
    await until("the server answers", () => {
      assert.equal(this.process.exitCode, null, readFileSync(path.join(this.folder, "log"), "utf8"));
      return new Promise((resolve) => {
        const socket = net.connect(this.port, "127.0.0.1", () => socket.write("PING\r\n"));
        socket.once("data", (data) => resolve(data.toString().startsWith("+PONG")));
        socket.once("error", () => resolve(false));
        socket.once("data", () => socket.destroy());
      });
    });
    this.redis = new Redis(this.port, "127.0.0.1");
    this.redis.on("error", () => {});
    process.once("exit", () => this.process.kill("SIGKILL"));
  }

  /** A command, from outside of what is tested. */
  ask(...command) {
    return this.redis.call(...command);
  }

  async exists(key = "foo") {
    return (await this.ask("EXISTS", key)) === 1;
  }

  async waiters(key = "foo") {
    return (await this.ask("DLOCK.WAITERS", key)).length;
  }

  /** Stands still, with its connections, until it goes on. */
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
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** Passes bytes on until told otherwise; every switch can be set at any time, for all connections. */
export class FaultProxy {
  silent = false; // nothing passes; connections stay open
  refuse = false; // new connections are closed at once
  delay = 0; // ms by which replies are late
  match = ""; // a reply is lost only if its request has this in it
  cutReplies = 0; // so many replies are lost, each with its connection
  lost = 0;
  accepted = 0;
  requests = ""; // all that clients have sent
  #pairs = new Set();

  static async to(port) {
    const proxy = new FaultProxy();
    proxy.target = port;
    proxy.listener = net.createServer((client) => proxy.#accept(client)).listen(0, "127.0.0.1");
    await once(proxy.listener, "listening");
    proxy.url = `redis://127.0.0.1:${proxy.listener.address().port}`;
    return proxy;
  }

  /** How often this was asked. */
  asked(command) {
    return this.requests.split(`\r\n${command}\r\n`).length - 1;
  }

  drop() {
    for (const pair of this.#pairs) for (const end of pair) end.destroy();
  }

  close() {
    this.listener.close();
    this.drop();
  }

  #accept(client) {
    this.accepted += 1;
    client.on("error", () => {});
    if (this.refuse) return client.destroy();
    const server = net.connect(this.target, "127.0.0.1");
    const pair = [client, server];
    this.#pairs.add(pair);
    let matched = false;
    const held = [];
    const pass = (to, data) => (this.silent ? held.push([to, data]) : to.write(data));
    const thaw = setInterval(() => {
      if (!this.silent) for (const [to, data] of held.splice(0)) to.write(data);
    }, 10);
    client.on("data", (data) => {
      this.requests += data;
      matched = data.includes(this.match);
      pass(server, data);
    });
    server.on("data", async (data) => {
      if (this.cutReplies > 0 && matched) {
        this.cutReplies -= 1;
        this.lost += 1;
        return client.destroy();
      }
      if (this.delay) await pause(this.delay);
      pass(client, data);
    });
    server.on("error", () => {});
    const end = () => {
      clearInterval(thaw);
      this.#pairs.delete(pair);
      client.destroy();
      server.destroy();
    };
    client.on("close", end);
    server.on("close", end);
  }
}

const kinds = {
  ioredis(url, name) {
    const { hostname, port, username, password } = new URL(url);
    const identity = { username: username || undefined, password: password || undefined };
    const client = new Redis(Number(port), hostname, { ...identity, connectionName: name });
    client.on("error", () => {});
    return { client, close: () => client.disconnect() };
  },
  async "node-redis"(url, name) {
    const client = createClient({ url, name });
    client.on("error", () => {});
    const close = async () => {
      // `destroy` from node-redis 5 on.
      if (client.isOpen) await (client.destroy ? client.destroy() : client.disconnect());
    };
    // A server that is away is connected to later.
    await Promise.race([client.connect().catch(() => {}), pause(500)]);
    return { client, close };
  },
};

/** What a suite runs with: a server, and clients of one kind. */
class Bench {
  #ends = [];

  constructor(program, kind) {
    this.program = program;
    this.kind = kind;
  }

  async client(url = this.server.url, name = "test") {
    const { client, close } = await kinds[this.kind](url, name);
    this.#ends.push(close);
    return client;
  }

  async proxy(port = this.server.port) {
    const proxy = await FaultProxy.to(port);
    this.#ends.push(() => proxy.close());
    return proxy;
  }

  async ownServer() {
    const server = await Server.start(this.program);
    this.#ends.push(() => server.stop());
    return server;
  }

  async closeAll() {
    for (const end of this.#ends.splice(0).reverse()) await end();
  }
}

/** Runs a suite on each server, with clients of each kind. Its tests begin with a server without keys. */
export function onEach(suite, only = Object.keys(kinds)) {
  for (const entry of SERVERS) {
    const [name, program] = entry.split("=");
    const started = Server.start(program);
    for (const kind of only) {
      describe(`${kind} on ${name}`, () => {
        const bench = new Bench(program, kind);
        beforeEach(async () => {
          bench.server = await started;
          await bench.server.ask("FLUSHALL");
        });
        afterEach(() => bench.closeAll());
        suite(bench);
      });
    }
    after(async () => (await started).stop());
  }
}
