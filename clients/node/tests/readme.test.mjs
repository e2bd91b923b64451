// The examples of both READMEs run as they are, and the package installs from its folder.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import ts from "typescript";
import { onEach } from "./support.mjs";

const licences = ["LICENSE-APACHE", "LICENSE-MIT"];
const root = fileURLToPath(new URL("..", import.meta.url));
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

const examples = ["README.md", "../../README.md"].flatMap((document) => [
  ...readFileSync(path.join(root, document), "utf8").matchAll(/```(js|ts)\n(.*?)```/gs),
]);

onEach(
  (bench) => {
    test("the examples of the READMEs run", async () => {
      assert.equal(examples.length, 5);
      const printed = [];
      for (const [, , code] of examples) {
        const own = code.replaceAll("6379", String(bench.server.port));
        const options = { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ES2022 };
        const { outputText } = ts.transpileModule(own, { compilerOptions: options });
        const program = path.join(root, "tests", `example-${process.pid}.mjs`);
        writeFileSync(program, outputText);
        try {
          printed.push(execFileSync(process.execPath, [program], { encoding: "utf8", timeout: 30_000 }));
        } finally {
          rmSync(program);
        }
      }
      assert.match(printed[0], /^held, with the fence \d{16}\n$/);
      assert.equal(printed[1].replace(/\d+/, ""), printed[0].replace(/\d+/, ""));
      assert.match(printed[4], /^held, with the fence \d{16}\n$/);
      assert.match(printed[2], /^held by a majority, with the fence \d{16}\n$/);
    });
  },
  { only: ["ioredis"], isParallel: true },
);

let folder;
before(() => {
  folder = mkdtempSync(path.join(tmpdir(), "dlock-node-"));
});
after(() => rmSync(folder, { recursive: true, force: true }));

function checkTypes(more) {
  const options = ["--noEmit", "--strict", "--target", "es2022", "--skipLibCheck"];
  const lib = ["--lib", "es2022,esnext.disposable", "--types", "node"];
  const from = ["--typeRoots", path.join(root, "node_modules/@types")];
  const tsc = path.join(root, "node_modules/typescript/bin/tsc");
  try {
    const args = [tsc, ...options, ...lib, ...from, ...more];
    execFileSync(process.execPath, args, { encoding: "utf8", cwd: root });
  } catch (why) {
    assert.fail(why.stdout);
  }
}

test("the examples and a program for node-redlock type-check", () => {
  const codes = [...examples.map(([, , code]) => code), nodeRedlockProgram];
  const files = codes.map((code, at) => {
    const file = path.join(root, "tests", `example-${process.pid}-${at}.mts`);
    writeFileSync(file, code);
    return file;
  });
  try {
    checkTypes(["--module", "node16", ...files]);
  } finally {
    for (const file of files) rmSync(file);
  }
});

test("the package installs from a new clone, and contains its files", () => {
  const clone = path.join(folder, "clients/node");
  const excluded = new Set(["node_modules", "dist", ...licences]);
  cpSync(root, clone, { recursive: true, filter: (file) => !excluded.has(path.basename(file)) });
  for (const text of licences) cpSync(path.join(root, "../..", text), path.join(folder, text));
  const app = path.join(folder, "app");
  mkdirSync(app);
  writeFileSync(path.join(app, "package.json"), "{}");
  const install = ["install", "--no-audit", "--no-fund", "--prefer-offline", clone];
  execFileSync("npm", install, { cwd: app, stdio: "pipe" });
  for (const program of [
    "console.log(require('dlock').Lock.name)",
    "import('dlock').then((dlock) => console.log(dlock.Lock.name))",
  ]) {
    assert.equal(execFileSync(process.execPath, ["-e", program], { cwd: app, encoding: "utf8" }), "Lock\n");
  }
  // The usual settings for CommonJS, with which TypeScript does not read `exports`.
  const older = ["--module", "commonjs", "--moduleResolution", "node10", "--esModuleInterop"];
  const program = path.join(app, "app.ts");
  const imports = 'import Redlock, { ExecutionError, Lock } from "dlock/redlock";';
  writeFileSync(program, `${imports}\nexport const all = [Redlock, ExecutionError, Lock];\n`);
  checkTypes([...older, program]);
  const pack = ["pack", "--dry-run", "--json", "--ignore-scripts"];
  const [{ files }] = JSON.parse(
    execFileSync("npm", pack, { cwd: clone, stdio: ["ignore", "pipe", "pipe"] }),
  );
  const packed = new Set(files.map((file) => file.path));
  for (const file of ["README.md", "dist/index.js", ...licences])
    assert(packed.has(file), `${file} is packed`);
  // Checks the declarations themselves, as the settings for a bundler do.
  checkTypes(["--module", "esnext", "--moduleResolution", "bundler", "--skipLibCheck", "false", program]);
});
