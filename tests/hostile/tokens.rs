//! Places that show tokens and places that must not. Any client that sends a holder's token counts as the
//! holder. So INSPECT and WAITERS show only the first 8 bytes of tokens to a user that may not write the key.

use dlock_testkit::queue::{granted, waiter};
use dlock_testkit::{Conn, Server, ServerKind, Value, each_server};

const SECRET: &str = "5ecret5ecret5ecret";

/// Each command with a token among its arguments.
const COMMANDS: [&str; 9] = [
    "DLOCK.ACQUIRE k {} 600000 DEPTH 2",
    "DLOCK.HOLDS k {}",
    "DLOCK.PTTL k {}",
    "DLOCK.EXTEND k {} 600000",
    "DLOCK.CONFIRM k {} 1 600000",
    "DLOCK.CANCEL k {}",
    "DLOCK.RELEASE k {}",
    "DLOCK.RELEASE k {} ALL",
    "DLOCK.ACQUIRE k {} 600000 LABEL host",
];

fn with_token(command: &str) -> String {
    command.replace("{}", SECRET)
}

#[each_server]
fn monitor_shows_tokens_and_no_effects(kind: &ServerKind) {
    let (server, replica) = Server::with_replica(kind);
    let (mut monitor, mut on_replica) = (server.connect(), replica.connect());
    assert!(monitor.ok("MONITOR") == "OK" && on_replica.ok("MONITOR") == "OK");
    let mut conn = server.connect();
    for command in COMMANDS {
        conn.ok(&with_token(command));
        let line = monitor.read().text();
        assert!(line.contains(SECRET), "MONITOR shows tokens, as docs/security.md says: {line}");
    }
    // The replica gets effects: `DLOCK._SET` commands with the new state of the lock, and so with its tokens.
    // MONITOR on the replica must not show any effect.
    assert_eq!(conn.ok("SET mark x"), "OK");
    let mut seen = Vec::new();
    while !seen.iter().any(|line: &String| line.contains("\"mark\"")) {
        seen.push(on_replica.read().text());
    }
    assert!(!seen.iter().any(|line| line.to_lowercase().contains("dlock._set")), "{seen:?}");
    replica.wait_in_sync(&server);
    assert_eq!(
        replica.connect().ok(&with_token("DLOCK.HOLDS k {}")),
        1,
        "the replica has applied the effect"
    );
}

#[each_server]
fn acl_log_shows_no_tokens(kind: &ServerKind) {
    let (server, mut admin) = Server::connected(kind);
    let mut conn = server.user("~lock:* +dlock.acquire");
    for command in COMMANDS {
        assert!(conn.say(&with_token(command)).error().starts_with("NOPERM"));
    }
    let logged = format!("{:?}", admin.ok("ACL LOG")).to_lowercase();
    assert!(logged.contains("dlock.release") && !logged.contains(SECRET), "{logged}");
}

#[each_server]
fn info_client_list_and_logs_show_no_tokens(kind: &ServerKind) {
    let logs_all = ["slowlog-log-slower-than 0", "slowlog-max-len 1000", "loglevel debug"];
    let server = Server::options(kind).confs(&logs_all).conf("latency-monitor-threshold 1").start();
    let mut admin = server.connect();
    // Valkey 8.1 and later also log large requests and replies.
    let has_commandlog = !matches!(admin.say("CONFIG SET commandlog-request-larger-than 0"), Value::Error(_));
    if has_commandlog {
        admin.ok("CONFIG SET commandlog-reply-larger-than 0");
    }
    let mut conn = server.connect();
    let refused = [
        "DLOCK.ACQUIRE k {} 600000 {}",
        "DLOCK.ACQUIRE k {} {}",
        "DLOCK.RELEASE k {} {}",
        // The fence is too far ahead of the server's clock.
        "DLOCK.CONFIRM k {} 9007199254740991 600000",
        "DLOCK.CANCEL k CLIENT {}",
        "DLOCK._SET k {}",
    ];
    for command in ["MULTI"].iter().chain(&COMMANDS).chain(&["EXEC"]).chain(&COMMANDS).chain(&refused) {
        if let Value::Error(line) = conn.say(&with_token(command)) {
            assert!(refused.contains(command) && !line.contains(SECRET), "{line}");
        }
    }
    let mut waiter = waiter(&server, &format!("DLOCK.ACQUIRE k other{SECRET} 600000 BLOCK 0"));
    let clients = admin.ok("CLIENT LIST").text();
    assert!(clients.to_lowercase().contains("cmd=dlock.acquire") && !clients.contains(SECRET), "{clients}");
    let mut shown = vec![admin.ok("SLOWLOG GET 1000")];
    if has_commandlog {
        let logs = ["slow", "large-request", "large-reply"];
        shown.extend(logs.map(|log| admin.ok(&format!("COMMANDLOG GET 1000 {log}"))));
    }
    for log in shown {
        let log = format!("{log:?}");
        // No log is empty: each has entries of commands without a token.
        assert!(log.contains("SLOWLOG") || log.contains("CONFIG") || log.contains("CLIENT"), "{log}");
        assert!(!log.contains(SECRET), "{log}");
    }
    let info = admin.ok("INFO everything").text();
    assert!(info.contains("cmdstat_DLOCK.ACQUIRE") && !info.contains(SECRET), "{info}");
    let latency = format!("{:?} {:?}", admin.ok("LATENCY LATEST"), admin.ok("LATENCY HISTOGRAM"));
    assert!(!latency.contains(SECRET), "{latency}");
    let log = server.log();
    assert!(log.contains("dlock") && !log.contains(SECRET), "{log}");
    assert_eq!(admin.ok(&with_token("DLOCK.RELEASE k {} ALL")), 1);
    granted(&mut waiter);
}

