//! Places that show tokens and places that must not. A token proves that its client holds the lock.

use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, until};

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
    let (server, replica) = (Server::start(kind), Server::start(kind));
    replica.replicate(&server);
    let (mut monitor, mut on_replica) = (server.connect(), replica.connect());
    assert!(monitor.ok("MONITOR") == "OK" && on_replica.ok("MONITOR") == "OK");
    let mut conn = server.connect();
    for command in COMMANDS {
        conn.ok(&with_token(command));
        let line = monitor.read().text();
        assert!(line.contains(SECRET), "MONITOR shows tokens, as the README says: {line}");
    }
    // The effects on the replica contain tokens too; its MONITOR shows none of them.
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
    assert_eq!(admin.ok("ACL SETUSER worker on >secret ~lock:* +dlock.acquire"), "OK");
    let mut conn = server.connect();
    assert_eq!(conn.ok("AUTH worker secret"), "OK");
    for command in COMMANDS {
        assert!(conn.say(&with_token(command)).error().starts_with("NOPERM"));
    }
    let logged = format!("{:?}", admin.ok("ACL LOG"));
    assert!(logged.contains("dlock.release") || logged.contains("DLOCK.RELEASE"), "{logged}");
    assert!(!logged.contains(SECRET), "{logged}");
}

#[each_server]
fn client_list_and_slow_logs_show_no_tokens(kind: &ServerKind) {
    let server = Server::options(kind).conf("slowlog-log-slower-than 0").conf("slowlog-max-len 1000").start();
    let mut admin = server.connect();
    // Valkey 8.1 and later also log large requests and replies.
    let logs = !matches!(admin.say("CONFIG SET commandlog-request-larger-than 0"), Value::Error(_));
    if logs {
        assert_eq!(admin.ok("CONFIG SET commandlog-reply-larger-than 0"), "OK");
    }
    let mut conn = server.connect();
    for command in COMMANDS {
        conn.ok(&with_token(command));
    }
    let mut waiter = server.connect();
    waiter.send(&["DLOCK.ACQUIRE", "k", &format!("other{SECRET}"), "600000", "BLOCK", "0"]);
    until("the client waits", || server.info("dlock_waiting") == "1");
    let clients = admin.ok("CLIENT LIST").text();
    assert!(clients.to_lowercase().contains("cmd=dlock.acquire") && !clients.contains(SECRET), "{clients}");
    let mut shown = vec![admin.ok("SLOWLOG GET 1000")];
    if logs {
        shown.extend(
            ["slow", "large-request", "large-reply"]
                .map(|log| admin.ok(&format!("COMMANDLOG GET 1000 {log}"))),
        );
    }
    for log in shown {
        let log = format!("{log:?}");
        assert!(log.contains("SLOWLOG") || log.contains("CONFIG") || log.contains("CLIENT"), "{log}");
        assert!(!log.contains(SECRET), "{log}");
    }
    assert_eq!(admin.ok(&with_token("DLOCK.RELEASE k {} ALL")), 1);
    assert!(waiter.read().int() > 0);
}

/// A crashing server prints the commands of its clients; the module adds nothing.
#[each_server]
fn the_log_of_refused_bytes_shows_no_tokens(kind: &ServerKind) {
    let server = Server::options(kind).conf("rdbcompression no").conf("loglevel debug").start();
    let mut conn: Conn = server.connect();
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
    assert!(refused > 10, "{refused}");
    let log = server.log();
    assert!(log.contains("refused a stored lock") && !log.contains(SECRET), "{log}");
}
