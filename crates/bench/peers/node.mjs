// Measures dlock's lock and node-redlock, over ioredis; called by peers.py.

import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { Lock } from "dlock";
import { Redis } from "ioredis";
import Redlock from "redlock";

const RETRY_MS = 10;
const TTL_MS = 30_000;

const { values } = parseArgs({
  args: process.argv.slice(2).map((word) => word.replace(/^-(?=[a-z])/, "--")),
  options: { addr: { type: "string" }, seconds: { type: "string" }, loads: { type: "string" } },
});
const [host, port] = values.addr.split(":");
const admin = new Redis({ host, port: Number(port) });
const client = new Redis({ host, port: Number(port) });
const redlock = new Redlock([client], {
  retryCount: -1,
  retryDelay: RETRY_MS,
  retryJitter: 0,
  automaticExtensionThreshold: 500,
});
// The package does not export its package.json.
const { version } = JSON.parse(readFileSync(new URL("node_modules/redlock/package.json", import.meta.url)));

const libraries = {
  "node-redlock": (key) => redlock.acquire([key], TTL_MS),
  dlock: (key) => new Lock(client, key, { ttl: TTL_MS }).acquire(),
};

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function processed() {
  return Number(/total_commands_processed:(\d+)/.exec(await admin.info("stats"))[1]);
}

async function measure(library, acquire, load) {
  const [kind, count, held = "0ms"] = load.split("-");
  const [callers, hold] = [Number(count), Number.parseFloat(held)];
  await admin.flushall();
  for (let number = 0; number < callers; number++) await (await acquire(`warm:${number}`)).release();
  const before = await processed();
  const began = performance.now();
  const end = began + Number(values.seconds) * 1000;
  const call = async (_, number) => {
    const waits = [];
    const key = kind === "contend" ? "bench" : `bench:${number}`;
    for (let asked = performance.now(); asked < end; asked = performance.now()) {
      const lock = await acquire(key);
      waits.push(performance.now() - asked);
      if (hold) await sleep(hold);
      await lock.release();
    }
    return waits;
  };
  const waits = await Promise.all(Array.from({ length: callers }, call));
  const took = (performance.now() - began) / 1000;
  const commands = (await processed()) - before;
  const all = waits.flat().sort((a, b) => a - b);
  const grants = waits.map((caller) => caller.length);
  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
  const at = (share) => all[Math.floor(share * (all.length - 1))];
  console.log(
    JSON.stringify({
      library,
      version: library === "node-redlock" ? version : "",
      load,
      grants_per_s: all.length / took,
      p50_ms: at(0.5),
      p99_ms: at(0.99),
      max_ms: at(1),
      jain: sum(grants) ** 2 / callers / sum(grants.map((n) => n * n)),
      commands_per_grant: commands / all.length,
    }),
  );
}

for (const load of values.loads.split(",")) {
  for (const [library, acquire] of Object.entries(libraries)) await measure(library, acquire, load);
}
admin.disconnect();
client.disconnect();
