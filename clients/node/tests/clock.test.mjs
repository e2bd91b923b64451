// The clock of the client includes the time for which the machine was suspended.

import assert from "node:assert/strict";
import os from "node:os";
import { mock, test } from "node:test";
import { now, Timed, validity } from "../dist/clock.js";

const HOUR = 3_600_000;

test("the clock ignores changes of the wall clock, and includes suspends", () => {
  const [wall, uptime] = [Date.now, os.uptime];
  // What an operator has added to the wall clock, and how long the machine was suspended, ms.
  let [wallChange, suspended] = [0, 0];
  mock.method(Date, "now", () => wall() + wallChange + suspended);
  mock.method(os, "uptime", () => uptime() + suspended / 1000);
  try {
    const began = now();
    wallChange = HOUR;
    assert(now() - began < HOUR / 2);
    wallChange = -HOUR;
    assert(now() - began < HOUR / 2);
    suspended = HOUR;
    // `os.uptime` is rounded to 10 ms.
    assert(now() - began > HOUR - 100);
    wallChange = 0;
    assert(now() - began < HOUR * 1.5);
  } finally {
    mock.restoreAll();
  }
});

test("the validity is 1 % and 2 ms shorter than the lease", () => {
  assert.equal(validity(10_000), 9898);
});

test("a signal that takes no listener leaves no timer behind", () => {
  const setTimer = mock.method(globalThis, "setTimeout");
  try {
    assert.throws(() => new Timed(5, {}), TypeError);
    assert.equal(setTimer.mock.callCount(), 0);
  } finally {
    mock.restoreAll();
  }
});
