// The options of the public functions: an unknown or mistyped one is an error that suggests the right one, also in
// plain JavaScript.

// Longest time that a command can name, ms. The servers allow less: `dlock.max-ttl`.
const LONGEST = 2 ** 32 - 1;

/** Number of edits (an insertion, a removal or an exchange of one character, or a swap of two neighbours) between two
 * words. */
function distance(one: string, other: string): number {
  let row = [...Array(other.length + 1).keys()];
  let before = row;
  for (let i = 1; i <= one.length; i++) {
    const next = [i];
    for (let j = 1; j <= other.length; j++) {
      const exchanged = row[j - 1]! + (one[i - 1] === other[j - 1] ? 0 : 1);
      const isSwap = i > 1 && j > 1 && one[i - 1] === other[j - 2] && one[i - 2] === other[j - 1];
      const swapped = isSwap ? before[j - 2]! + 1 : exchanged;
      next.push(Math.min(exchanged, swapped, row[j]! + 1, next[j - 1]! + 1));
    }
    before = row;
    row = next;
  }
  return row[other.length]!;
}

// What users of other lock libraries write, and the option of this package.
const elsewhere: Readonly<Record<string, string>> = {
  autoRenew: "renew",
  blockingTimeout: "timeout",
  duration: "ttl",
  expire: "ttl",
  lease: "ttl",
  leaseTime: "ttl",
  maxWait: "timeout",
  wait: "timeout",
  waitTimeout: "timeout",
};

/** Throws a `TypeError` unless `options` is an object whose names are all in `known`. `elsewhereKnown`: by name, the
 * function that takes this option instead. */
export function checkNames(
  options: object,
  known: readonly string[],
  elsewhereKnown: Readonly<Record<string, string>> = {},
): void {
  // Without this check, `acquire(500)` would ignore the number.
  if (typeof options !== "object" || options === null) {
    throw new TypeError(`options: ${options}; they must be an object, such as { ${known[0]}: .. }`);
  }
  for (const name of Object.keys(options)) {
    if (known.includes(name)) continue;
    const place = elsewhereKnown[name];
    if (place !== undefined) throw new TypeError(`${name}: it is an option of ${place}`);
    throw new TypeError(`${name}: there is no such option${suggestion(name, known, elsewhereKnown)}`);
  }
}

function suggestion(
  name: string,
  known: readonly string[],
  elsewhereKnown: Readonly<Record<string, string>>,
): string {
  const all = [...known, ...Object.keys(elsewhereKnown)];
  const plain = name.toLowerCase().replace(/[_-]/g, "");
  const near = all
    .map((option) => ({ option, edits: distance(plain, option.toLowerCase()) }))
    .sort((one, other) => one.edits - other.edits)[0];
  const camel = name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
  let found = near !== undefined && near.edits <= Math.max(1, plain.length / 3) ? near.option : undefined;
  found ??= elsewhere[camel];
  if (found === undefined || !all.includes(found)) return `; the options are ${known.join(", ")}`;
  const place = elsewhereKnown[found];
  return `: did you mean ${found}?${place === undefined ? "" : ` It is an option of ${place}`}`;
}

/** Throws a `RangeError` unless `ms` is a number. A string would be appended to the clock's time as text. */
export function checkTime(name: string, ms: number): void {
  if (typeof ms !== "number" || Number.isNaN(ms)) {
    throw new RangeError(`${name}: ${ms}; it must be a number of milliseconds`);
  }
}

/** Throws a `RangeError` unless `ms` is a whole number, 1 or more. */
export function checkWhole(name: string, ms: number): void {
  if (!Number.isSafeInteger(ms) || ms < 1) {
    throw new RangeError(`${name}: ${ms}; it must be a whole number of milliseconds, 1 or more`);
  }
}

/** Throws a `RangeError` unless `ms` is a whole number that a command can name, `least` or more. */
export function checkSent(name: string, ms: number, least: number): void {
  if (!Number.isSafeInteger(ms) || ms < least || ms > LONGEST) {
    const range = `from ${least} to ${LONGEST}`;
    throw new RangeError(`${name}: ${ms}; it must be a whole number of milliseconds, ${range}`);
  }
}

/** Throws a `RangeError` unless `ms` is the length of a lease. */
export function checkLease(name: string, ms: number): void {
  checkSent(name, ms, 1);
}

/** Throws a `TypeError` unless `value` is true, false or undefined. */
export function checkFlag(name: string, value: unknown): void {
  if (value !== undefined && typeof value !== "boolean") {
    throw new TypeError(`${name}: ${String(value)}; it must be true or false`);
  }
}

export function checkKey(key: unknown): void {
  if (typeof key !== "string" && !(key instanceof Uint8Array)) {
    throw new TypeError(`key: ${key}; it must be a string or a Buffer`);
  }
}

export function checkSignal(signal: AbortSignal | null | undefined): void {
  if (signal !== undefined && signal !== null && typeof signal.throwIfAborted !== "function") {
    throw new TypeError(`signal: ${signal}; it must be an AbortSignal`);
  }
}
