// One process of a fleet, like member.py: locks and releases one key repeatedly until its input ends, and
// prints its actions. `clients/python/tests/test_fleet.py` starts it.
//
// node member.js redlock|ioredis PORT KEY LEASE, with the lease in ms. `redlock` is node-redlock, and
// `ioredis` sends DLOCK.ACQUIRE without a library for locks.
"use strict";
const { randomBytes } = require("node:crypto");
const { setTimeout: sleep } = require("node:timers/promises");
const Redis = require("ioredis");
const { default: Redlock, ExecutionError } = require("redlock");

const [kind, port, key, lease] = [process.argv[2], +process.argv[3], process.argv[4], +process.argv[5]];
const client = new Redis(port, "127.0.0.1");
let stopping = false;
process.stdin.resume().on("end", () => (stopping = true));

// Time in seconds, on the clock of Python's time.monotonic().
const now = () => Number(process.hrtime.bigint()) / 1e9;
const between = (least, most) => least + Math.random() * (most - least);
const say = (what, ...moments) => process.stdout.write([what, ...moments].join(" ") + "\n");

const kinds = {
  redlock() {
    const redlock = new Redlock([client], { retryCount: 0 });
    redlock.on("error", () => {}); // each refusal also emits an error event
    let lock;
    return {
      async acquire() {
        for (;;) {
          const sent = now();
          try {
            lock = await redlock.acquire([key], lease);
            return sent;
          } catch (why) {
            if (!(why instanceof ExecutionError)) throw why;
            await sleep(between(10, 30));
          }
        }
      },
      async release() {
        await lock.release().catch((why) => {
          // An ExecutionError means that the lease ended before the release.
          if (!(why instanceof ExecutionError)) throw why;
        });
      },
    };
  },
  ioredis() {
    let token;
    return {
      async acquire() {
        token = randomBytes(20).toString("base64url");
        for (;;) {
          const sent = now();
          // QUEUE keeps the queue position from one call to the next.
          if (await client.call("DLOCK.ACQUIRE", key, token, lease, "QUEUE", 10 * lease)) return sent;
          await sleep(5);
        }
      },
      async release() {
        await client.call("DLOCK.RELEASE", key, token);
      },
    };
  },
};

async function work(locker) {
  while (!stopping) {
    say("waits", now());
    // The validity as every client of dlock computes it.
    const validUntil = (await locker.acquire()) + (lease - lease / 100 - 2) / 1000;
    say("holds", now(), validUntil);
    // Of ten holds, one outlasts its validity, one lasts for 80 ms, and the others are short.
    const draw = Math.random();
    if (draw < 0.1) await sleep(Math.max((validUntil - now()) * 1000 + 50, 0));
    else await sleep(draw < 0.2 ? 80 : between(1, 5));
    say("leaves", now());
    await locker.release();
    say("left", now());
    await sleep(between(20, 100));
  }
  client.disconnect();
}

work(kinds[kind]());
