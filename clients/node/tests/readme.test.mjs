// The examples of the READMEs (of the project and of this client) and of docs/node.md run and type-check, and the
// package installs from its folder.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import ts from "typescript";
import { onEachServer } from "./support.mjs";

const licences = ["LICENSE-APACHE", "LICENSE-MIT"];
const root = fileURLToPath(new URL("..", import.meta.url));
// A program for node-redlock, with its import changed to `dlock/redlock`.
const nodeRedlockProgram = `
import Redlock, { ExecutionError, Lock, type Settings, type RedlockAbortSignal } from "dlock/redlock";
import { Redis } from "ioredis";

const settings: Partial<Settings> = { retryCount: 5 };
const redlock = new Redlock([new Redis()], settings);
let lock: Lock = await redlock.acquire(["a"], 5000, settings);
const resources: string[] = lock.resources;
lock = await redlock.extend(await lock.extend(5000), 5000, settings);
await redlock.release(lock, settings);
const again = new Lock(redlock, resources, lock.value, [], lock.expiration);
await again.release().catch((why) => why instanceof ExecutionError && why.attempts.length);
await redlock.using(resources, 5000, settings, async (signal: RedlockAbortSignal) => {
  if (signal.aborted) throw signal.error;
});
for (const client of redlock.clients) await client.quit();
`;

// A user's program that names the public types.
const userProgram = `
import {
  type AcquireOptions, type Client, type Durable, fenced, Hold, type Holder, Holds, type Incident, type Inspection, type Key,
  Leader, type Listed, Lock, lockAll, type LockOptions, lockPath, Locks, NotHeldError, Operator, Quorum, ResourceLockedError,
  type Waiting,
} from "dlock";
import { instrument } from "dlock/otel";
import { Server, type ServerOptions } from "dlock/testing";
import { Cluster, Redis } from "ioredis";
import { Cluster as ValkeyCluster, Redis as Valkey } from "iovalkey";
import { createClient, createCluster, createSentinel, type RedisClientType } from "redis";

const all: Client[] = [new Redis(), new Valkey(), createClient(), createClient() as RedisClientType];
all.push(new Cluster([7000]), new ValkeyCluster([{ port: 7000 }]), createCluster({ rootNodes: [] }));
all.push(createSentinel({ name: "main", sentinelRootNodes: [] }));
const durable: Durable = { replicas: 1, timeout: 100 };
const options: LockOptions = { ttl: 1, maxHold: 1, delay: 1, label: "x", durable, ephemeral: true, reentrant: true };
const lock = new Lock(all[0]!, "key" satisfies Key, options);
const acquire: AcquireOptions = { timeout: 1, signal: AbortSignal.timeout(1), owner: null };
const hold: Hold | null = await lock.tryAcquire({ owner: "x" });
if (hold !== null) {
  const [fence, token, left]: [number | null, string, number] = [hold.fence, hold.token, hold.validFor];
  const reply: unknown = await hold.guard("SET", "a", 1, Buffer.from("x"));
  await hold.downgrade();
  await hold.upgrade({ timeout: 5 });
  await lock.adopt(await hold.forget());
  console.log(fence, token, left, reply, await fenced(all[1]!, "gate", fence, "GET", "a"));
}
const free: boolean = await lock.waitUntilFree({ timeout: 5 });
const several: Locks = lockAll(new Quorum(all), ["a", Buffer.from("b")], options);
const holds: Holds = await several.acquire(acquire);
const fences: readonly (number | null)[] = [...holds].map((one) => one.fence);
const result: string = await lockPath(all[0]!, "a/b").using((path) => \`\${path.validFor}\`);
const leader = new Leader(all[0]!, "job", options);
const term: number = await leader.run((term, signal) => (signal.aborted ? 0 : (term.fence ?? 0)));
for await (const holder of leader.observe()) console.log((holder satisfies Holder | undefined)?.label);
const operator = new Operator(all[0]!);
const seen: Inspection | null = await operator.inspect("a");
const waiters: Waiting[] = await operator.waiters("a", { count: 5 });
for await (const listed of operator.list({ match: "*" })) console.log((listed satisfies Listed).key);
const incidents: Incident[] = await operator.log({ key: "a" });
const counts: number[] = [await operator.cancel("a", "token"), await operator.break("a")];
const serverOptions: ServerOptions = { args: [] };
const server: Server = await Server.start(serverOptions);
const end: () => void = instrument();
try {
  await using _ = await lock.acquire();
} catch (why) {
  if (why instanceof ResourceLockedError) console.log(why.holder?.addr, why.key);
  if (why instanceof NotHeldError) end();
}
// @ts-expect-error an unknown option
new Lock(all[0]!, "key", { tll: 5 });
// @ts-expect-error an option of \`new Lock\`
await lock.acquire({ ttl: 5 });
export { counts, fences, free, incidents, result, seen, server, term, waiters };
`;

