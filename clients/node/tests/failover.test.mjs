// Holds and waits over the cluster client and the Sentinel client of each library: every capability, failovers, and slots
// that move.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { fenced, Leader, Lock, lockAll, lockPath, NotDurableError, NotHeldError, Operator } from "dlock";
import { Redis } from "ioredis";
import { times } from "../dist/waits.js";
import {
  clusterClient,
  hasSentinel,
  onEachServer,
  Port,
  Server,
  sentinelClient,
  TestCluster,
  until,
} from "./support.mjs";

/** On a slow machine, the sentinel may begin by itself, or find no good replica at first. */
const beginFailover = (sentinel, replica) =>
  until("a failover begins", async () => {
    const isMaster = async () => /role:master/.test(await replica.ask("INFO", "replication"));
    return sentinel.redis.call("SENTINEL", "FAILOVER", "main").then(() => true, isMaster);
  });

// A wait without an answer fails after 10 s. It asks a master that hangs soon, so that most of this time is left.
times.ask = 1000;

// One key of each node, in the order of the nodes.
const keys = ["b", "c", "a"];

async function playCapabilities(client) {
  const operator = new Operator(client);
  for (const key of keys) {
    const options = { label: "of a test", delay: 1, ephemeral: true, maxHold: 3_600_000, atLeast: 1 };
    const hold = await new Lock(client, key, options).acquire();
    const [holder] = (await operator.inspect(key)).holders;
    assert.deepEqual([holder.label, holder.ephemeral, holder.fence], ["of a test", true, hold.fence]);
    await assert.rejects(new Lock(client, key).acquire({ timeout: 5 }), /of a test/);
    const waiting = new Lock(client, key).acquire();
    await until("a client waits", async () => (await operator.waiters(key)).length > 0);
    assert.equal(await hold.guard("SET", `{${key}}:total`, 1), "OK");
    await hold.release();
    const next = await waiting;
    assert.equal(await fenced(client, `{${key}}:gate`, next.fence, "SET", `{${key}}:total`, 2), "OK");
    await next.downgrade();
    await next.upgrade();
    const adopted = await new Lock(client, key).adopt(await next.forget());
    assert.equal(await operator.break(key), 1);
    await assert.rejects(adopted.extend(), /an operator broke the lock/);
    assert.equal((await operator.log({ key, count: 1 }))[0].what, "broken");
    assert(await new Lock(client, key).waitUntilFree());
  }
  const holds = await lockAll(client, keys).acquire();
  const listed = [];
  for await (const { key } of operator.list()) listed.push(key);
  assert.deepEqual(listed.sort(), [...keys].sort());
  const incidents = await operator.log({ count: 100 });
  for (const key of keys) assert(incidents.some((incident) => incident.key === key));
  const seen = incidents.map(({ time }) => time);
  assert.deepEqual(
    seen,
    [...seen].sort((one, other) => other - one),
  );
  assert.equal((await operator.log({ count: 2 })).length, 2);
  await holds.release();
  await lockPath(client, "x/y").using((path) => assert.equal(path.holds[0].key, "{x}"));
  const term = await new Leader(client, "job").campaign();
  assert.equal((await new Leader(client, "job").current()).fence, term.fence);
  await term.release();
}

/** Waits until the replica of a server has all its writes: WAIT is about the writes of its own connection. */
async function untilReplicated(server, key) {
  await server.ask("SET", `{${key}}:last`, "1");
  assert.equal(await server.ask("WAIT", "1", "30000"), 1);
}

/** Plays `fault` while a client holds a lock and another one waits for it: the hold goes on, and the wait gets the
 * lock after it. */
async function playHandover(connect, key, fault) {
  const hold = await new Lock(await connect(), key).acquire();
  const waiting = new Lock(await connect(), key).acquire();
  const operator = new Operator(await connect());
  await until("a client waits", async () => (await operator.waiters(key)).length > 0);
  await fault();
  await until("the hold is extended", () =>
    hold.extend().then(
      () => true,
      (why) => {
        if (why instanceof NotHeldError) throw why;
        return false;
      },
    ),
  );
  assert(await hold.held());
  await hold.release();
  const next = await waiting;
  assert(next.fence > hold.fence);
  await next.release();
}

