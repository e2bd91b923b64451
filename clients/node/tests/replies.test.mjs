// A connection that breaks between a call of the client library and its write. node-redis 5 and later then write the
// command to the broken connection, and take the first reply on the next connection for the reply to this command.

import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { Lock, NoAnswerError } from "dlock";
import { onEachServer, until } from "./support.mjs";

onEachServer((env) => {
  /** Returns a client, and a function that breaks its connection. The function calls `act` at the moment when the
   * connection is broken, and the client does not know it yet. */
  async function clientWithBreak() {
    const proxy = await env.proxy();
    // Without a name: if a reply to CLIENT SETNAME is an error, node-redis begins anew.
    const client = await env.client(proxy.url, "");
    const hold = await new Lock(client, "warm").acquire();
    await hold.release();
    const breakAnd = async (act) => {
      const [socket] = proxy.sockets();
      const closed = once(socket, "close");
      let outcome;
      socket.once("close", () => {
        outcome = act();
      });
      socket.resetAndDestroy();
      await closed;
      return outcome;
    };
    return { client, breakAnd };
  }

  test("a request whose connection breaks before it is written gets no reply to another request", async () => {
    const { client, breakAnd } = await clientWithBreak();
    const lock = new Lock(client, "foo");
    const outcome = await breakAnd(() => lock.tryAcquire().catch((why) => why));
    // ioredis sends the request again over the next connection.
    if (outcome.fence === undefined) assert(outcome instanceof NoAnswerError, outcome);
    else await outcome.release();
    const hold = await until("the lock is acquired", () => lock.tryAcquire().catch(() => null));
    const reply = await env.server.ask("DLOCK.INSPECT", "foo");
    assert.equal(hold.fence, reply[reply.indexOf("fence") + 1]);
    await hold.release();
  });

  test("after a request of the user got another one's reply, no lock gets one", async () => {
    const { client, breakAnd } = await clientWithBreak();
    const send = (...command) => (client.call ? client.call(...command) : client.sendCommand(command));
    const reconnecting = new Promise((resolve) => client.once("reconnecting", resolve));
    await breakAnd(() => {
      send("INCR", "counter").catch(() => {});
    });
    await reconnecting;
    // node-redis writes the request now.
    await new Promise((resolve) => setImmediate(resolve));
    // These commands wait for the next connection. In node-redis, each one then gets the reply to the next one.
    for (let number = 0; number < 5; number++) send("SET", "number", String(number)).catch(() => {});
    const lock = new Lock(client, "foo");
    const hold = await until("the lock is acquired", () => lock.tryAcquire().catch(() => null));
    const reply = await env.server.ask("DLOCK.INSPECT", "foo");
    assert.equal(hold.fence, reply[reply.indexOf("fence") + 1]);
    assert(await hold.held());
    await hold.release();
  });
});
