// Plays the contract through the library: the files of conformance/ that are marked `library`, and those of
// conformance/library. conformance/README.md describes the format.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";
import { Lock, LockError, NoAnswerError, NotHeldError, ResourceLockedError } from "dlock";
import { onEach, until } from "./support.mjs";

const folder = new URL("../../../conformance/", import.meta.url);
const { Connection, Failure, Playing, STEP, play } = createRequire(import.meta.url)(
  `${folder.pathname}play.js`,
);

const isJson = (name) => name.endsWith(".json");
const isMarked = (name) => {
  const { library } = JSON.parse(readFileSync(new URL(name, folder)));
  return library;
};
const marked = readdirSync(folder).filter((name) => isJson(name) && isMarked(name));
const special = readdirSync(new URL("library", folder)).map((name) => `library/${name}`);
const files = [...marked, ...special];

/** Replaces the connection of the player: calls the library for the commands of an owner, and sends all other
 * commands. */
class Caller {
  renew = false;
  #calls = [];
  #controller = new AbortController();

  constructor(playing) {
    this.playing = playing;
    this.direct = new Connection(playing.port);
  }

  send([command, key, ...rest]) {
    const [owner, ...words] = rest;
    const call = { "DLOCK.ACQUIRE": "acquire", "DLOCK.RELEASE": "release", "DLOCK.EXTEND": "extend" }[
      command
    ];
    if (call) return this.#note(this[call](key, owner, ...words));
    if (command === "DLOCK.HOLDS") return this.#note(this.holds(key, owner));
    // The library draws the token of the owner.
    this.direct.send(command === "DLOCK.PTTL" ? [command, key] : [command, ...(key ? [key] : []), ...rest]);
    this.#note(this.direct.read());
  }

  #note(call) {
    this.#calls.push(
      call.catch((why) => {
        if (why instanceof NotHeldError) return 0;
        if (why instanceof ResourceLockedError || why.name === "AbortError") return null;
        if (why instanceof NoAnswerError) return new Failure(`NOANSWER ${why.message}`);
        if (why instanceof LockError || /^[A-Z]+ /.test(why.message)) return new Failure(why.message);
        throw why;
      }),
    );
  }

  read() {
    return this.#calls.shift();
  }

  get pending() {
    return this.#calls.length > 0;
  }

  /** Aborts the calls that have not ended. */
  close() {
    this.#controller.abort();
    this.direct.close();
  }

  async acquire(key, owner, ttl, ...words) {
    const { playing } = this;
    const known = playing.holds[[key, owner]];
    if (known && !known.signal.aborted) return known.fence;
    const options = { ttl: Number(ttl), renew: this.renew };
    let block;
    while (words.length) {
      const word = words.shift();
      if (word === "SHARED") options.shared = true;
      else if (word === "PERMITS") options.permits = Number(words.shift());
      else if (word === "BLOCK") block = Number(words.shift());
      else throw new Error(`the library has no ${word}`);
    }
    const lock = new Lock(playing.client, key, options);
    const { signal } = this.#controller;
    const limit = block ? { signal, timeout: block } : { signal };
    const hold = block === undefined ? await lock.tryAcquire({ signal }) : await lock.acquire(limit);
    if (hold === null) return null;
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

/** Plays through the library over a client behind a proxy. */
class LibraryPlaying extends Playing {
  holds = {};
  lost = {};

  constructor(proxy, client) {
    super(proxy.target, 2);
    Object.assign(this, { proxy, client });
  }

  async connect() {
    return new Caller(this);
  }

  async step({ fault = {}, lost, lose, renew = false, ...step }) {
    const { proxy } = this;
    this.connections[step.on ?? "a"] ??= await this.connect();
    const caller = this.connections[step.on ?? "a"];
    caller.renew = renew;
    for (const [name, value] of Object.entries(fault)) {
      if (name === "drop") proxy.drop();
      else proxy[name] = value;
    }
    const before = proxy.lost;
    if (lose) Object.assign(proxy, { match: lose, cutReplies: 1 });
    if (STEP.some((word) => word in step)) await super.step(step);
    if (lose) {
      await until("a reply is lost", () => proxy.lost > before);
      // The result of the library does not matter here.
      while (caller.pending) await caller.read();
    }
    if (lost) await this.lost[lost];
  }

  fitsWord(word, wanted, found) {
    // The library draws the tokens.
    const { token, ...others } = wanted;
    return super.fitsWord(word, word === "map" ? others : wanted, found);
  }
}

onEach((bench) => {
  for (const file of files) {
    test(file, async () => {
      const proxy = await bench.proxy();
      const client = await bench.client(proxy.url);
      await play(new LibraryPlaying(proxy, client), new URL(file, folder).pathname);
    });
  }

  test("the player reports a reply that differs from the contract", async () => {
    const proxy = await bench.proxy();
    const playing = new LibraryPlaying(proxy, await bench.client(proxy.url));
    await playing.step({ send: "DLOCK.ACQUIRE lock one 60000", answer: { fence: "f" } });
    await assert.rejects(playing.step({ send: "DLOCK.RELEASE lock one", answer: 0 }), /found 1/);
    for (const caller of Object.values(playing.connections)) caller.close();
  });
});
