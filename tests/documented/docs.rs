//! COMMAND DOCS, COMMAND INFO, COMMAND GETKEYS and GETKEYSANDFLAGS.

use dlock_testkit::{Conn, Server, ServerKind, Value, each_server};

/// Name, arity, flags and syntax of each command. `_SET` is for replicas only, but has documentation too.
const COMMANDS: [(&str, i64, &str, &str); 17] = [
    (
        "DLOCK.ACQUIRE",
        -4,
        "write denyoom blocking skip_slowlog",
        "key token <ttl | MAX> [SHARED | PERMITS permits] [REENTRANT | DEPTH depth] [BLOCK milliseconds] \
         [QUEUE kept-milliseconds [NOTIFY channel message | SNOTIFY channel message]] [EPHEMERAL] [DELAY milliseconds] [LABEL text] [OWNER id]",
    ),
    ("DLOCK.RELEASE", -3, "write fast skip_slowlog", "key token [ALL | DEPTH depth] [DELAY milliseconds]"),
    ("DLOCK.EXTEND", 4, "write fast skip_slowlog", "key token <ttl | MAX>"),
    ("DLOCK.CONFIRM", 5, "write fast skip_slowlog", "key token fence <ttl | MAX>"),
    ("DLOCK.GUARD", -4, "write skip_slowlog movablekeys", "key token command [arg ...]"),
    ("DLOCK.FENCED", -4, "write skip_slowlog movablekeys", "gate fence command [arg ...]"),
    ("DLOCK.HOLDS", 3, "readonly fast skip_slowlog", "key token"),
    ("DLOCK.PTTL", -2, "readonly fast skip_slowlog", "key [token]"),
    ("DLOCK.INSPECT", -2, "readonly", "key [COUNT count]"),
    ("DLOCK.WAITERS", -2, "readonly", "key [COUNT count]"),
    ("DLOCK.LIST", -2, "readonly", "cursor [MATCH pattern] [COUNT count] [WAITED]"),
    ("DLOCK.LOG", -1, "readonly admin loading stale", "[COUNT count] [KEY key] [RESET]"),
    ("DLOCK.CANCEL", -3, "write fast skip_slowlog", "key <token | CLIENT client-id>"),
    ("DLOCK.BREAK", 2, "write", "key"),
    ("DLOCK.TOKEN", 1, "fast", ""),
    ("DLOCK.HELP", 1, "fast loading stale", ""),
    ("DLOCK._SET", 3, "write noscript skip_slowlog skip_monitor", "key change"),
];

/// The command by which the module checks whether the server would accept a write. Only on servers without
/// dry-run calls: Redis before 7.2.
const MAY: (&str, i64, &str, &str) = ("DLOCK._MAY", 2, "write denyoom skip_slowlog skip_monitor", "key");

/// Returns the flags of COMMAND INFO, except for the flags that every module command has.
fn flags(info: &Value) -> Vec<String> {
    let mut flags: Vec<String> = info.items()[2].items().iter().map(Value::text).collect();
    flags.retain(|flag| flag != "module");
    // Valkey 8.1 replaced SLOWLOG by COMMANDLOG.
    flags.iter_mut().filter(|flag| *flag == "skip_commandlog").for_each(|flag| *flag = "skip_slowlog".into());
    flags.sort();
    flags
}

/// Formats arguments as the table `COMMANDS` shows them.
fn syntax(arguments: &[Value]) -> Vec<String> {
    let format_argument = |argument: &Value| {
        let Value::Array(pairs) = argument else { panic!("{argument:?}") };
        let has = |name: &str| pairs.chunks(2).any(|pair| pair[0] == name);
        let kind = argument.field("type").text();
        let words = match kind.as_str() {
            "oneof" => syntax(argument.field("arguments").items()).join(" | "),
            "block" => syntax(argument.field("arguments").items()).join(" "),
            "pure-token" => argument.field("token").text(),
            _ if has("token") => {
                format!("{} {}", argument.field("token").text(), argument.field("name").text())
            }
            _ => argument.field("name").text(),
        };
        let flagged =
            |name: &str| has("flags") && argument.field("flags").items().iter().any(|flag| *flag == name);
        let words = if flagged("multiple") { format!("{words} ...") } else { words };
        match (flagged("optional"), kind.as_str()) {
            (true, _) => format!("[{words}]"),
            (false, "oneof") => format!("<{words}>"),
            _ => words,
        }
    };
    arguments.iter().map(format_argument).collect()
}

fn docs(conn: &mut Conn, name: &str) -> Value {
    let docs = conn.ok(&format!("COMMAND DOCS {name}"));
    assert_eq!(docs.items()[0], name);
    docs.items()[1].clone()
}

#[each_server]
fn command_docs_describe_every_command_and_its_arguments(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    let may = (!kind.is_valkey && !kind.is_at_least(7, 2)).then_some(MAY);
    let commands: Vec<_> = COMMANDS.into_iter().chain(may).collect();
    for &(name, arity, wanted_flags, arguments) in &commands {
        let docs = docs(&mut conn, name);
        assert!(docs.field("summary").text().len() > 8, "{docs:?}");
        assert!(docs.field("complexity").text().starts_with("O("), "{docs:?}");
        assert_eq!(docs.field("since"), &"0.1.0");
        assert_eq!(docs.field("module"), &"dlock");
        let shown = if arguments.is_empty() {
            String::new()
        } else {
            syntax(docs.field("arguments").items()).join(" ")
        };
        assert_eq!(shown, arguments, "{name}");

        let info = conn.ok(&format!("COMMAND INFO {name}"));
        let info = &info.items()[0];
        assert_eq!((info.items()[0].text().as_str(), &info.items()[1]), (name, &arity.into()));
        let mut wanted_flags: Vec<&str> = wanted_flags.split(' ').collect();
        wanted_flags.sort_unstable();
        assert_eq!(flags(info), wanted_flags, "{name}");
    }
    let loaded = conn.ok("COMMAND LIST FILTERBY MODULE dlock");
    assert_eq!(loaded.items().len(), commands.len());
}