/** Returns a user's program that registers global providers of this package, and prints what they record. */
const otelProgram = (api) => `
import { channel } from "node:diagnostics_channel";
import { metrics, trace } from "${api}";
import { instrument } from "dlock/otel";

const span = { end() {} };
const tracer = { startSpan: (name) => (console.log(name), span) };
const counter = (name) => ({ add: () => console.log(name) });
const meter = { createCounter: counter, createHistogram: () => ({ record() {} }) };
trace.setGlobalTracerProvider({ getTracer: () => tracer });
metrics.setGlobalMeterProvider({ getMeter: () => meter });
instrument();
channel("dlock.acquired").publish({ key: "a", fence: 1, waited: 0 });
`;

const examples = ["README.md", "../../README.md", "../../docs/node.md"].flatMap((document) => [
  ...readFileSync(path.join(root, document), "utf8").matchAll(/```(js|ts)\n(.*?)```/gs),
]);

onEachServer(
  (env) => {
    test("the examples of the READMEs and of docs/node.md run", async () => {
      const printed = [];
      const testing = { DLOCK_SERVER: env.program, DLOCK_MODULE: process.env.DLOCK_TEST_MODULE };
      for (const [, , code] of examples) {
        const onTestServer = code.replaceAll("6379", String(env.server.port));
        const options = { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ES2022 };
        const { outputText } = ts.transpileModule(onTestServer, { compilerOptions: options });
        const program = path.join(root, "tests", `example-${process.pid}.mjs`);
        writeFileSync(program, outputText);
        const { NODE_TEST_CONTEXT: _, ...rest } = process.env;
        try {
          printed.push(
            execFileSync(process.execPath, [program], {
              encoding: "utf8",
              timeout: 30_000,
              env: { ...rest, ...testing },
            }),
          );
        } finally {
          rmSync(program);
        }
      }
      // Fences are Unix times in µs.
      const expected = [
        /^held, with the fence \d{16}\n$/,
        /^worked with a fence: true\n$/,
        /^$/,
        /^fences: 2\nno other client works above or below\n$/,
        /^leading true\n$/,
        /^majority \d{16}\n$/,
        // The README of the project.
        /^held, with the fence \d{16}\n$/,
        // docs/node.md.
        /^$/,
        /^$/,
        /connects to redis:\/\/127\.0\.0\.1:\d+/,
        /^billed with 1\n$/,
      ];
      assert.equal(printed.length, expected.length);
      for (const [at, pattern] of expected.entries()) assert.match(printed[at], pattern);
    });
  },
  { only: ["ioredis"], isParallel: true },
);

let folder;
before(() => {
  folder = mkdtempSync(path.join(tmpdir(), "dlock-node-"));
});
after(() => rmSync(folder, { recursive: true, force: true }));

