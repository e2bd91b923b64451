// The clock includes suspends of the machine.

import assert from "node:assert/strict";
import os from "node:os";
import { mock, test } from "node:test";
import { now, validity } from "../dist/clock.js";

const HOUR = 3_600_000;

test("the clock ignores changes of the wall clock, and includes suspends", () => {
  const [wall, uptime] = [Date.now, os.uptime];
  let [set, slept] = [0, 0];
  mock.method(Date, "now", () => wall() + set + slept);
  mock.method(os, "uptime", () => uptime() + slept / 1000);
  try {
    const began = now();
    set = HOUR;
    assert(now() - began < HOUR / 2);
    set = -HOUR;
    assert(now() - began < HOUR / 2);
    slept = HOUR;
    // Uptimes are rounded to 10 ms.
    assert(now() - began > HOUR - 100);
    set = 0;
    assert(now() - began < HOUR * 1.5);
  } finally {
    mock.restoreAll();
  }
});

test("the validity is a hundredth and 2 ms shorter than the lease", () => {
  assert.equal(validity(10_000), 9898);
});
