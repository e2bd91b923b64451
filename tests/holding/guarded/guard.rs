//! Who may run a command by GUARD.

use super::word;
use dlock_testkit::{Server, ServerKind, Value, each_server, until};

#[each_server]
fn guard_runs_a_command_for_a_holder_only(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    assert_eq!(word(&conn.say("DLOCK.GUARD k t SET x 1")), "NOTHELD");
    conn.ok("DLOCK.ACQUIRE k t 600000");
    assert_eq!(conn.ok("DLOCK.GUARD k t SET x 1"), "OK");
    assert_eq!(word(&conn.say("DLOCK.GUARD k other SET x 2")), "NOTHELD");
    assert_eq!(word(&conn.say("DLOCK.GUARD other t SET x 2")), "NOTHELD");
    // The token holds, not the connection.
    assert_eq!(server.connect().ok("dlock.guard k t incr x"), 2);
    conn.ok("DLOCK.RELEASE k t");
    assert_eq!(word(&conn.say("DLOCK.GUARD k t SET x 3")), "NOTHELD");
    assert_eq!(conn.ok("GET x"), "2");
    conn.ok("SET text v");
    assert_eq!(word(&conn.say("DLOCK.GUARD text t SET x 3")), "WRONGTYPE");
    assert_eq!(conn.ok("GET x"), "2");
}

#[each_server]
fn guard_accepts_a_sharer_and_refuses_an_expired_hold(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    conn.ok("DLOCK.ACQUIRE k t 50");
    until("the lease is over", || conn.ok("DLOCK.HOLDS k t") == 0);
    assert_eq!(word(&conn.say("DLOCK.GUARD k t SET x 1")), "NOTHELD");
    for token in ["a", "b"] {
        conn.ok(&format!("DLOCK.ACQUIRE s {token} 600000 SHARED"));
        assert_eq!(conn.ok(&format!("DLOCK.GUARD s {token} SET x {token}")), "OK");
    }
    assert_eq!(word(&conn.say("DLOCK.GUARD s c SET x c")), "NOTHELD");
    assert_eq!(conn.ok("GET x"), "b");
}

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
fn guard_works_in_transactions_and_scripts(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    conn.ok("MULTI");
    for command in [
        "DLOCK.ACQUIRE k t MAX",
        "DLOCK.GUARD k t SET x 1",
        "DLOCK.GUARD k other SET x 2",
        "DLOCK.GUARD k t INCR x",
    ] {
        conn.ok(command);
    }
    let answers = conn.ok("EXEC");
    assert_eq!(answers.items()[1], "OK");
    assert_eq!(word(&answers.items()[2]), "NOTHELD");
    assert_eq!(answers.items()[3], 2);
    let script = "return redis.call('DLOCK.GUARD', KEYS[1], ARGV[1], 'INCR', KEYS[2])";
    assert_eq!(conn.call(&["EVAL", script, "2", "k", "x", "t"]), 3);
    assert!(conn.call(&["EVAL", script, "2", "k", "x", "other"]).error().contains("NOTHELD"));
    assert_eq!(conn.ok("GET x"), "3");
    // WATCH sees it as any write.
    let mut other = server.connect();
    conn.ok("WATCH x");
    other.ok("DLOCK.GUARD k t INCR x");
    conn.ok("MULTI");
    conn.ok("PING");
    assert_eq!(conn.ok("EXEC"), Value::Nil);
}

#[each_server]
fn guard_refuses_growing_commands_when_memory_is_full(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
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
