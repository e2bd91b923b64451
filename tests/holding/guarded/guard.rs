//! GUARD: protocols, memory and replicas; and the gate of FENCED.

use super::word;
use dlock_testkit::{Server, ServerKind, each_server};

#[each_server]
fn guard_returns_the_reply_of_its_command_in_both_protocols(kind: &ServerKind) {
    let server = Server::start(kind);
    let (mut conn, mut plain) = (server.connect(), server.connect());
    conn.ok("DLOCK.ACQUIRE k t MAX");
    conn.ok("HSET hash field value");
    conn.ok("ZADD set 1.5 a");
    for _ in 0..2 {
        for command in [
            "GET none",
            "HGETALL hash",
            "ZSCORE set a",
            "ZRANGE set 0 -1 WITHSCORES",
            "SMEMBERS none",
            "LPUSH hash x",
            "INCR hash",
            "PING",
            "ECHO text",
            "SET a",
            "NOSUCH a b",
            "LRANGE none 0 -1",
        ] {
            let guarded = conn.say(&format!("DLOCK.GUARD k t {command}"));
            assert_eq!(guarded, plain.say(command), "{command}");
        }
        conn.hello3();
        plain.hello3();
    }
}

#[each_server]
fn guard_refuses_growing_commands_when_memory_is_full(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    conn.ok("DLOCK.ACQUIRE k t MAX");
    conn.ok("SET x 1");
    conn.ok("DLOCK.FENCED g 5 PING");
    conn.ok("CONFIG SET maxmemory 1");
    assert_eq!(word(&conn.say("DLOCK.GUARD k t SET x 2")), "OOM");
    assert_eq!(word(&conn.say("DLOCK.FENCED g 5 SET x 2")), "OOM");
    assert_eq!(word(&conn.say("DLOCK.FENCED g 6 DEL x")), "OOM");
    assert_eq!(conn.ok("DLOCK.GUARD k t GET x"), "1");
    assert_eq!(conn.ok("DLOCK.GUARD k t DEL x"), 1);
    assert_eq!(conn.ok("DLOCK.FENCED g 5 DLOCK.RELEASE k t"), 1);
    conn.ok("CONFIG SET maxmemory 0");
    assert_eq!(conn.ok("GET g"), "5");
}

#[each_server]
fn guard_is_refused_by_a_replica(kind: &ServerKind) {
    let (master, replica) = (Server::start(kind), Server::start(kind));
    replica.replicate(&master);
    master.connect().ok("DLOCK.ACQUIRE k t MAX");
    replica.wait_in_sync(&master);
    let mut conn = replica.connect();
    for command in ["DLOCK.GUARD k t SET x 1", "DLOCK.GUARD k t GET x", "DLOCK.FENCED g 1 GET x"] {
        assert_eq!(word(&conn.say(command)), "READONLY", "{command}");
    }
}

/// A gate that the command could lower would let a stale writer through.
#[each_server]
fn the_command_cannot_lower_its_own_gate(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
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