/** Runs the TypeScript compiler with these further arguments. Fails with the output. */
function checkTypes(args) {
  const options = ["--noEmit", "--strict", "--target", "es2022", "--skipLibCheck"];
  const lib = ["--lib", "es2022,esnext.disposable", "--types", "node"];
  const typeRoots = ["--typeRoots", path.join(root, "node_modules/@types")];
  const tsc = path.join(root, "node_modules/typescript/bin/tsc");
  try {
    execFileSync(process.execPath, [tsc, ...options, ...lib, ...typeRoots, ...args], {
      encoding: "utf8",
      cwd: root,
    });
  } catch (why) {
    assert.fail(why.stdout);
  }
}

test("the README is a front door of at most 150 lines", () => {
  assert(readFileSync(path.join(root, "README.md"), "utf8").split("\n").length <= 151);
});

test("the examples, a user's program, and one for node-redlock type-check", () => {
  const codes = [...examples.map(([, , code]) => code), nodeRedlockProgram, userProgram];
  const files = codes.map((code, at) => {
    const file = path.join(root, "tests", `example-${process.pid}-${at}.mts`);
    writeFileSync(file, code);
    return file;
  });
  try {
    for (const more of [[], ["--exactOptionalPropertyTypes"]])
      checkTypes(["--module", "node16", ...more, ...files]);
  } finally {
    for (const file of files) rmSync(file);
  }
});

test("the package installs from a new clone, and contains its files", () => {
  const clone = path.join(folder, "clients/node");
  // A clone has the licences in its top folder only. The installation copies them into the package.
  const excluded = new Set(["node_modules", "dist", ...licences]);
  cpSync(root, clone, { recursive: true, filter: (file) => !excluded.has(path.basename(file)) });
  for (const licence of licences) cpSync(path.join(root, "../..", licence), path.join(folder, licence));
  const app = path.join(folder, "app");
  mkdirSync(app);
  writeFileSync(path.join(app, "package.json"), "{}");
  // The OpenTelemetry of the user's program may be older or newer than that of a developer of this package.
  const apis = ["@opentelemetry/api@1.9.1", "newer-api@npm:@opentelemetry/api@1.10.0"];
  const install = ["install", "--no-audit", "--no-fund", "--prefer-offline", clone, ...apis];
  execFileSync("npm", install, { cwd: app, stdio: "pipe" });
  for (const program of [
    "console.log(require('dlock').Lock.name)",
    "import('dlock').then((dlock) => console.log(dlock.Lock.name))",
  ]) {
    assert.equal(execFileSync(process.execPath, ["-e", program], { cwd: app, encoding: "utf8" }), "Lock\n");
  }
  for (const api of ["@opentelemetry/api", "newer-api"]) {
    const recorded = path.join(app, "recorded.mjs");
    writeFileSync(recorded, otelProgram(api));
    const output = execFileSync(process.execPath, [recorded], { cwd: app, encoding: "utf8" });
    assert.equal(output, "dlock.acquire\ndlock.acquired\n", api);
  }
  // With these settings, TypeScript reads `typesVersions` of package.json instead of `exports`.
  const node10 = ["--module", "commonjs", "--moduleResolution", "node10", "--esModuleInterop"];
  const program = path.join(app, "app.ts");
  const imports = 'import Redlock, { ExecutionError, Lock } from "dlock/redlock";';
  writeFileSync(program, `${imports}\nexport const all = [Redlock, ExecutionError, Lock];\n`);
  checkTypes([...node10, program]);
  const pack = ["pack", "--dry-run", "--json", "--ignore-scripts"];
  const [{ files }] = JSON.parse(
    execFileSync("npm", pack, { cwd: clone, stdio: ["ignore", "pipe", "pipe"] }),
  );
  const packed = new Set(files.map((file) => file.path));
  for (const file of ["README.md", "dist/index.js", ...licences])
    assert(packed.has(file), `${file} is packed`);
  // With `--skipLibCheck false`, the compiler checks the declaration files of the package, too.
  checkTypes(["--module", "esnext", "--moduleResolution", "bundler", "--skipLibCheck", "false", program]);
});
