//! FENCED: the gate, and who passes it.

use super::word;
use dlock_testkit::{Server, ServerKind, each_server};

#[each_server]
fn the_gate_rises_and_refuses_lower_fences(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    assert_eq!(conn.ok("DLOCK.FENCED g 7 SET x 7"), "OK");
    assert_eq!(conn.ok("GET g"), "7");
    assert_eq!(conn.ok("DLOCK.FENCED g 7 INCR x"), 8);
    let stale = conn.say("DLOCK.FENCED g 6 SET x 6");
    assert!(stale.error().starts_with("STALEFENCE 7 "), "{stale:?}");
    assert_eq!(conn.ok("DLOCK.FENCED g 9007199254740991 GET x"), "8");
    assert_eq!(conn.ok("GET g"), "9007199254740991");
    // Any number that fits is one.
    conn.ok("SET g 0");
    assert_eq!(conn.ok("DLOCK.FENCED g 1 GET x"), "8");
    conn.ok("SET g 18446744073709551615");
    assert!(conn.say("DLOCK.FENCED g 5 SET x 1").error().starts_with("STALEFENCE 18446744073709551615 "));
    assert_eq!(conn.ok("GET x"), "8");
}

#[each_server]
fn fenced_rejects_a_key_that_is_not_a_gate(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    for text in ["", "five", "-1", "05", "1.0", "18446744073709551616"] {
        assert_eq!(conn.call(&["SET", "g", text]), "OK");
        assert!(conn.say("DLOCK.FENCED g 5 SET x 1").error().starts_with("ERR the gate holds no number"));
        assert_eq!(conn.ok("GET g"), text);
    }
    conn.ok("DLOCK.ACQUIRE lock t MAX");
    conn.ok("RPUSH list 5");
    for key in ["lock", "list"] {
        assert_eq!(word(&conn.say(&format!("DLOCK.FENCED {key} 5 SET x 1"))), "WRONGTYPE");
    }
    for fence in ["0", "-1", "x", "9007199254740992"] {
        let refused = conn.say(&format!("DLOCK.FENCED new {fence} SET x 1"));
        assert_eq!(refused.error(), "ERR fence must be a whole number from 1 to 9007199254740991");
    }
    assert_eq!(conn.ok("EXISTS x new"), 0);
}

#[each_server]
fn the_gate_stays_raised_when_the_command_fails(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    conn.ok("RPUSH list 1");
    for (fence, failing) in ["INCR list", "SET x", "NOSUCH", "SUBSCRIBE c"].into_iter().enumerate() {
        let fence = fence + 1;
        conn.say(&format!("DLOCK.FENCED g {fence} {failing}")).error();
        assert_eq!(conn.ok("GET g"), fence.to_string().as_str(), "{failing}");
    }
}

/// Whatever the command does to it: a gate that forgets lets a stale writer through.
#[each_server]
fn the_command_cannot_lower_its_own_gate(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    let steps = [
        ("DEL g", "5"),
        ("SET g 3", "5"),
        ("SET g text", "5"),
        ("GETDEL g", "5"),
        ("EXPIREAT g 1", "5"),
        ("RENAME g other", "5"),
        ("FLUSHALL", "5"),
        ("DECR g", "5"),
        ("SETEX g 1000 9", "9"),
        ("INCR g", "6"),
        ("SUNIONSTORE g set", "5"),
    ];
    for (command, after) in steps {
        conn.ok("SADD set a");
        conn.ok("SET g 4");
        conn.ok(&format!("DLOCK.FENCED g 5 {command}"));
        assert_eq!(conn.ok("GET g"), after, "{command}");
    }
}
