// Tests how `tryAcquire` and `isLocked` read replies. No server runs: the tests supply the replies.

import assert from "node:assert/strict";
import { test } from "node:test";
import { now } from "../dist/clock.js";
import { Renewal, UnansweredLeases } from "../dist/renewal.js";
import { isLocked, requireDelay, tryAcquire } from "../dist/requests.js";
import { SingleHold } from "../dist/single.js";
import { Owe } from "../dist/steps.js";

const request = {
  key: "foo",
  name: "foo",
  lease: 1000,
  mode: [],
  terms: [],
  isEphemeral: false,
  hasDelay: false,
  owner: undefined,
  retryDelay: 10,
  atLeast: 0,
};
const WRONG_TYPE = new Error("WRONGTYPE Operation against a key holding the wrong kind of value");

/** Runs the generator `steps`, which yields commands, with these replies. Returns its result. */
function play(steps, ...replies) {
  let next = steps.next();
  for (const reply of replies) next = reply instanceof Error ? steps.throw(reply) : steps.next(reply);
  assert(next.done);
  return next.value;
}

const NO_INSPECT = new Error("NOPERM this user has no permissions to run the 'dlock.inspect' command");

// After WRONGTYPE, both functions ask for the value at the key and for its type. `get` and `type` are the replies
// to GET and TYPE; an empty list means that the command is not sent. `locked` is the result of `isLocked`.
for (const [what, get, type, locked] of [
  ["a string that is removed before GET arrives", [null], ["none"], false],
  ["a string that a lock replaces before GET arrives", [WRONG_TYPE], ["dlock-key"], true],
  ["a lock of node-redlock", ["0123456789abcdef0123456789abcdef"], [], true],
]) {
  test(`tryAcquire asks again unless the lock is foreign, and isLocked returns ${locked}, for ${what}`, () => {
    const acquiring = () => tryAcquire(request, "token", new UnansweredLeases({ connections: 1 }));
    const found = [WRONG_TYPE, ...get, ...type];
    const isForeign = type.length === 0;
    assert.equal(play(acquiring(), ...found, ...(isForeign ? [] : [7])), isForeign ? "foreign" : 7);
    if (!isForeign) assert.equal(play(acquiring(), ...found, ...found, ...found), "foreign");
    // Before TYPE, `isLocked` also sends INSPECT. If the user may not run INSPECT, it still sends TYPE.
    const inspect = type.map(() => NO_INSPECT);
    assert.equal(play(isLocked("foo", "foo"), WRONG_TYPE, ...get, ...inspect, ...type), locked);
  });
}

test("tryAcquire throws WRONGTYPE if the user may run neither GET nor TYPE", () => {
  const forbidden = new Error("NOPERM this user has no permissions to run the 'get' command");
  assert.throws(
    () =>
      play(
        tryAcquire(request, "token", new UnansweredLeases({ connections: 1 })),
        WRONG_TYPE,
        forbidden,
        forbidden,
      ),
    /^LockError: WRONGTYPE foo: the key holds something else/,
  );
});

test("atLeast is an error on a server without RELEASE .. DELAY, and is checked once for each connection", () => {
  const server = { address: "here:1", connections: 1 };
  const checked = () => requireDelay({ ...request, atLeast: 5 }, server);
  assert.throws(
    () => play(checked(), new Error("ERR syntax error"), new Error("ERR syntax error")),
    /^LockError: foo: atLeast needs a server with dlock 0.1.0 or later: here:1 is older/,
  );
  const steps = checked();
  const { value: probe } = steps.next();
  assert.deepEqual([probe[0], probe[1], ...probe.slice(3)], ["DLOCK.RELEASE", "foo", "ALL", "DELAY", "5"]);
  assert(steps.next(0).done);
  assert(checked().next().done);
  server.connections += 1;
  assert(!checked().next().done);
  assert(requireDelay(request, server).next().done);
});

test("a server that refuses the delay of atLeast is asked whether it knows DELAY, and again for a longer one", () => {
  const server = { address: "here:1", connections: 1 };
  const checked = (atLeast) => requireDelay({ ...request, atLeast }, server);
  const refusal = new Error("ERR DELAY ms must be an integer from 0 to dlock.max-ttl");
  play(checked(5), 0);
  assert.throws(() => play(checked(6), refusal, 0), /^LockError: foo: atLeast is 6 ms.*dlock.max-ttl/);
  play(checked(7), 0);
  play(checked(6));
});

test("an answer to ACQUIRE whose fence no hold has is no grant", () => {
  for (const fence of [0, -5, 2 ** 53]) {
    const steps = tryAcquire(request, "token", new UnansweredLeases({ connections: 1 }));
    assert.throws(() => play(steps, fence), /^LockError/);
  }
});

test("a claim with another fence than the message's ends the hold, and releases the token", () => {
  for (const fence of [7, 9, null]) {
    const server = { address: "here:1", connections: 1, isClosed: false };
    const renewal = new Renewal("foo", 1000, now() + 1000, true);
    const position = { shortLease: 1000, keep: 1000 };
    const hold = new SingleHold(
      request,
      server,
      "token",
      8,
      now() + 1000,
      now(),
      new UnansweredLeases(server),
      position,
    );
    const steps = hold.setLease(renewal, 1000);
    steps.next();
    assert(steps.next(fence).value instanceof Owe, `${fence}`);
    assert.equal(steps.next().value, false);
  }
});
