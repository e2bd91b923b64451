// A client of a quorum, of one server, of a cluster or of sentinels, under faults, like contender.py: it locks, writes and releases
// repeatedly until its input ends.
//
// node contender.js ioredis|node-redis NUMBER LEASE URL.., with the lease in ms. In the output, the names of
// this client's holds begin with NUMBER. `crates/client/tests/chaos/foreign_clients.rs` reads the output.
"use strict";
const { setTimeout: sleep } = require("node:timers/promises");
const { Lock, LockError, Quorum } = require("../node/dist/index.js");

const [kind, number, lease, ...urls] = process.argv.slice(2);
// Timeout of each wait, ms.
const WAIT_TIMEOUT = Number(process.env.DLOCK_WAIT ?? 3000);
// A wait or a release may take this much longer, in ms.
const MARGIN = 10_000;
// DLOCK_STEADY=ms: the client holds each lock for this time, and neither pauses nor cancels a wait.
const steady = process.env.DLOCK_STEADY && Number(process.env.DLOCK_STEADY);
const RESOURCES = (process.env.DLOCK_RESOURCES ?? (steady ? "r" : "ledger desk till")).split(" ");
let stopping = false;
process.stdin.resume().on("end", () => (stopping = true));

// Time in microseconds, on the clock of Python's time.monotonic().
const now = () => Number(process.hrtime.bigint() / 1000n);
const happens = (odds) => !steady && Math.random() < odds;
const say = (...words) => process.stdout.write(`${words.join(" ")}\n`);

// The nodes that redis-cluster://HOST:PORT?node=HOST:PORT&node=.. names, or redis-sentinel://..
const nodes = (url) =>
  [...url.matchAll(/([\d.]+):(\d+)/g)].map(([, host, port]) => ({ host, port: Number(port) }));

const kinds = {
  ioredis(url) {
    const { Cluster, Redis } = require("../node/node_modules/ioredis");
    if (url.startsWith("redis-cluster:")) return new Cluster(nodes(url)).on("error", () => {});
    const sentinels = url.startsWith("redis-sentinel:") && nodes(url);
    return new Redis(sentinels ? { sentinels, name: "locks" } : url).on("error", () => {});
  },
  "node-redis"(url) {
    const redis = require("../node/node_modules/redis");
    const client = url.startsWith("redis-cluster:")
      ? redis.createCluster({ rootNodes: nodes(url).map(({ host, port }) => ({ url: `redis://${host}:${port}` })) })
      : url.startsWith("redis-sentinel:")
        ? redis.createSentinel({ name: "locks", sentinelRootNodes: nodes(url) })
        : redis.createClient({ url });
    // Not awaited, as a master can be down at the start.
    client
      .on("error", () => {})
      .connect()
      .catch(() => {});
    return client;
  },
};

// Errors of the library during an outage, and the replies of a server as ioredis and node-redis throw them.
const isExpected = (why) =>
  why instanceof LockError ||
  ["ReplyError", "SimpleError", "ClusterAllFailedError", "MaxRetriesPerRequestError"].includes(why.constructor.name);

function checkTime(what, begun) {
  const took = (now() - begun) / 1000;
  if (took > WAIT_TIMEOUT + MARGIN) say("overdue", what, Math.floor(took));
}

/** Acquires the lock once, and prints what happens. The client only prints each write: the test that reads the
 * output carries the write out. */
async function acquireOnce(servers, name) {
  const resource = RESOURCES[Math.floor(Math.random() * RESOURCES.length)];
  // A contender that will pause does not renew its lease.
  const pauses = happens(0.04);
  const lock = new Lock(servers, resource, { ttl: Number(lease), renew: !pauses, fenced: true });
  const controller = new AbortController();
  const cancelTimer = happens(0.05) ? setTimeout(() => controller.abort(), Math.random() * 30) : undefined;
  const asked = now();
  let hold;
  try {
    hold = await lock.acquire({ timeout: WAIT_TIMEOUT, signal: controller.signal });
  } catch (why) {
    if (!isExpected(why) && why.name !== "AbortError") throw why;
    return say("none");
  } finally {
    clearTimeout(cancelTimer);
    checkTime("acquire", asked);
  }
  const since = now();
  const releaseAt = since + 1000 * (steady || Math.random() * (happens(0.05) ? 1500 : 5));
  // The time until which this client relies on the hold.
  let validUntil = since;
  // Prints a write even if the hold is lost. Only the store can refuse a stale write, by its fence.
  const write = () => {
    // In this order: the process may be stopped between the two, and a lost hold is valid for 0 ms.
    const at = now();
    const { validFor } = hold;
    if (validFor > 0) validUntil = at + Math.floor(validFor * 1000);
    say("writes", resource, hold.fence, name);
  };
  say("holds");
  write();
  if (pauses) {
    // Blocks the event loop until after the end of the validity.
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, hold.validFor + Math.random() * 1000);
    write();
  }
  while (!hold.signal.aborted && now() < releaseAt) {
    await sleep(steady || Math.random() * 10);
    write();
  }
  if (hold.signal.aborted) say("lost");
  say("held", resource, hold.fence, name, asked, since, Math.min(validUntil, now()));
  const begun = now();
  await hold.release().catch((why) => {
    if (!isExpected(why)) throw why;
  });
  checkTime("release", begun);
}

async function main() {
  const clients = urls.map((url) => kinds[kind](url));
  const servers = clients.length > 1 ? new Quorum(clients) : clients[0];
  for (let tries = 0; !stopping; tries++) await acquireOnce(servers, `${number}:${tries}`);
  process.exit();
}

main();