/// The module logs why it refuses the bytes of a RESTORE, but not the bytes themselves.
#[each_server]
fn the_log_of_refused_bytes_shows_no_tokens(kind: &ServerKind) {
    let server = Server::options(kind).conf("rdbcompression no").conf("loglevel debug").start();
    let mut conn = server.connect();
    assert_eq!(conn.ok("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1"), "OK");
    conn.ok(&with_token("DLOCK.ACQUIRE k {} 600000"));
    let payload = conn.ok("DUMP k").bytes().to_vec();
    let at = payload.windows(SECRET.len()).position(|bytes| bytes == SECRET.as_bytes()).expect("the token");
    let mut refused = 0;
    for byte in 0..at {
        let mut damaged = payload.clone();
        damaged[byte] ^= 0x55;
        let answer = conn.call(&[&b"RESTORE"[..], b"other", b"0", &damaged, b"REPLACE"]);
        refused += usize::from(matches!(answer, Value::Error(_)));
    }
    assert!(refused > 10, "only {refused} payloads were refused");
    let log = server.log();
    assert!(log.contains("refused a stored lock") && !log.contains(SECRET), "{log}");
}

const OWNER: &str = "0wner-of-the-lock-with-a-secret";
const SHOWN: &str = "0wner-of...";

/// If the error showed a whole token, the user that gets the error could release another user's lock.
#[each_server]
fn a_deadlock_error_shows_no_token(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.user("~a:* +dlock.acquire +dlock.release");
    assert!(server.connect().ok(&format!("DLOCK.ACQUIRE a:1 {OWNER} 600000")).int() > 0);
    assert!(conn.ok("DLOCK.ACQUIRE a:2 mine 600000").int() > 0);
    let _waiter = waiter(&server, &format!("DLOCK.ACQUIRE a:2 {OWNER} 600000 BLOCK 0"));
    let refused = conn.say("DLOCK.ACQUIRE a:1 mine 600000 BLOCK 0");
    assert_eq!(refused.error(), format!("DEADLOCK mine -> {SHOWN} -> mine"));
    // Two sharers that both ask for an upgrade.
    assert!(server.connect().ok(&format!("DLOCK.ACQUIRE a:3 {OWNER} 600000 SHARED")).int() > 0);
    assert!(conn.ok("DLOCK.ACQUIRE a:3 mine 600000 SHARED").int() > 0);
    let _waiter = waiter(&server, &format!("DLOCK.ACQUIRE a:3 {OWNER} 600000 BLOCK 0"));
    assert_eq!(
        conn.say("DLOCK.ACQUIRE a:3 mine 600000").error(),
        format!("DEADLOCK mine -> {SHOWN} -> mine")
    );
}

/// Returns the replies of INSPECT and WAITERS for `lock:a`. Sends both alone, from scripts and in a
/// transaction.
fn inspected(conn: &mut Conn) -> Vec<String> {
    let reads = ["DLOCK.INSPECT", "DLOCK.WAITERS"];
    let script = "return redis.call(ARGV[1], KEYS[1])";
    let mut replies = Vec::from(reads.map(|read| conn.call(&[read, "lock:a"])));
    replies.extend(reads.map(|read| conn.call(&["EVAL_RO", script, "1", "lock:a", read])));
    conn.ok("MULTI");
    for read in reads {
        assert_eq!(conn.call(&[read, "lock:a"]), "QUEUED");
    }
    replies.push(conn.ok("EXEC"));
    replies.iter().map(|reply| format!("{reply:?}")).collect()
}

#[each_server]
fn a_reader_sees_only_the_first_characters_of_tokens(kind: &ServerKind) {
    let (server, mut admin) = Server::connected(kind);
    assert!(admin.ok(&format!("DLOCK.ACQUIRE lock:a {OWNER} 600000")).int() > 0);
    let _waiter = waiter(&server, "DLOCK.ACQUIRE lock:a 0wner-of-another-one 600000 BLOCK 0");
    let errors = admin.ok("INFO errorstats").text();
    const COMMANDS: &str = "+dlock.inspect +dlock.waiters +dlock.list +eval_ro +multi +exec";
    for (rules, whole) in
        [("%R~lock:*", false), ("~lock:*", true), ("%R~* %W~other", false), ("%RW~lock:a", true)]
    {
        let mut conn = server.user(&format!("{rules} {COMMANDS}"));
        let listed = format!("{:?}", conn.ok("DLOCK.LIST 0"));
        for shown in inspected(&mut conn).into_iter().chain([listed]) {
            assert!(shown.contains("0wner-of"), "{rules}: {shown}");
            assert_eq!(shown.contains("a-secret") || shown.contains("another"), whole, "{rules}: {shown}");
            assert_eq!(shown.contains("0wner-of..."), !whole, "{rules}: {shown}");
        }
    }
    for shown in inspected(&mut admin) {
        assert!(shown.contains("another") || shown.contains("a-secret"), "{shown}");
    }
    // The check of the caller's rights leaves no trace in the error statistics and ACL LOG.
    assert_eq!(admin.ok("INFO errorstats").text(), errors);
    assert!(matches!(admin.ok("ACL LOG"), Value::Array(entries) if entries.is_empty()));
}