onEachServer((env) => {
  const closes = [];
  let cluster;

  async function connect() {
    const { client, close } = await clusterClient(env.clientLibrary, [cluster.nodes[1].port]);
    closes.push(close);
    return client;
  }

  before(async () => {
    cluster = await TestCluster.start(env.program, keys.length, ["--cluster-node-timeout", "2000"]);
  });
  after(async () => {
    await Promise.all(closes.map((close) => close()));
    await cluster?.stop();
  });

  test("every capability works over a cluster", async () => playCapabilities(await connect()));

  test("a hold and a wait go along with their slot", () =>
    playHandover(connect, keys[0], () => cluster.moveSlot(keys[0], cluster.nodes[0], cluster.nodes[2])));

  test("a hold and a wait go on after a planned failover, and after the death of the master", async () => {
    const master = cluster.nodes[1];
    const replica = await cluster.addReplica(master);
    const durable = { replicas: 1, timeout: 5000 };
    const becomesMaster = async (node) => {
      await until("the replica has taken over", async () =>
        /role:master/.test(await node.ask("INFO", "replication")),
      );
      await cluster.untilComplete();
    };
    const client = await connect();
    const replicated = await new Lock(client, keys[1], { durable }).acquire();
    await replicated.release();
    const elsewhere = new Lock(client, keys[2], { durable: { ...durable, timeout: 100 } });
    await assert.rejects(elsewhere.acquire(), NotDurableError);
    await playHandover(connect, keys[1], async () => {
      await replica.ask("CLUSTER", "FAILOVER");
      await becomesMaster(replica);
    });
    await until("the old master is in step", async () =>
      /role:slave[\s\S]*master_link_status:up/.test(await master.ask("INFO", "replication")),
    );
    await playHandover(connect, keys[1], async () => {
      await untilReplicated(replica, keys[1]);
      cluster.nodes.splice(cluster.nodes.indexOf(replica), 1);
      await replica.stop();
      await becomesMaster(master);
    });
  });

  test("a hold and a wait leave a master that hangs, once its replica has taken over", async () => {
    const master = cluster.nodes[2];
    const replica = await cluster.addReplica(master);
    // It takes over only when it is told to.
    await replica.ask("CONFIG", "SET", "cluster-replica-no-failover", "yes");
    const others = cluster.nodes.filter((node) => node !== master);
    const mapsRead = async () => {
      const counts = await Promise.all(others.map((node) => node.calls("cluster\\|slots")));
      return counts.reduce((sum, count) => sum + count);
    };
    await playHandover(connect, keys[2], async () => {
      await untilReplicated(master, keys[2]);
      master.freeze();
      const before = await mapsRead();
      await until(
        "a client has looked for another master, too early",
        async () => (await mapsRead()) > before,
      );
      await replica.ask("CLUSTER", "FAILOVER", "TAKEOVER");
      await until("the replica has taken over", async () =>
        /role:master/.test(await replica.ask("INFO", "replication")),
      );
    });
  });
});

