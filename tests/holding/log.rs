//! LOG: each kind of incident with its cause, and the fields of an entry.

use dlock_testkit::queue::{clients, first_hold, granted, waiter};
use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, until};

/// Starts a server that logs every hold and every wait as a long one.
fn server_that_logs_all(kind: &ServerKind) -> Server {
    Server::options(kind).conf("dlock.log-slower-than 0").start()
}

/// Returns the kinds of the incidents of a key, newest first.
fn incidents(conn: &mut Conn, key: &str) -> Vec<String> {
    let log = conn.ok(&format!("DLOCK.LOG KEY {key}"));
    log.items().iter().map(|entry| entry.field("what").text()).collect()
}

fn newest(conn: &mut Conn, key: &str) -> Value {
    conn.ok(&format!("DLOCK.LOG COUNT 1 KEY {key}")).items()[0].clone()
}

#[each_server]
fn log_records_each_kind_of_incident_with_its_cause(kind: &ServerKind) {
    let server = server_that_logs_all(kind);
    let mut conn = server.connect();
    conn.ok("DLOCK.ACQUIRE lease t 1");
    until("the lease ends", || incidents(&mut conn, "lease") == ["expired"]);
    conn.ok("DLOCK.ACQUIRE op t 600000");
    conn.ok("DLOCK.BREAK op");
    assert_eq!(incidents(&mut conn, "op"), ["broken"]);
    server.connect().ok("DLOCK.ACQUIRE conn t 600000 EPHEMERAL");
    until("the disconnect is logged", || incidents(&mut conn, "conn") == ["disconnected"]);
    for (key, command) in [
        ("del", "DEL del"),
        ("set", "SET set x"),
        ("renamed", "RENAME renamed elsewhere"),
        ("ttl", "PEXPIRE ttl 0"),
    ] {
        conn.ok(&format!("DLOCK.ACQUIRE {key} t 600000"));
        conn.ok(command);
        assert_eq!(incidents(&mut conn, key), ["vanished"], "{command}");
    }
    conn.ok("DLOCK.ACQUIRE long t 600000");
    conn.ok("DLOCK.RELEASE long t");
    assert_eq!(incidents(&mut conn, "long"), ["long-hold"]);
    conn.ok("DLOCK.ACQUIRE waited t 600000");
    let mut next = waiter(&server, "DLOCK.ACQUIRE waited u 600000 BLOCK 0");
    conn.ok("DLOCK.RELEASE waited t");
    granted(&mut next);
    assert_eq!(incidents(&mut conn, "waited"), ["long-wait", "long-hold"]);
    conn.ok("DLOCK.ACQUIRE one t 600000");
    conn.ok("DLOCK.ACQUIRE two u 600000");
    let _waiter = waiter(&server, "DLOCK.ACQUIRE two t 600000 BLOCK 0");
    assert!(conn.say("DLOCK.ACQUIRE one u 600000 BLOCK 0").error().starts_with("DEADLOCK"));
    assert_eq!(incidents(&mut conn, "one"), ["deadlock"]);
    conn.ok("CONFIG SET dlock.max-waiters 0");
    assert!(conn.say("DLOCK.ACQUIRE one v 600000 BLOCK 0").error().starts_with("QUEUEFULL"));
    assert_eq!(incidents(&mut conn, "one"), ["queue-full", "deadlock"]);
    conn.ok("FLUSHALL");
    assert_eq!(incidents(&mut conn, "one")[0], "vanished");
    conn.ok("CONFIG SET dlock.max-waiters 9");
    conn.ok("DLOCK.ACQUIRE k t 600000");
    let mut killed = waiter(&server, "DLOCK.ACQUIRE k u 600000 BLOCK 0");
    let id = clients(&mut conn, "k")[0];
    // The connection of the waiter closes in the event-loop turn of its grant.
    let both = conn.say_together(&["DLOCK.RELEASE k t", &format!("CLIENT KILL ID {id}")]);
    assert_eq!(both, [Value::Int(1), Value::Int(1)]);
    until("the connection of the waiter is closed", || killed.closed());
    until("the lost grant is logged", || incidents(&mut conn, "k").contains(&"undelivered".to_string()));
    let log = conn.ok("DLOCK.LOG KEY k");
    let undelivered = log.items().iter().find(|entry| *entry.field("what") == "undelivered").unwrap();
    assert!(undelivered.field("client").int() == id && undelivered.field("fence").int() > 0, "{log:?}");
}

