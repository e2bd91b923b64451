// Compares dlock with node-redlock on one server: node bench.mjs redis://127.0.0.1:6379 [seconds]

import { fork } from "node:child_process";
import { once } from "node:events";
import { Lock } from "dlock";
import { Redis } from "ioredis";
import Redlock from "redlock";

// Loads: the number of clients, the ms of each hold, and the ms from a release until the client asks again.
// If clients ask again after 5 ms, the lock is in demand all the time, and no client of dlock finds it free.
// If they ask again later, most clients find it free. If the lock is taken, a client of dlock waits for the
// rest of the hold. A client of node-redlock waits longer: for the whole pause before its next poll.
const LOADS = [
  [8, 1, 5],
  [64, 1, 5],
  [64, 5, 5],
  [8, 1, 200],
  [64, 1, 200],
  [64, 1, 400],
  [64, 5, 1000],
];
const PROCESSES = 8;
// Each round runs node-redlock, then dlock.
const ROUNDS = 3;
// Length of the warm-up of a run, ms. Its waits do not count, because all clients begin at the same moment.
const WARM_UP = 2000;

const kinds = {
  // Polls without a limit, with the default pauses of node-redlock, which by default gives up after 2 s.
  "node-redlock": (client) => {
    const redlock = new Redlock([client], { retryCount: -1 });
    return (key) => redlock.acquire([key], 30_000);
  },
  dlock: (client) => (key) => new Lock(client, key, { renew: false }).acquire(),
  "dlock, renewed": (client) => (key) => new Lock(client, key).acquire(),
};

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const sorted = (numbers) => [...numbers].sort((a, b) => a - b);
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const quantile = (numbers, part) => sorted(numbers)[Math.floor(numbers.length * part)];

/** Measures acquire and release by a single client. Prints, for each library, the median time and the median
 * ratio to the time of node-redlock. */
async function pairs(url, rounds, pairsPerRound) {
  const client = new Redis(url);
  const times = Object.fromEntries(Object.keys(kinds).map((kind) => [kind, []]));
  for (let round = 0; round < rounds; round++) {
    for (const [kind, make] of Object.entries(kinds)) {
      const acquire = make(client);
      const began = performance.now();
      for (let pair = 0; pair < pairsPerRound; pair++) await (await acquire(`bench:${kind}`)).release();
      times[kind].push((performance.now() - began) / pairsPerRound);
    }
  }
  client.disconnect();
  for (const [kind, found] of Object.entries(times)) {
    const ratios = found.map((time, round) => time / times["node-redlock"][round]);
    const [time, ratio] = [quantile(found, 0.5), quantile(ratios, 0.5)];
    console.log(`acquire + release, ${kind}: ${(time * 1000).toFixed(0)} us, ratio ${ratio.toFixed(2)}`);
  }
}

/** Runs the clients of one process from the start time that the parent sends. Sends back, for each client, its
 * waits and the time for which it held the lock. */
async function work(url, kind, clients, hold, pause, seconds) {
  const client = new Redis(url);
  const acquire = kinds[kind](client);
  await client.ping();
  process.send("ready");
  const [start] = await once(process, "message");
  const end = start + WARM_UP + seconds * 1000;
  const contend = async () => {
    const waits = [];
    let held = 0;
    await sleep(start - Date.now());
    for (let now = Date.now(); now < end; now = Date.now()) {
      const began = performance.now();
      const lock = await acquire("bench:contended");
      const acquired = performance.now();
      await sleep(hold);
      // A wait that ends after `end` counts, too: otherwise the longest waits would be left out.
      if (now > start + WARM_UP) {
        waits.push(acquired - began);
        held += performance.now() - acquired;
      }
      await lock.release();
      await sleep(pause);
    }
    return { waits, held };
  };
  const found = await Promise.all(Array.from({ length: clients }, contend));
  process.send(found, () => process.exit());
}

/** Returns the waits of each client of one run, and the total time for which it held the lock. */
async function run(url, kind, clients, ...load) {
  const args = [url, "work", kind, clients / PROCESSES, ...load].map(String);
  const processes = Array.from({ length: PROCESSES }, () => fork(new URL(import.meta.url), args));
  const messages = () => Promise.all(processes.map((child) => once(child, "message")));
  await messages();
  const start = Date.now() + 200;
  for (const child of processes) child.send(start);
  return (await messages()).flatMap(([found]) => found);
}

/** Measures the waits of clients that contend for one lock. Prints the results of both libraries. */
async function compare(url, [clients, hold, pause], seconds) {
  console.log(`${clients} clients, each holds for ${hold} ms and asks again after ${pause} ms`);
  const runs = { "node-redlock": [], dlock: [] };
  for (let round = 0; round < ROUNDS; round++) {
    for (const kind of Object.keys(runs))
      runs[kind].push(await run(url, kind, clients, hold, pause, seconds));
  }
  const p99 = {};
  const meanHold = {};
  for (const [kind, found] of Object.entries(runs)) {
    const all = found.flat();
    const waits = all.flatMap((client) => client.waits);
    const held = sum(all.map((client) => client.held));
    p99[kind] = quantile(waits, 0.99);
    meanHold[kind] = held / waits.length;
    // The last of these quantiles is the longest wait.
    const shown = [0.5, 0.99, 0.9999999].map((part) => quantile(waits, part).toFixed(0)).join(", ");
    const jain = Math.min(...found.map(fairness));
    console.log(
      `  ${kind}: ${(waits.length / ROUNDS / seconds).toFixed(0)} grants/s, ` +
        `held ${((held / (ROUNDS * seconds * 1000)) * 100).toFixed(0)} % of the time, ` +
        `wait p50, p99, max ${shown} ms, lowest Jain's index of a round ${jain.toFixed(3)}`,
    );
  }
  // The wait for a lock that is fair and never free, if handoffs take no time. Between two holds of one client,
  // each other client holds the lock once. The client asks again only `pause` ms after its release.
  const fairWait = Math.max((clients - 1) * meanHold.dlock - pause, 0);
  const ratio = (ms) => (ms / p99["node-redlock"]).toFixed(3);
  console.log(
    `  p99 of dlock / p99 of node-redlock: ${ratio(p99.dlock)}; ` +
      `computed wait for a fair lock: ${fairWait.toFixed(0)} ms, ${ratio(fairWait)} of the p99 of node-redlock`,
  );
}

/** Returns Jain's index of the clients' numbers of grants: 1 if all are equal, less otherwise. */
function fairness(found) {
  const counts = found.map(({ waits }) => waits.length);
  return sum(counts) ** 2 / (counts.length * sum(counts.map((count) => count ** 2)));
}

const [url, argument, ...rest] = process.argv.slice(2);
if (argument === "work") {
  await work(url, rest[0], ...rest.slice(1).map(Number));
} else {
  await pairs(url, 60, 200);
  for (const load of LOADS) await compare(url, load, Number(argument ?? 10));
}
