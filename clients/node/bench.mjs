// Compares dlock with node-redlock on one server, in turns, in one run: node bench.mjs redis://127.0.0.1:6379
// [seconds]

import { fork } from "node:child_process";
import { once } from "node:events";
import { Lock } from "dlock";
import { Redis } from "ioredis";
import Redlock from "redlock";

// A contending client holds the lock for so long, and does something else for so long, in ms: too short for
// all to find it free, and long enough for most.
const HOLD = 1;
const ELSEWHERE = [5, 200, 400];
const PROCESSES = 8;
// The first ms do not count: everybody connects at the same moment.
const WARM = 2000;

const kinds = {
  // It gives up after 2 s by itself; this one polls until it has the lock, with its own pauses.
  "node-redlock": (client) => {
    const redlock = new Redlock([client], { retryCount: -1 });
    return (key) => redlock.acquire([key], 30_000);
  },
  dlock: (client) => (key) => new Lock(client, key, { renew: false }).acquire(),
  "dlock, renewed": (client) => (key) => new Lock(client, key).acquire(),
};

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const sorted = (numbers) => [...numbers].sort((a, b) => a - b);
const at = (numbers, part) => sorted(numbers)[Math.floor(numbers.length * part)];

/** Acquire and release by a single client: the median of the rounds' ratios. */
async function pairs(url, rounds, each) {
  const client = new Redis(url);
  const times = Object.fromEntries(Object.keys(kinds).map((kind) => [kind, []]));
  for (let round = 0; round < rounds; round++) {
    for (const [kind, make] of Object.entries(kinds)) {
      const acquire = make(client);
      const began = performance.now();
      for (let turn = 0; turn < each; turn++) await (await acquire(`bench:${kind}`)).release();
      times[kind].push((performance.now() - began) / each);
    }
  }
  client.disconnect();
  for (const [kind, found] of Object.entries(times)) {
    const ratio = at(
      found.map((time, round) => time / times["node-redlock"][round]),
      0.5,
    );
    console.log(
      `acquire + release, ${kind}: ${(at(found, 0.5) * 1000).toFixed(0)} us, ratio ${ratio.toFixed(2)}`,
    );
  }
}

/** The clients of one process: their waits, each client's for itself. Begins when it is told to. */
async function work(url, kind, clients, elsewhere, seconds) {
  const client = new Redis(url);
  const acquire = kinds[kind](client);
  await client.ping();
  process.send("ready");
  const [start] = await once(process, "message");
  const end = start + WARM + seconds * 1000;
  const one = async () => {
    const waits = [];
    await sleep(start - Date.now());
    for (let now = Date.now(); now < end; now = Date.now()) {
      const began = performance.now();
      const lock = await acquire("bench:contended");
      // A wait that outlasts the run counts too, or polling would hide those who starve.
      if (now > start + WARM) waits.push(performance.now() - began);
      await sleep(HOLD);
      await lock.release();
      await sleep(elsewhere);
    }
    return waits;
  };
  const found = await Promise.all(Array.from({ length: clients }, one));
  process.send(found, () => process.exit());
}

async function contend(url, clients, elsewhere, seconds) {
  console.log(`${clients} clients, each elsewhere for ${elsewhere} ms`);
  const tails = {};
  for (const kind of ["node-redlock", "dlock"]) {
    const args = [url, "work", kind, clients / PROCESSES, elsewhere, seconds].map(String);
    const processes = Array.from({ length: PROCESSES }, () => fork(new URL(import.meta.url), args));
    await Promise.all(processes.map((child) => once(child, "message")));
    const start = Date.now() + 200;
    for (const child of processes) child.send(start);
    const found = (await Promise.all(processes.map((child) => once(child, "message")))).flatMap(
      ([each]) => each,
    );
    const counts = found.map((waits) => waits.length);
    const waits = found.flat();
    const total = counts.reduce((a, b) => a + b);
    const jain = total ** 2 / (counts.length * counts.reduce((sum, count) => sum + count ** 2, 0));
    tails[kind] = at(waits, 0.99);
    const shown = [0.5, 0.99, 0.9999999].map((part) => at(waits, part).toFixed(1)).join(", ");
    console.log(
      `  ${kind}: ${(total / seconds).toFixed(0)} grants/s, wait p50, p99, max ${shown} ms, Jain ${jain.toFixed(3)}`,
    );
  }
  console.log(`  p99 of dlock is ${(tails.dlock / tails["node-redlock"]).toFixed(3)} of polling's`);
}

const [url, argument, ...rest] = process.argv.slice(2);
if (argument === "work") {
  await work(url, rest[0], ...rest.slice(1).map(Number));
} else {
  await pairs(url, 60, 200);
  for (const elsewhere of ELSEWHERE) {
    for (const clients of [8, 64]) await contend(url, clients, elsewhere, Number(argument ?? 10));
  }
}
