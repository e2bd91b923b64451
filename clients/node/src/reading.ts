// The replies of the commands that show locks, as types. The fields have the names of the wire: docs/commands.md
// describes them. Times are in ms.

/** A holder of a lock. */
export interface Holder {
  readonly token: string;
  readonly count: number;
  readonly fence: number;
  /** Rest of its lease. */
  readonly pttl: number;
  /** Time since the grant. */
  readonly held: number;
  readonly label: string;
  readonly ephemeral: boolean;
  /** Client id of its connection; 0: unknown. */
  readonly client: number;
  /** Address of its connection; empty: unknown. */
  readonly addr: string;
}

/** The state of a lock. */
export interface Inspection {
  readonly mode: "exclusive" | "shared" | "permits" | "string" | "free";
  /** Limit of the last grant; 0 in another mode. */
  readonly permits: number;
  /** The greatest fence of the holders; 0 without one. */
  readonly fence: number;
  /** At most 1000 of the holders. */
  readonly holders: readonly Holder[];
  /** Number of all holders. */
  readonly holdersCount: number;
  /** Length of the wait queue. */
  readonly waiters: number;
  /** Time for which the lock stays closed although it has no holder. */
  readonly delay: number;
}

/** A client in the wait queue. */
export interface Waiting {
  /** Client id of its connection; -1: it waits without one. */
  readonly client: number;
  readonly token: string;
  readonly mode: string;
  readonly waited: number;
  /** Rest of its wait; -1: no limit. */
  readonly left: number;
  readonly label: string;
}

/** A lock in a list of all locks. */
export interface Listed {
  readonly key: string;
  readonly mode: string;
  readonly holders: number;
  readonly waiters: number;
  /** Rest of the longest lease; -2: no holder. */
  readonly pttl: number;
  /** Time since the first grant. */
  readonly held: number;
  readonly delay: number;
  /** Of the first holder; empty or 0 without one. */
  readonly token: string;
  readonly fence: number;
  readonly label: string;
  readonly addr: string;
}

/** An entry of DLOCK.LOG. */
export interface Incident {
  readonly id: number;
  /** Unix time. */
  readonly time: number;
  /** What happened, such as "expired", "broken" or "deadlock". */
  readonly what: string;
  readonly db: number;
  readonly key: string;
  readonly label: string;
  /** The first bytes of the token. */
  readonly token: string;
  readonly client: number;
  readonly address: string;
  readonly fence: number;
  /** Length of the hold; undefined if the entry is about a wait. */
  readonly held: number | undefined;
  /** Length of the wait; undefined if the entry is about a hold. */
  readonly waited: number | undefined;
}

/** Returns a field of a map: in RESP2 an array of names and values, in RESP3 an object or a Map. */
export function field(map: unknown, name: string): unknown {
  if (map instanceof Map) return map.get(name);
  if (!Array.isArray(map)) return (map as Record<string, unknown> | undefined)?.[name];
  const at = map.findIndex((item, index) => index % 2 === 0 && String(item) === name);
  return at < 0 ? undefined : map[at + 1];
}

function list<T>(reply: unknown, read: (item: Fields) => T): T[] {
  return Array.isArray(reply) ? reply.map((item) => read(new Fields(item))) : [];
}

/** The fields of one map. Missing ones are 0 or empty. */
class Fields {
  constructor(private readonly map: unknown) {}

  has(name: string): boolean {
    return field(this.map, name) !== undefined;
  }

  number(name: string): number {
    return Number(field(this.map, name) ?? 0);
  }

  text(name: string): string {
    return String(field(this.map, name) ?? "");
  }

  list<T>(name: string, read: (item: Fields) => T): T[] {
    return list(field(this.map, name), read);
  }
}

function holder(item: Fields): Holder {
  return {
    token: item.text("token"),
    count: item.number("count"),
    fence: item.number("fence"),
    pttl: item.number("pttl"),
    held: item.number("held"),
    label: item.text("label"),
    ephemeral: ["1", "true"].includes(item.text("ephemeral")),
    client: item.number("client"),
    addr: item.text("addr"),
  };
}

/** Reads a reply to INSPECT; null if the lock has no holder, no waiter and no delay. */
export function inspection(reply: unknown): Inspection | null {
  if (reply === null || reply === undefined) return null;
  const all = new Fields(reply);
  return {
    mode: all.text("mode") as Inspection["mode"],
    permits: all.number("permits"),
    fence: all.number("fence"),
    holders: all.list("holders", holder),
    holdersCount: all.number("holders-count"),
    waiters: all.number("waiters"),
    delay: all.number("delay"),
  };
}

/** Reads a reply to WAITERS. */
export function waiting(reply: unknown): Waiting[] {
  return list(reply, (item) => ({
    client: item.number("client"),
    token: item.text("token"),
    mode: item.text("mode"),
    waited: item.number("waited"),
    left: item.number("left"),
    label: item.text("label"),
  }));
}

/** Reads a reply to LIST: the next cursor, and the locks. */
export function listed(reply: unknown): [cursor: string, locks: Listed[]] {
  const [cursor, locks] = Array.isArray(reply) ? reply : ["0", []];
  const all = list(locks, (item) => ({
    key: item.text("key"),
    mode: item.text("mode"),
    holders: item.number("holders"),
    waiters: item.number("waiters"),
    pttl: item.number("pttl"),
    held: item.number("held"),
    delay: item.number("delay"),
    token: item.text("token"),
    fence: item.number("fence"),
    label: item.text("label"),
    addr: item.text("addr"),
  }));
  return [String(cursor), all];
}

/** Reads a reply to LOG. */
export function incidents(reply: unknown): Incident[] {
  return list(reply, (item) => ({
    id: item.number("id"),
    time: item.number("time"),
    what: item.text("what"),
    db: item.number("db"),
    key: item.text("key"),
    label: item.text("label"),
    token: item.text("token"),
    client: item.number("client"),
    address: item.text("address"),
    fence: item.number("fence"),
    held: item.has("held") ? item.number("held") : undefined,
    waited: item.has("waited") ? item.number("waited") : undefined,
  }));
}

// How the entries of LOG that are the end of a hold read in an error.
const endings: Readonly<Record<string, string>> = {
  broken: "an operator broke the lock",
  expired: "its lease ended at the server",
  disconnected: "its connection was closed",
  vanished: "its key was deleted, evicted, flushed or overwritten",
};

/** Returns why a hold has ended, as a text for people, from the entries of LOG; undefined if they do not say it. */
export function endingOf(
  entries: readonly Incident[],
  token: string,
  fence: number | null,
): string | undefined {
  const isAbout = (entry: Incident) => {
    // An entry without a token is about all holds of the key: then it must be later than the fence, a time in µs of the
    // same server.
    if (entry.token === "") return fence === null || entry.time * 1000 >= fence - 1000;
    return token.startsWith(entry.token.replace(/\.\.\.$/, "")) && (fence === null || entry.fence === fence);
  };
  const entry = entries.find((entry) => entry.what in endings && isAbout(entry));
  return entry === undefined ? undefined : endings[entry.what];
}

/** Describes a holder to people, without its token. */
export function describe({ label, addr, held }: Holder): string {
  const by = label === "" ? "" : ` by "${label}"`;
  return `held${by}${addr === "" ? "" : ` at ${addr}`} for ${held} ms`;
}
