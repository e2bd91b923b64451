//! No command sees an expired hold, whether or not the background job has removed it.

use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, until};

/// Commands in one write run in one event-loop turn, so the timer cannot run between them.
const LATE: [&str; 2] = ["DLOCK.ACQUIRE k t 20 DEPTH 2 LABEL host", "DEBUG SLEEP 0.05"];

#[each_server]
fn no_command_sees_an_expired_hold(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    for (command, answer) in [
        ("DLOCK.HOLDS k t", Value::Int(0)),
        ("DLOCK.PTTL k", Value::Int(-2)),
        ("DLOCK.PTTL k t", Value::Int(-2)),
        ("DLOCK.INSPECT k", Value::Nil),
        ("DLOCK.EXTEND k t 600000", Value::Int(0)),
        ("DLOCK.CONFIRM k t 1 600000", Value::Nil),
        ("DLOCK.RELEASE k t", Value::Int(0)),
        ("DLOCK.RELEASE k t ALL", Value::Int(0)),
        ("DLOCK.BREAK k", Value::Int(0)),
    ] {
        let answers = conn.say_together(&[LATE[0], LATE[1], "EXISTS k", command]);
        assert!(answers[0].int() > 0);
        assert_eq!(answers[2], 1, "it is there still, or this proves nothing: {command}");
        assert_eq!(answers[3], answer, "{command}");
        until("the background ends it", || conn.ok("EXISTS k") == 0);
    }
    assert_eq!(server.info("dlock_expiries"), "9");
    assert_eq!((server.info("dlock_releases"), server.info("dlock_breaks")), ("0".into(), "0".into()));
}

#[each_server]
fn acquire_grants_an_expired_lock_to_any_token(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    for token in ["other", "t"] {
        let again = format!("DLOCK.ACQUIRE k {token} 600000");
        let answers = conn.say_together(&[LATE[0], LATE[1], "EXISTS k", &again, "DLOCK.INSPECT k"]);
        assert_eq!(answers[2], 1);
        let (first, second, lock) = (answers[0].int(), answers[3].int(), &answers[4]);
        assert!(second > first, "a new hold: {second} after {first}");
        let [hold] = lock.field("holders").items() else { panic!("{lock:?}") };
        assert_eq!((hold.field("token"), hold.field("fence")), (&token.into(), &second.into()));
        // The new hold keeps nothing of the old one.
        assert_eq!((hold.field("count"), hold.field("label")), (&1.into(), &"".into()));
        conn.ok("DLOCK.BREAK k");
    }
}

#[each_server]
fn only_the_expired_of_several_holders_are_hidden(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    let answers = conn.say_together(&[
        "DLOCK.ACQUIRE k short 20 PERMITS 2",
        "DLOCK.ACQUIRE k long 600000 PERMITS 2",
        "DLOCK.ACQUIRE k third 600000 PERMITS 2",
        "DEBUG SLEEP 0.05",
        "DLOCK.INSPECT k",
        "DLOCK.HOLDS k short",
        "DLOCK.ACQUIRE k third 600000 PERMITS 2",
    ]);
    assert!(answers[0].int() > 0 && answers[1].int() > 0);
    assert_eq!(answers[2], Value::Nil, "it is full while the short lease lasts");
    let [hold] = answers[4].field("holders").items() else { panic!("{answers:?}") };
    assert_eq!(hold.field("token"), &"long");
    assert_eq!(answers[5], 0);
    assert!(answers[6].int() > 0);
}

/// Returns a server that was paused before the lease of its only hold expired.
fn paused(kind: &ServerKind) -> (Server, Conn) {
    let (server, mut conn) = Server::connected(kind);
    let answers = conn.say_together(&["DLOCK.ACQUIRE k t 50", "CLIENT PAUSE 60000 WRITE"]);
    assert!(answers[0].int() > 0);
    until("the lease has expired", || conn.ok("DLOCK.HOLDS k t") == 0);
    (server, conn)
}

#[each_server]
fn an_expired_hold_is_hidden_while_the_server_is_paused(kind: &ServerKind) {
    let (server, mut conn) = paused(kind);
    assert_eq!(conn.ok("DLOCK.PTTL k"), -2);
    assert_eq!(conn.ok("DLOCK.INSPECT k"), Value::Nil);
    assert_eq!(conn.ok("EXISTS k"), 1, "nothing is written in a pause");
    assert_eq!(server.info("dlock_expiries"), "0");

    let mut other = server.connect();
    other.send(&["DLOCK.ACQUIRE", "k", "other", "600000"]);
    conn.ok("PING");
    assert_eq!(conn.ok("CLIENT UNPAUSE"), "OK");
    assert!(other.read().int() > 0);
    assert_eq!(server.info("dlock_expiries"), "1");
}

#[each_server]
fn background_expiry_resumes_after_a_pause(kind: &ServerKind) {
    let (server, mut conn) = paused(kind);
    assert_eq!(conn.ok("EXISTS k"), 1);
    assert_eq!(conn.ok("CLIENT UNPAUSE"), "OK");
    until("the hold is ended", || conn.ok("EXISTS k") == 0);
    assert_eq!(server.info("dlock_expiries"), "1");
}
