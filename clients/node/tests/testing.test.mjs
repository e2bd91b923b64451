// The helper that starts servers for the tests of a user's program.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, rmSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { Lock } from "dlock";
import { Server } from "dlock/testing";
import { Redis } from "ioredis";
import { until } from "./support.mjs";

const [, program] = process.env.DLOCK_TEST_SERVERS.split(",")[0].split("=");
const module = process.env.DLOCK_TEST_MODULE;

test("a server starts with the module, and ends", async () => {
  const server = await Server.start({ program, module, args: ["--databases", "3"] });
  const client = new Redis(server.url);
  client.on("error", () => {});
  const hold = await new Lock(client, "foo").acquire();
  assert.equal((await client.config("GET", "databases"))[1], "3");
  const [, folder] = await client.config("GET", "dir");
  await hold.release();
  client.disconnect();
  await server.stop();
  await server.stop();
  assert(!existsSync(folder));
});

test("a server and its folder go with the process, also if a signal ends it", async () => {
  for (const signal of ["SIGTERM", "SIGINT", "SIGKILL"]) {
    const code = `
      import { Server } from "dlock/testing";
      const { port } = await Server.start(${JSON.stringify({ program, module })});
      console.log(port);
      setInterval(() => {}, 1000);
    `;
    const file = new URL(`example-${process.pid}-server.mjs`, import.meta.url);
    writeFileSync(file, code);
    const user = spawn(process.execPath, [fileURLToPath(file)], { stdio: ["ignore", "pipe", "inherit"] });
    const [port] = await once(user.stdout, "data");
    rmSync(file);
    const client = new Redis(Number(port), { retryStrategy: null });
    client.on("error", () => {});
    const [, folder] = await client.config("GET", "dir");
    const ended = once(client, "end");
    user.kill(signal);
    await ended;
    await until("the folder is removed", () => !existsSync(folder));
  }
});

test("a server that does not start is an error that says why", async () => {
  await assert.rejects(
    Server.start({ program, module: "/nowhere/libdlock.so" }),
    /does not start: .*nowhere/s,
  );
  await assert.rejects(Server.start({ program: "/nowhere/server", module }), /does not start: .*ENOENT/);
  await assert.rejects(
    Server.start({ modul: module }),
    /modul: there is no such option: did you mean module\?/,
  );
});
