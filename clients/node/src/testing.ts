/** Servers for the tests of your program. With `node:test`:
 *
 *     import { after, before, test } from "node:test";
 *     import { Server } from "dlock/testing";
 *
 *     let server;
 *     before(async () => (server = await Server.start()));
 *     after(() => server.stop());
 *
 * The environment variable DLOCK_MODULE has the path of the module, and DLOCK_SERVER that of the server program; by
 * default, the valkey-server or redis-server in the PATH. */

import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdtempSync } from "node:fs";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { checkNames } from "./options.js";

// Longest time until a server answers, ms.
const START_LIMIT = 30_000;
// Tries to start a server: another process may take the free port meanwhile.
const TRIES = 5;

export interface ServerOptions {
  /** Path of the server program. */
  program?: string | undefined;
  /** Path of the module, libdlock.so. */
  module?: string | undefined;
  /** Further arguments of the server, such as "--appendonly", "yes". */
  args?: readonly string[] | undefined;
}

// Ends the server and removes its folder once its input ends: when the server has ended, or this process, which may be by
// a signal.
const CLEANUP = 'cat; kill -9 "$1"; rm -rf -- "$2"';

/** A server with the module, on a free port of 127.0.0.1, which stores nothing on a disk. It ends with this process,
 * however that ends. */
export class Server implements AsyncDisposable {
  private constructor(
    readonly port: number,
    private readonly process: ChildProcess,
    private readonly cleanup: ChildProcess,
    private readonly cleaned: Promise<unknown>,
  ) {}

  /** For `createClient({ url })` of node-redis, and `new Redis(url)` of ioredis. */
  get url(): string {
    return `redis://127.0.0.1:${this.port}`;
  }

  /** Starts a server, and waits until it answers. Throws an error with its output if it does not start. */
  static async start(options: ServerOptions = {}): Promise<Server> {
    checkNames(options, ["program", "module", "args"]);
    const program = options.program ?? process.env.DLOCK_SERVER ?? programInPath();
    const module = options.module ?? process.env.DLOCK_MODULE;
    if (!module) throw new Error("set DLOCK_MODULE to the path of the module (libdlock.so)");
    for (let tries = 1; ; tries++) {
      try {
        return await Server.#startOnce(program, path.resolve(module), options.args ?? []);
      } catch (why) {
        if (tries === TRIES) throw why;
      }
    }
  }

  static async #startOnce(program: string, module: string, args: readonly string[]): Promise<Server> {
    const port = await freePort();
    const folder = mkdtempSync(path.join(os.tmpdir(), "dlock-testing-"));
    const fixed = ["--bind", "127.0.0.1", "--port", String(port), "--dir", folder, "--save", ""];
    const child = spawn(program, [...fixed, ...args, "--loadmodule", module], {
      stdio: ["ignore", "pipe", "pipe"],
    });
    // In a process group of its own, so that a Ctrl-C in the terminal does not end it.
    const cleanup = spawn("sh", ["-c", CLEANUP, "sh", String(child.pid ?? ""), folder], {
      stdio: ["pipe", "ignore", "ignore"],
      detached: true,
    });
    const cleaned = new Promise((resolve) => cleanup.once("exit", resolve));
    let output = "";
    const note = (data: Buffer) => {
      output = (output + data).slice(-10_000);
    };
    child.stdout.on("data", note);
    child.stderr.on("data", note);
    let failure: Error | undefined;
    child.once("error", (why) => {
      failure = why;
      cleanup.stdin.end();
    });
    child.once("exit", () => cleanup.stdin.end());
    const server = new Server(port, child, cleanup, cleaned);
    const end = Date.now() + START_LIMIT;
    while (!(await server.#answers())) {
      if (failure !== undefined || child.exitCode !== null || Date.now() > end) {
        await server.stop();
        throw new Error(`${program} does not start: ${failure?.message ?? output}`);
      }
      await pause(10);
    }
    for (const part of [child, cleanup, child.stdout, child.stderr, cleanup.stdin])
      (part as net.Socket).unref();
    return server;
  }

  #answers(): Promise<boolean> {
    return new Promise((resolve) => {
      const socket = net.connect(this.port, "127.0.0.1", () => socket.write("PING\r\n"));
      socket.once("data", (data) => {
        socket.destroy();
        resolve(String(data).startsWith("+PONG"));
      });
      socket.once("error", () => resolve(false));
    });
  }

  /** Ends the server, and removes its folder. */
  async stop(): Promise<void> {
    this.process.ref();
    this.cleanup.ref();
    this.process.kill("SIGKILL");
    await this.cleaned;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }
}

function programInPath(): string {
  const folders = (process.env.PATH ?? "").split(path.delimiter);
  for (const name of ["valkey-server", "redis-server"]) {
    for (const folder of folders) if (existsSync(path.join(folder, name))) return path.join(folder, name);
  }
  throw new Error(
    "set DLOCK_SERVER to the path of a server: there is no valkey-server or redis-server in the PATH",
  );
}

async function freePort(): Promise<number> {
  const listener = net.createServer().listen(0, "127.0.0.1");
  await new Promise((resolve, reject) =>
    listener.once("listening", () => resolve(undefined)).once("error", reject),
  );
  const { port } = listener.address() as net.AddressInfo;
  await new Promise((resolve) => listener.close(resolve));
  return port;
}