#[each_server]
fn a_log_entry_has_the_token_the_connection_and_the_duration_of_a_hold(kind: &ServerKind) {
    let server = server_that_logs_all(kind);
    let mut conn = server.connect();
    conn.hello3();
    conn.ok("SELECT 3");
    let fence = conn.ok("DLOCK.ACQUIRE k my-long-token 600000 LABEL host EPHEMERAL").int();
    until("the hold is 3 ms old", || first_hold(&mut conn, "k").field("held").int() >= 3);
    conn.ok("DLOCK.BREAK k");
    let entry = newest(&mut conn, "k");
    for (field, value) in [("what", "broken"), ("key", "k"), ("token", "my-long-..."), ("label", "host")] {
        assert_eq!(entry.field(field), &value, "{entry:?}");
    }
    let id = conn.client_id();
    for (field, value) in [("db", 3), ("fence", fence), ("client", id), ("id", 0)] {
        assert_eq!(entry.field(field), &Value::Int(value), "{entry:?}");
    }
    assert!(entry.field("address").text().starts_with("127.0.0.1:"), "{entry:?}");
    // An entry names the connection of the grant, even if the hold is not bound to it. The entry has the
    // address while this connection exists.
    conn.ok("DLOCK.ACQUIRE k t 600000");
    conn.ok("DEL k");
    let (vanished, expected) = (newest(&mut conn, "k"), [id.into(), entry.field("address").clone()]);
    assert_eq!(["client", "address"].map(|field| vanished.field(field).clone()), expected, "{vanished:?}");
    let mut holder = server.connect();
    holder.ok("SELECT 3");
    let (id, _) = (holder.client_id(), holder.ok("DLOCK.ACQUIRE k t 600000"));
    drop(holder);
    until("the connection is closed", || conn.ok(&format!("CLIENT LIST ID {id}")).text().is_empty());
    conn.ok("DLOCK.BREAK k");
    let broken = newest(&mut conn, "k");
    assert_eq!((broken.field("client").int(), broken.field("address").text()), (id, String::new()));
    assert!(entry.field("held").int() >= 3 && entry.field("time").int() > 1_700_000_000_000, "{entry:?}");
}

#[each_server]
fn the_log_is_bounded_and_can_be_reset(kind: &ServerKind) {
    let server = server_that_logs_all(kind);
    let mut conn = server.connect();
    let hold_and_release = |conn: &mut Conn| {
        conn.ok("DLOCK.ACQUIRE k t 600000");
        conn.ok("DLOCK.RELEASE k t");
    };
    let ids = |conn: &mut Conn, arguments: &str| -> Vec<i64> {
        let log = conn.ok(&format!("DLOCK.LOG {arguments}"));
        log.items().iter().map(|entry| entry.field("id").int()).collect()
    };
    (0..200).for_each(|_| hold_and_release(&mut conn));
    // By default, the log keeps 128 entries.
    assert_eq!(ids(&mut conn, ""), (72..200).rev().collect::<Vec<_>>());
    assert_eq!(ids(&mut conn, "COUNT 2"), [199, 198]);
    conn.ok("CONFIG SET dlock.log-max-len 3");
    assert_eq!(ids(&mut conn, ""), [199, 198, 197]);
    assert_eq!(conn.say("DLOCK.LOG RESET"), "OK");
    assert_eq!(ids(&mut conn, ""), []);
    // Three settings with which no hold is logged: a log without room, -1 (long holds are not logged), and
    // a limit of 600 s.
    conn.ok("CONFIG SET dlock.log-max-len 0");
    hold_and_release(&mut conn);
    conn.ok("CONFIG SET dlock.log-max-len 3");
    conn.ok("CONFIG SET dlock.log-slower-than -1");
    hold_and_release(&mut conn);
    assert_eq!(ids(&mut conn, ""), []);
    conn.ok("CONFIG SET dlock.log-slower-than 600000");
    hold_and_release(&mut conn);
    assert_eq!(ids(&mut conn, ""), []);
    // Many holds that end together are one entry; a long name is truncated.
    for n in 0..300 {
        conn.ok(&format!("DLOCK.ACQUIRE crowd t{n} 600000 SHARED"));
    }
    conn.ok("DLOCK.BREAK crowd");
    let name = "n".repeat(500);
    conn.ok(&format!("DLOCK.ACQUIRE {name} t 600000"));
    conn.ok(&format!("DLOCK.BREAK {name}"));
    assert_eq!(ids(&mut conn, "").len(), 2);
    assert_eq!(newest(&mut conn, &name).field("key").text(), format!("{}...", &name[..128]));
}
