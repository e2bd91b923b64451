// The Node client under test: clients.py says what it reads and answers.

import { createInterface } from "node:readline";
import { Lock, Quorum } from "dlock";
import { Redis } from "ioredis";

const TTL_MS = 30_000;
const clients = process.argv[2].split(",").map((address) => {
  const [host, port] = address.split(":");
  return new Redis({ host, port: Number(port) });
});
const site = clients.length > 1 ? new Quorum(clients) : clients[0];
const acquire = (key) => new Lock(site, key, { ttl: TTL_MS }).acquire();
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function cpu() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

let last = cpu();
function answer(values) {
  const now = cpu();
  console.log(JSON.stringify({ cpu_s: now - last, ...values }));
  last = now;
}

/** Returns the results of promises: those fulfilled, and what a verb answers about those rejected. */
async function settle(promises) {
  const settled = await Promise.allSettled(promises);
  const errors = settled.filter(({ status }) => status === "rejected");
  const found = settled.filter(({ status }) => status === "fulfilled").map(({ value }) => value);
  return [found, { failed: errors.length, why: String(errors[0]?.reason ?? "") }];
}

let started = [];
let held = [];
const verbs = {
  async start(count) {
    started = Array.from({ length: count }, (_, number) => acquire(`key:${number}`));
    for (const acquiring of started) acquiring.catch(() => {});
    return {};
  },
  async wait() {
    const [holds, outcome] = await settle(started);
    held = holds;
    return outcome;
  },
  async pause(seconds) {
    await sleep(seconds * 1000);
    return { lost: held.filter((hold) => hold.signal.aborted).length };
  },
  async release() {
    const [, outcome] = await settle(held.map((hold) => hold.release()));
    return outcome;
  },
  async contend(count, seconds) {
    const end = performance.now() + seconds * 1000;
    let grants = 0;
    const contend = async () => {
      while (performance.now() < end) {
        const hold = await acquire("contended");
        grants++;
        await hold.release();
      }
    };
    const [, outcome] = await settle(Array.from({ length: count }, contend));
    return { grants, ...outcome };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [verb, ...numbers] = line.split(" ");
  answer(await verbs[verb](...numbers.map(Number)));
}
for (const client of clients) client.disconnect();
