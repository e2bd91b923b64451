// Plays the files of this folder against a server with the module, in RESP2 and in RESP3. README.md describes the format
// of a file. Removes all keys of the server.
//
// node play.js PORT [FILE...]
"use strict";
const fs = require("node:fs");
const net = require("node:net");
const path = require("node:path");
const { setTimeout: sleep } = require("node:timers/promises");

const LIMIT = 30_000;
const STEP_KEYS = ["on", "send", "answer", "until", "lose", "mark", "after", "close", "why"];

class Failure extends Error {} // an error reply

/** Returns the value at `at` and the index of its end, or null while it is incomplete. */
function parse(bytes, at) {
  const end = bytes.indexOf("\r\n", at);
  if (end < 0) return null;
  const [kind, rest, next] = [bytes[at], bytes.slice(at + 1, end), end + 2];
  if (kind === "-") return [new Failure(rest), next];
  if (kind === "+") return [rest, next];
  if (kind === ":") return [Number(rest), next];
  if (kind === "_" || rest === "-1") return [null, next];
  if (kind === "$") {
    const last = next + Number(rest);
    return bytes.length < last + 2 ? null : [bytes.slice(next, last), last + 2];
  }
  const values = [];
  let place = next;
  for (let left = Number(rest) * (kind === "%" ? 2 : 1); left > 0; left--) {
    const found = parse(bytes, place);
    if (!found) return null;
    values.push(found[0]);
    place = found[1];
  }
  return [kind === "%" ? paired(values) : values, place];
}

const paired = (values) =>
  new Map(values.flatMap((_, at) => (at % 2 ? [] : [[values[at], values[at + 1]]])));

class Connection {
  constructor(port) {
    this.bytes = "";
    this.wake = () => {};
    this.socket = net.connect(port, "127.0.0.1");
    this.socket.setEncoding("latin1").on("data", (data) => {
      this.bytes += data;
      this.wake();
    });
  }

  send(words) {
    const parts = words.map((word) => `$${Buffer.byteLength(word)}\r\n${word}\r\n`);
    this.socket.write(`*${words.length}\r\n${parts.join("")}`);
  }

  async read() {
    const end = performance.now() + LIMIT;
    for (let found; performance.now() < end; ) {
      if ((found = parse(this.bytes, 0))) {
        this.bytes = this.bytes.slice(found[1]);
        return found[0];
      }
      await Promise.race([new Promise((resolve) => (this.wake = resolve)), sleep(100)]);
    }
    throw new Error("no reply");
  }

  async call(...words) {
    this.send(words);
    return this.read();
  }

  close() {
    this.socket.end();
  }
}

class Playing {
  constructor(port, protocol) {
    Object.assign(this, { port, protocol, connections: {}, names: {}, marks: {}, greatestFence: 0 });
  }

  async step(step) {
    const strange = Object.keys(step).filter((word) => !STEP_KEYS.includes(word));
    if (strange.length) throw new Error(`unknown words in a step: ${strange}`);
    const on = step.on ?? "a";
    const connection = (this.connections[on] ??= await this.connect());
    if (step.mark) this.marks[step.mark] = performance.now();
    const words = typeof step.send === "string" ? step.send.split(" ") : step.send;
    const command = words?.map((word) => this.filled(word));
    if (command) connection.send(command);
    if (step.lose) await connection.read();
    if ("answer" in step) this.expect(step.answer, await connection.read());
    if ("until" in step) {
      const end = performance.now() + LIMIT;
      for (let found; !this.fits(step.until, (found = await connection.read())); connection.send(command)) {
        if (performance.now() > end) this.expect(step.until, found); // throws
        await sleep(5);
      }
    }
    for (const [mark, least] of Object.entries(step.after ?? {})) {
      if (performance.now() - this.marks[mark] < least) throw new Error("too early");
    }
    if (step.close || step.lose) {
      connection.close();
      delete this.connections[on];
    }
  }

  async connect() {
    const connection = new Connection(this.port);
    if (this.protocol === 3) await connection.call("HELLO", "3");
    return connection;
  }

  filled(text) {
    return Object.entries(this.names).reduce((text, [name, value]) => text.replaceAll(`{${name}}`, value), text);
  }

  expect(wanted, found) {
    if (!this.fits(wanted, found)) throw new Error(`found ${found instanceof Failure ? found : JSON.stringify(found)}`);
  }

  fits(wanted, found) {
    if (typeof wanted === "string") return found === this.filled(wanted);
    if (Array.isArray(wanted)) {
      const same = Array.isArray(found) && wanted.length === found.length;
      return same && wanted.every((one, at) => this.fits(one, found[at]));
    }
    if (wanted === null || typeof wanted !== "object") return wanted === found;
    return Object.entries(wanted).every(([word, rest]) => this.fitsWord(word, rest, found));
  }

  fitsWord(word, wanted, found) {
    switch (word) {
      case "any":
        return true;
      case "error":
        return found instanceof Failure && found.message.split(" ")[0] === wanted;
      case "least":
        return Number.isInteger(found) && found >= wanted;
      case "most":
        return Number.isInteger(found) && found <= wanted;
      case "length":
        return typeof found === "string" && found.length === wanted;
      case "save":
        this.names[wanted] = found;
        return ["number", "string"].includes(typeof found);
      case "fence": {
        if (wanted in this.names) return found === this.names[wanted];
        const fresh = Number.isSafeInteger(found) && found > this.greatestFence;
        this.greatestFence = this.names[wanted] = found;
        return fresh;
      }
      case "map": {
        const map = this.protocol === 2 && Array.isArray(found) ? paired(found) : found;
        if (!(map instanceof Map) || (found instanceof Map) !== (this.protocol === 3)) return false;
        return Object.entries(wanted).every(([name, rest]) => this.fits(rest, map.get(name)));
      }
    }
    throw new Error(`${word} is no pattern`);
  }
}

/** Plays one file. Then removes all keys and restores the options. */
async function play(playing, file) {
  const { options = {}, steps } = JSON.parse(fs.readFileSync(file, "utf8"));
  const control = new Connection(playing.port);
  const before = [];
  for (const [name, value] of Object.entries(options)) {
    before.push([name, (await control.call("CONFIG", "GET", name))[1]]);
    await control.call("CONFIG", "SET", name, value);
  }
  for (const [at, step] of steps.entries()) {
    await playing.step(step).catch((why) => {
      const where = `${file} in RESP${playing.protocol}, step ${at + 1}: ${JSON.stringify(step)}`;
      throw new Error(`${where}: ${why.message}`, { cause: why });
    });
  }
  for (const connection of Object.values(playing.connections)) connection.close();
  // A flush grants a lock to the head of its queue, so it is repeated until no lock is left.
  do await control.call("FLUSHALL");
  while ((await control.call("DLOCK.LIST", "0"))[1].length);
  for (const [name, value] of before) await control.call("CONFIG", "SET", name, value);
  control.close();
}

async function main(port, ...files) {
  if (!files.length) {
    const all = fs.readdirSync(__dirname).filter((name) => name.endsWith(".json"));
    files = all.map((name) => path.join(__dirname, name));
  }
  for (const file of files) {
    const { protocols = [2, 3], promise } = JSON.parse(fs.readFileSync(file, "utf8"));
    for (const protocol of protocols) await play(new Playing(port, protocol), file);
    console.log("kept:", promise);
  }
}

module.exports = { Connection, Failure, Playing, STEP_KEYS, play };
if (require.main === module) main(...process.argv.slice(2));