#[each_server]
fn command_docs_and_help_show_the_same_syntax(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    let help = conn.ok("DLOCK.HELP");
    for pair in help.items()[1..].chunks(2) {
        let line = pair[0].text();
        let name = line.split(' ').next().unwrap_or_default();
        let docs = docs(&mut conn, name);
        assert_eq!(pair[1], format!("    {}.", docs.field("summary").text()));
        // HELP and COMMAND DOCS must contain the same words in capitals.
        let (_, _, _, syntax) = COMMANDS.iter().find(|row| row.0 == name).expect("a command of the table");
        let capitals = |text: &str| -> Vec<String> {
            let words = text.split(|c: char| !c.is_ascii_alphabetic());
            words
                .filter(|w| w.len() > 1 && w.chars().all(|c| c.is_ascii_uppercase()))
                .map(str::to_string)
                .collect()
        };
        assert_eq!(capitals(line.trim_start_matches(name)), capitals(syntax), "{name}");
    }
}

#[each_server]
fn the_server_knows_the_key_of_each_command_and_its_access(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    let (reads, writes) = (&["RO", "access"][..], &["RW", "access", "update"][..]);
    for (command, access) in [
        ("DLOCK.ACQUIRE my:key t 1000 BLOCK 0 LABEL other", writes),
        ("DLOCK.RELEASE my:key t", writes),
        ("DLOCK.EXTEND my:key t 1000", writes),
        ("DLOCK.CONFIRM my:key t 5 1000", writes),
        ("DLOCK.CANCEL my:key CLIENT 5", writes),
        ("DLOCK.BREAK my:key", writes),
        ("DLOCK._SET my:key x", writes),
        ("DLOCK.HOLDS my:key t", reads),
        ("DLOCK.PTTL my:key", reads),
        ("DLOCK.INSPECT my:key", reads),
        ("DLOCK.WAITERS my:key COUNT 5", reads),
    ] {
        assert_eq!(conn.ok(&format!("COMMAND GETKEYS {command}")), ["my:key"], "{command}");
        let shown = conn.ok(&format!("COMMAND GETKEYSANDFLAGS {command}"));
        let [key] = shown.items() else { panic!("{command}: {shown:?}") };
        assert_eq!(key.items()[0], "my:key");
        let flags: Vec<String> = key.items()[1].items().iter().map(Value::text).collect();
        assert_eq!(flags, access, "{command}");
    }
    for keyless in ["DLOCK.LIST 0", "DLOCK.LOG KEY k", "DLOCK.TOKEN", "DLOCK.HELP"] {
        // The text of the error differs between servers.
        assert!(conn.say(&format!("COMMAND GETKEYS {keyless}")).error().starts_with("ERR"));
    }
}

#[each_server]
fn guard_and_fenced_report_the_keys_of_the_guarded_command(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    // The access is that of the first key.
    for (command, access, keys) in [
        ("GUARD k t GET a", "RO access", &["k", "a"][..]),
        ("guard k t mset a 1 b 2", "RO access", &["k", "a", "b"]),
        ("GUARD k t EVAL return 2 a b x", "RO access", &["k", "a", "b"]),
        ("GUARD k t XREAD STREAMS s 0", "RO access", &["k", "s"]),
        ("GUARD k t ZUNION 9 a", "RO access", &["k"]),
        ("GUARD k t PING", "RO access", &["k"]),
        ("GUARD k t NOSUCH a", "RO access", &["k"]),
        ("FENCED g 5 GET a", "RW access update", &["g", "a"]),
        // Of a nested guard, only its own key (l, h) is reported, and no key of its command.
        ("GUARD k t DLOCK.GUARD l t GET a", "RO access", &["k", "l"]),
        ("FENCED g 5 DLOCK.FENCED h 6 DLOCK.GUARD k t GET a", "RW access update", &["g", "h"]),
    ] {
        let named = conn.ok(&format!("COMMAND GETKEYS DLOCK.{command}"));
        assert_eq!(named.items().iter().map(Value::text).collect::<Vec<_>>(), keys, "{command}");
        let shown = conn.ok(&format!("COMMAND GETKEYSANDFLAGS DLOCK.{command}"));
        let flags: Vec<_> = shown.items()[0].items()[1].items().iter().map(Value::text).collect();
        assert_eq!(flags.join(" "), access, "{command}");
    }
    // The module does not follow nested guards, so a chain of any length overflows no stack.
    let chain = ["DLOCK.GUARD", "k", "t"].repeat(100_000);
    let getkeys = [&["COMMAND", "GETKEYS"][..], &chain, &["PING"]].concat();
    assert_eq!(conn.call(&getkeys), ["k", "k"]);
}

#[each_server]
fn command_docs_are_maps_in_resp3(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    conn.hello3();
    let docs = conn.ok("COMMAND DOCS DLOCK.ACQUIRE");
    let block = &docs.field("DLOCK.ACQUIRE").field("arguments").items()[5];
    assert_eq!((block.field("token"), block.field("type")), (&"BLOCK".into(), &"integer".into()));
}
