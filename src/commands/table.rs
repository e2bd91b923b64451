//! The commands as the server registers them: flags, ACL categories, keys, and the description of arguments.

use dlock_protocol::command::table as docs;

use super::{
    acquire, break_holds, cancel, confirm, effect, extend, guarded, help, listing, read_commands, release,
    token, write_probe,
};
use crate::ffi::commands::{Arg, Command, Entry, KeyUse, entry, run};
use crate::ffi::inner::run_carrier;

const KEY: Arg = Arg::Key("key");
const TOKEN: Arg = Arg::Text("token");
const TTL: Arg = Arg::OneOf("lease", &[Arg::Number("ttl"), Arg::Word("MAX")]);

const MODE: Arg = Arg::OneOf("mode", &[Arg::Word("SHARED"), Arg::WordNumber("PERMITS", "permits")]);
const REENTRY: Arg = Arg::OneOf("count", &[Arg::Word("REENTRANT"), Arg::WordNumber("DEPTH", "depth")]);
const QUEUE: Arg =
    Arg::Block("queue", &[Arg::WordNumber("QUEUE", "kept-milliseconds"), Arg::Optional(&NOTIFY)]);
const NOTIFY: Arg = Arg::OneOf(
    "notify",
    &[
        Arg::Block("plain", &[Arg::WordText("NOTIFY", "channel"), Arg::Text("message")]),
        Arg::Block("sharded", &[Arg::WordText("SNOTIFY", "channel"), Arg::Text("message")]),
    ],
);
const DELAY: Arg = Arg::WordNumber("DELAY", "milliseconds");
const RELEASE_COUNT: Arg = Arg::OneOf("counts", &[Arg::Word("ALL"), Arg::WordNumber("DEPTH", "depth")]);
const LIMIT: Arg = Arg::WordNumber("COUNT", "count");
const CANCEL_TARGET: Arg = Arg::OneOf("whom", &[TOKEN, Arg::WordNumber("CLIENT", "client-id")]);

/// Flags, ACL categories, and the use of the key.
type Access = (&'static str, &'static str, KeyUse);

// A token proves that its client is the owner, so commands with a token are kept out of SLOWLOG. The flag
// `no-slowlog` costs nothing; redacting only the token would copy all arguments of each call.
const WRITES: Access = ("write fast no-slowlog", "write fast dlock", KeyUse::Change);
const READS: Access = ("readonly fast no-slowlog", "read fast dlock", KeyUse::Read);
const SHOWS: Access = ("readonly", "read dlock", KeyUse::Read);

/// For GUARD and FENCED, which run another command. The keys of that command count as keys of GUARD or
/// FENCED, too. `key` is the use of the first key: the lock or the gate.
const fn guards(key: KeyUse) -> Access {
    ("write no-slowlog getkeys-api", "write dlock", key)
}

const fn row(
    doc: &docs::Doc,
    (flags, categories, key): Access,
    entry: Entry,
    arity: i32,
    args: &'static [Arg],
) -> Command {
    let (name, summary, complexity) = (doc.name, doc.summary, doc.complexity);
    Command { name, summary, complexity, flags, categories, entry, key, arity, args }
}

pub static COMMANDS: [Command; 17] = [
    row(
        &docs::ACQUIRE,
        ("write deny-oom blocking no-slowlog", "write blocking dlock", KeyUse::Change),
        entry!(run, acquire::acquire),
        -4,
        &[
            KEY,
            TOKEN,
            TTL,
            Arg::Optional(&MODE),
            Arg::Optional(&REENTRY),
            Arg::Optional(&Arg::WordNumber("BLOCK", "milliseconds")),
            Arg::Optional(&QUEUE),
            Arg::Optional(&Arg::Word("EPHEMERAL")),
            Arg::Optional(&DELAY),
            Arg::Optional(&Arg::WordText("LABEL", "text")),
            Arg::Optional(&Arg::WordText("OWNER", "id")),
        ],
    ),
    row(
        &docs::RELEASE,
        WRITES,
        entry!(run, release),
        -3,
        &[KEY, TOKEN, Arg::Optional(&RELEASE_COUNT), Arg::Optional(&DELAY)],
    ),
    row(&docs::EXTEND, WRITES, entry!(run, extend), 4, &[KEY, TOKEN, TTL]),
    row(&docs::CONFIRM, WRITES, entry!(run, confirm), 5, &[KEY, TOKEN, Arg::Number("fence"), TTL]),
    row(
        &docs::GUARD,
        guards(KeyUse::ReadAndMore),
        entry!(run_carrier, guarded::guard, KeyUse::ReadAndMore),
        -4,
        &[KEY, TOKEN, Arg::Text("command"), Arg::Several("arg")],
    ),
    row(
        &docs::FENCED,
        guards(KeyUse::ChangeAndMore),
        entry!(run_carrier, guarded::fenced, KeyUse::ChangeAndMore),
        -4,
        &[Arg::Key("gate"), Arg::Number("fence"), Arg::Text("command"), Arg::Several("arg")],
    ),
    row(&docs::HOLDS, READS, entry!(run, read_commands::holds), 3, &[KEY, TOKEN]),
    row(&docs::PTTL, READS, entry!(run, read_commands::pttl), -2, &[KEY, Arg::Optional(&TOKEN)]),
    row(&docs::INSPECT, SHOWS, entry!(run, read_commands::inspect), -2, &[KEY, Arg::Optional(&LIMIT)]),
    row(&docs::WAITERS, SHOWS, entry!(run, read_commands::waiters), -2, &[KEY, Arg::Optional(&LIMIT)]),
    row(&docs::CANCEL, WRITES, entry!(run, cancel), -3, &[KEY, CANCEL_TARGET]),
    // Like SCAN, LIST names no key that the server could check. It shows the keys that its user may read.
    row(
        &docs::LIST,
        ("readonly", "keyspace read dlock", KeyUse::None),
        entry!(run, listing::list),
        -2,
        &[
            Arg::Number("cursor"),
            Arg::Optional(&Arg::WordText("MATCH", "pattern")),
            Arg::Optional(&LIMIT),
            Arg::Optional(&Arg::Word("WAITED")),
        ],
    ),
    row(
        &docs::LOG,
        ("readonly admin allow-loading allow-stale", "admin dangerous dlock", KeyUse::None),
        entry!(run, listing::log),
        -1,
        &[
            Arg::Optional(&LIMIT),
            Arg::Optional(&Arg::WordText("KEY", "key")),
            Arg::Optional(&Arg::Word("RESET")),
        ],
    ),
    row(
        &docs::BREAK,
        ("write", "write dangerous dlock", KeyUse::Change),
        entry!(run, break_holds),
        2,
        &[KEY],
    ),
    row(&docs::TOKEN, ("fast", "fast dlock", KeyUse::None), entry!(run, token), 1, &[]),
    row(
        &docs::HELP,
        ("fast allow-loading allow-stale", "fast dlock", KeyUse::None),
        entry!(run, help),
        1,
        &[],
    ),
    row(
        &docs::SET,
        ("write deny-script no-slowlog no-monitor", "write admin dangerous dlock", KeyUse::Change),
        entry!(run, effect),
        3,
        &[KEY, Arg::Text("change")],
    ),
];

/// Registered only if the server has no dry runs: see [`crate::ffi::verdict`]. Because of the flags `write`
/// and `deny-oom`, the server accepts or refuses this command as it would an ACQUIRE.
pub static WRITE_PROBE: Command = row(
    &docs::MAY,
    ("write deny-oom no-slowlog no-monitor", "write dlock", KeyUse::Change),
    entry!(run, write_probe),
    2,
    &[KEY],
);
