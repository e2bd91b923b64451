//! A user with rights for `lock:*` and nothing else.

use dlock_testkit::{Conn, Server, ServerKind, Value, each_server};

/// `+@dlock -@dangerous` where the server has the category; by command name on Redis 7.0.
const WORKER: &str = "~lock:* +dlock.acquire +dlock.release +dlock.extend +dlock.confirm +dlock.holds +dlock.pttl \
                      +dlock.inspect +dlock.waiters +dlock.cancel +dlock.token +dlock.help";

fn user(server: &Server, rules: &str) -> Conn {
    assert_eq!(server.connect().ok(&format!("ACL SETUSER worker reset on >secret {rules}")), "OK");
    let mut conn = server.connect();
    assert_eq!(conn.ok("AUTH worker secret"), "OK");
    conn
}

#[track_caller]
fn assert_refused(conn: &mut Conn, command: &str) {
    match conn.say(command) {
        Value::Error(line) => assert!(line.contains("NOPERM"), "{command}: {line}"),
        answer => panic!("{command}: {answer:?}"),
    }
}

/// Builds a call of each command in the reply of COMMAND INFO, or of its subcommands. The calls have enough
/// arguments, because the server checks the arity before the rights.
fn calls(info: &Value) -> Vec<String> {
    let mut calls = Vec::new();
    for command in info.items() {
        let [name, arity, .., subcommands] = command.items() else { panic!("{command:?}") };
        if !subcommands.items().is_empty() {
            calls.extend(self::calls(subcommands));
            continue;
        }
        let name = name.text().to_lowercase();
        let mut words: Vec<&str> = name.split('|').collect();
        words.resize(words.len().max(arity.int().unsigned_abs() as usize), "lock:a");
        calls.push(words.join(" "));
    }
    calls
}

#[each_server]
fn a_lock_user_may_run_no_other_command(kind: &ServerKind) {
    // Commands that need no rights: log in, choose a protocol, reset, quit.
    const ANYBODY: [&str; 4] = ["auth", "hello", "reset", "quit"];
    let (server, mut admin) = Server::connected(kind);
    let mut conn = user(&server, WORKER);
    let mut refused = 0;
    for call in calls(&admin.ok("COMMAND")) {
        let name = call.split(' ').next().unwrap_or_default();
        let is_allowed = name.starts_with("dlock.") && name != "dlock.break" && name != "dlock._set";
        if !is_allowed && !ANYBODY.contains(&name) {
            assert_refused(&mut conn, &call);
            refused += 1;
        }
    }
    assert!(refused > 300, "{refused}");
    // Some of them with realistic arguments.
    for command in [
        "CONFIG GET dlock.max-ttl",
        "CONFIG SET dlock.restart-grace 0",
        "CONFIG SET dlock.fence-mark no",
        "CLIENT UNBLOCK 1",
        "CLIENT KILL ID 1",
        "ACL WHOAMI",
        "DEBUG SLEEP 0",
        "MODULE LIST",
        "INFO dlock",
        "MULTI",
        "EVAL return 0",
        "SUBSCRIBE __keyspace@0__:lock:a",
    ] {
        assert_refused(&mut conn, command);
    }
    assert_eq!(admin.ok("DBSIZE"), 0);
}

/// Every option of every command, with other key names wherever a text is allowed.
const TRICKS: [&str; 14] = [
    "DLOCK.ACQUIRE lock:a other 600000 LABEL other EPHEMERAL DELAY 100",
    "DLOCK.ACQUIRE lock:a other 600000 DEPTH 2 BLOCK 1",
    "DLOCK.ACQUIRE lock:s other 600000 SHARED REENTRANT LABEL lock:b",
    "DLOCK.ACQUIRE lock:p other 600000 PERMITS 2 LABEL SHARED",
    "DLOCK.EXTEND lock:a other 600000",
    "DLOCK.CONFIRM lock:a other 1 600000",
    "DLOCK.HOLDS lock:a other",
    "DLOCK.PTTL lock:a other",
    "DLOCK.INSPECT lock:a",
    "DLOCK.WAITERS lock:a COUNT 5",
    "DLOCK.CANCEL lock:a other",
    "DLOCK.CANCEL lock:a CLIENT 1",
    "DLOCK.RELEASE lock:a other DEPTH 1",
    "DLOCK.RELEASE lock:a other ALL",
];

#[each_server]
fn every_command_has_one_key_its_first_argument(kind: &ServerKind) {
    let (server, mut admin) = Server::connected(kind);
    let mut conn = user(&server, WORKER);
    for command in TRICKS.iter().chain(&["DLOCK.BREAK lock:a", "DLOCK._SET lock:a other"]) {
        let words: Vec<&str> = command.split(' ').collect();
        let asked = [&["COMMAND", "GETKEYS"], words.as_slice()].concat();
        assert_eq!(admin.call(&asked), [words[1]], "{command}");
    }
    for command in TRICKS {
        assert!(!matches!(conn.say(command), Value::Error(_)), "{command}");
    }
    let keys = admin.ok("KEYS *");
    assert_eq!(keys.items().len(), 2, "{keys:?}");
    for command in TRICKS {
        for (own, other) in [("lock:a", "other"), ("lock:a", "Lock:a"), ("lock:a", "lock"), ("lock:a", "")] {
            let words: Vec<&str> =
                command.split(' ').map(|word| if word.starts_with("lock:") { other } else { word }).collect();
            let refused = conn.call(&words);
            assert!(refused.error().starts_with("NOPERM"), "{command}: {own} as {other:?}: {refused:?}");
        }
    }
}

#[each_server]
fn a_user_cannot_reach_locks_and_waiters_of_other_keys(kind: &ServerKind) {
    let (server, mut admin) = Server::connected(kind);
    assert!(admin.ok("DLOCK.ACQUIRE other t 600000").int() > 0);
    let mut waiter = server.connect();
    let id = waiter.client_id();
    waiter.send(&["DLOCK.ACQUIRE", "other", "u", "600000", "BLOCK", "0"]);
    dlock_testkit::until("the client waits", || server.info("dlock_waiting") == "1");
    let mut conn = user(&server, WORKER);
    // CANCEL by client id or by token, on an allowed key.
    for command in [format!("DLOCK.CANCEL lock:a CLIENT {id}"), "DLOCK.CANCEL lock:a u".into()] {
        assert_eq!(conn.ok(&command), 0);
    }
    assert_eq!(conn.ok("DLOCK.RELEASE lock:a t"), 0);
    assert_eq!(conn.ok("DLOCK.HOLDS lock:a t"), 0);
    assert_eq!((server.info("dlock_waiting"), server.info("dlock_held")), ("1".into(), "1".into()));
    // BREAK needs a right of its own.
    assert!(conn.ok("DLOCK.ACQUIRE lock:a t 600000").int() > 0);
    assert_refused(&mut conn, "DLOCK.BREAK lock:a");
    let mut operator = user(&server, "~lock:* +dlock.break");
    assert_refused(&mut operator, "DLOCK.BREAK other");
    assert_eq!(operator.ok("DLOCK.BREAK lock:a"), 1);
    assert_eq!(admin.ok("DLOCK.RELEASE other t"), 1);
    assert!(waiter.read().int() > 0);
}