onEachServer(
  (env) => {
    const servers = [];
    const closes = [];
    let sentinel;

    class Sentinel {
      async start(master) {
        this.claim = await Port.claim();
        this.folder = mkdtempSync(path.join(os.tmpdir(), "dlock-node-"));
        const config = path.join(this.folder, "sentinel.conf");
        writeFileSync(
          config,
          `port ${this.claim.number}\nbind 127.0.0.1\ndir ${this.folder}\n` +
            `sentinel monitor main 127.0.0.1 ${master.port} 1\n` +
            // The sentinel looks at a promoted replica once a second. It gives up a failover after this timeout.
            // On a busy machine, a sentinel with a short limit takes a master for dead.
            "sentinel down-after-milliseconds main 600000\nsentinel failover-timeout main 5000\n",
        );
        this.process = spawn(env.program, [config, "--sentinel"], { stdio: "ignore" });
        process.once("exit", () => this.process.kill("SIGKILL"));
        this.redis = new Redis(this.claim.number, "127.0.0.1");
        this.redis.on("error", () => {});
        await until("the sentinel knows the replica", async () => {
          const replicas = await this.redis.call("SENTINEL", "REPLICAS", "main");
          return replicas.length > 0 && /master-link-status,ok/.test(`${replicas[0]}`);
        });
        return this;
      }

      async master() {
        return Number((await this.redis.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"))[1]);
      }

      async stop() {
        this.redis.disconnect();
        this.process.kill("SIGKILL");
        await once(this.process, "exit");
        this.claim.close();
        rmSync(this.folder, { recursive: true, force: true });
      }
    }

    async function connect() {
      const { client, close } = await sentinelClient(env.clientLibrary, sentinel.claim.number);
      closes.push(close);
      return client;
    }

    before(async () => {
      servers.push(await Server.start(env.program), await Server.start(env.program));
      await servers[1].ask("REPLICAOF", "127.0.0.1", servers[0].port);
      sentinel = await new Sentinel().start(servers[0]);
    });
    after(async () => {
      await Promise.all(closes.map((close) => close()));
      await sentinel?.stop();
      await Promise.all(servers.map((server) => server.stop()));
    });

    test("every capability works over the master that a sentinel names", async () =>
      playCapabilities(await connect()));

    test("a hold and a wait go on at the master that the sentinel names, while the former one is still a master", async () => {
      const [former, master] = [await Server.start(env.program), await Server.start(env.program)];
      const own = [];
      servers.push(former, master);
      await master.ask("REPLICAOF", "127.0.0.1", former.port);
      const named = await new Sentinel().start(former);
      const connectTo = async () => {
        const { client, close } = await sentinelClient(env.clientLibrary, named.claim.number, {
          failoverDetector: true,
        });
        own.push(close);
        return client;
      };
      try {
        const hold = await new Lock(await connectTo(), "foo", { ttl: 8000 }).acquire();
        const waiting = new Lock(await connectTo(), "foo").acquire();
        const waits = async (server) => (await server.ask("DLOCK.WAITERS", "foo")).length > 0;
        await until("a client waits", () => waits(former));
        await untilReplicated(former, "foo");
        await until("the hold is renewed", async () => (await former.calls("dlock.extend")) > 0);
        // So the sentinel cannot demote it, which it would do about 10 s later.
        await former.ask("ACL", "SETUSER", "default", "-replicaof", "-slaveof");
        await beginFailover(named, master);
        await until("the sentinel names the replica", async () => (await named.master()) === master.port);
        await until("the hold is renewed there", async () => (await master.calls("dlock.extend")) > 0);
        await until("the client waits there", () => waits(master));
        await until(
          "it listens there",
          async () => (await master.ask("PUBSUB", "CHANNELS", "dlock:*")).length > 0,
        );
        assert(await hold.held());
        await hold.release();
        const next = await waiting;
        assert(next.fence > hold.fence);
        await next.release();
        assert.match(await former.ask("INFO", "replication"), /role:master/);
      } finally {
        await Promise.all(own.map((close) => close()));
        await named.stop();
      }
    });

    test("a hold and a wait go on after a failover by Sentinel, and after the death of the master", async () => {
      const [one, other] = servers;
      const follows = (server, port) =>
        until("the sentinel has the new master", async () => {
          const role = await server.ask("INFO", "replication");
          return (await sentinel.master()) === port && /role:master/.test(role);
        });
      await playHandover(connect, "foo", async () => {
        await untilReplicated(one, "foo");
        await beginFailover(sentinel, other);
        await follows(other, other.port);
        // Until then the old master accepts writes, which are lost. Sentinel demotes it about 10 s later.
        await until("the old master is in step", async () =>
          /role:slave[\s\S]*master_link_status:up/.test(await one.ask("INFO", "replication")),
        );
      });
      await playHandover(connect, "foo", async () => {
        await untilReplicated(other, "foo");
        servers.splice(servers.indexOf(other), 1);
        await other.stop();
        await sentinel.redis.call("SENTINEL", "SET", "main", "down-after-milliseconds", 1000);
        await follows(one, one.port);
      });
    });
  },
  { only: ["ioredis", "node-redis"].filter(hasSentinel) },
);
