// The helper that starts servers for the tests of a user's program.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { test } from "node:test";
import { Lock } from "dlock";
import { Server } from "dlock/testing";
import { Redis } from "ioredis";

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
