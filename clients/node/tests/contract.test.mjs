// Plays the contract through the library: the files of conformance/ that are marked `library`, and those of
// conformance/library. conformance/README.md describes the format, and this adapter ("Through a library").

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";
import { Lock, LockError, NoAnswerError, NotHeldError, ResourceLockedError } from "dlock";
import { onEachServer, until } from "./support.mjs";

const folder = new URL("../../../conformance/", import.meta.url);
const { Connection, Failure, Playing, STEP_KEYS, play } = createRequire(import.meta.url)(
  `${folder.pathname}play.js`,
);

const isJson = (name) => name.endsWith(".json");
const isMarked = (name) => {
  const { library } = JSON.parse(readFileSync(new URL(name, folder)));
  return library;
};
const marked = readdirSync(folder).filter((name) => isJson(name) && isMarked(name));
const libraryFiles = readdirSync(new URL("library", folder)).map((name) => `library/${name}`);
const files = [...marked, ...libraryFiles];

/** Takes the place of the player's `Connection`: carries out ACQUIRE, RELEASE, EXTEND and HOLDS through the
 * library, and sends all other commands over `direct`. In the files, the name of an owner takes the place of
 * each token, because the library makes its own tokens. */
class LibraryConnection {
  /** Whether the library renews the holds that the current step acquires. */
  renew = false;
  /** Promises of the replies, in the order of the commands. */
  #replies = [];
  #controller = new AbortController();

  constructor(playing) {
    this.playing = playing;
    this.direct = new Connection(playing.port);
  }

  send([command, key, ...rest]) {
    const methods = {
      "DLOCK.ACQUIRE": "acquire",
      "DLOCK.RELEASE": "release",
      "DLOCK.EXTEND": "extend",
      "DLOCK.HOLDS": "holds",
    };
    const method = methods[command];
    if (method) return this.#addReply(this[method](key, ...rest));
    // PTTL is sent without its token. In the files, this token is the name of an owner, which the server does
    // not know.
    const args = command === "DLOCK.PTTL" ? [] : rest;
    this.direct.send([command, ...(key ? [key] : []), ...args]);
    this.#addReply(this.direct.read());
  }

  /** Adds the promise of a reply. Errors of the library become the answers of the contract. */
  #addReply(reply) {
    this.#replies.push(
      reply.catch((why) => {
        if (why instanceof NotHeldError) return 0;
        if (why instanceof ResourceLockedError || why.name === "AbortError") return null;
        if (why instanceof NoAnswerError) return new Failure(`NOANSWER ${why.message}`);
        if (why instanceof LockError || /^[A-Z]+ /.test(why.message)) return new Failure(why.message);
        throw why;
      }),
    );
  }

  read() {
    return this.#replies.shift();
  }

  get hasReplies() {
    return this.#replies.length > 0;
  }

  /** Aborts the calls that have not ended. */
  close() {
    this.#controller.abort();
    this.direct.close();
  }

  async acquire(key, owner, ttl, ...options) {
    const { playing } = this;
    const present = playing.holds[[key, owner]];
    if (present && !present.signal.aborted) return present.fence;
    const lockOptions = { ttl: Number(ttl), renew: this.renew };
    let block;
    while (options.length) {
      const option = options.shift();
      if (option === "SHARED") lockOptions.shared = true;
      else if (option === "PERMITS") lockOptions.permits = Number(options.shift());
      else if (option === "BLOCK") block = Number(options.shift());
      else throw new Error(`the library has no ${option}`);
    }
    const lock = new Lock(playing.client, key, lockOptions);
    const { signal } = this.#controller;
    // BLOCK 0 has no timeout.
    const timeout = block === 0 ? undefined : block;
    const hold =
      block === undefined ? await lock.tryAcquire({ signal }) : await lock.acquire({ signal, timeout });
    if (hold === null) return null;
    // Claims a grant by message now. In the background, the claim could come after a step that ends the hold, and
    // then acquire the lock anew for a moment.
    if (block !== undefined) await hold.extend().catch((why) => assert(why instanceof NotHeldError, why));
    playing.holds[[key, owner]] = hold;
    playing.lost[owner] = new Promise((resolve) => hold.signal.addEventListener("abort", resolve));
    return hold.fence;
  }

  async release(key, owner) {
    const hold = this.playing.holds[[key, owner]];
    if (!hold) return 0;
    await hold.release();
    delete this.playing.holds[[key, owner]];
    return 1;
  }

  async extend(key, owner, ttl) {
    const hold = this.playing.holds[[key, owner]];
    await hold?.extend(Number(ttl));
    return hold ? 1 : 0;
  }

  async holds(key, owner) {
    return Number((await this.playing.holds[[key, owner]]?.held()) ?? false);
  }
}

/** Plays files through the library over a client behind a proxy. */
class LibraryPlaying extends Playing {
  /** The holds by key and owner. */
  holds = {};
  /** By owner: a promise that resolves once the library reports that the hold is lost. */
  lost = {};

  constructor(proxy, client) {
    // The player speaks RESP2 over its own connections.
    super(proxy.target, 2);
    Object.assign(this, { proxy, client });
  }

  async connect() {
    return new LibraryConnection(this);
  }

  /** Plays a step. `fault` sets switches of the proxy. `lose` is a text: the proxy drops the reply to the
   * next request that contains it. `lost` is the name of an owner: the step ends once the library has reported
   * that the owner's hold is lost. */
  async step({ fault = {}, lost: losingOwner, lose, renew = false, ...step }) {
    const { proxy } = this;
    this.connections[step.on ?? "a"] ??= await this.connect();
    const connection = this.connections[step.on ?? "a"];
    connection.renew = renew;
    for (const [name, value] of Object.entries(fault)) {
      if (name === "drop") proxy.drop();
      else proxy[name] = value;
    }
    const lostReplies = proxy.lost;
    if (lose) Object.assign(proxy, { match: lose, cutReplies: 1 });
    if (STEP_KEYS.some((key) => key in step)) await super.step(step);
    if (lose) {
      await until("a reply is lost", () => proxy.lost > lostReplies);
      // Discards the replies. The outcome of a step with `lose` is not compared.
      while (connection.hasReplies) await connection.read();
    }
    if (losingOwner) await this.lost[losingOwner];
  }

  fitsWord(word, wanted, found) {
    // The token of a hold or waiter is the library's own, and differs from the owner's name in the file.
    const { token, ...others } = wanted;
    return super.fitsWord(word, word === "map" ? others : wanted, found);
  }
}

onEachServer((env) => {
  for (const file of files) {
    test(file, async () => {
      const proxy = await env.proxy();
      const client = await env.client(proxy.url);
      await play(new LibraryPlaying(proxy, client), new URL(file, folder).pathname);
    });
  }

  test("the player reports a reply that differs from the contract", async () => {
    const proxy = await env.proxy();
    const playing = new LibraryPlaying(proxy, await env.client(proxy.url));
    await playing.step({ send: "DLOCK.ACQUIRE lock one 60000", answer: { fence: "f" } });
    await assert.rejects(playing.step({ send: "DLOCK.RELEASE lock one", answer: 0 }), /found 1/);
    for (const connection of Object.values(playing.connections)) connection.close();
  });
});
