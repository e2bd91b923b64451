//! The commands inside MULTI and scripts, with WATCH and client-side caches, and on a server out of memory.

use std::time::Duration;

use super::{assert_lease, granted};
use dlock_testkit::{Conn, Server, ServerKind, Value, each_server};

#[each_server]
fn every_command_works_in_multi(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    granted(conn.ok("DLOCK.ACQUIRE taken other 600000"));
    assert_eq!(conn.ok("MULTI"), "OK");
    for command in [
        "DLOCK.ACQUIRE k t 600000",
        "DLOCK.ACQUIRE k t 600000 REENTRANT",
        "DLOCK.ACQUIRE taken t 600000",
        "DLOCK.ACQUIRE taken t 600000 BLOCK 0",
        "DLOCK.HOLDS k t",
        "DLOCK.EXTEND k t 3600000",
        "DLOCK.CONFIRM k t 1 600000",
        "DLOCK.PTTL taken t",
        "DLOCK.INSPECT free",
        "DLOCK.WAITERS taken",
        "DLOCK.CANCEL k t",
        "DLOCK.RELEASE k t ALL",
        "DLOCK.BREAK taken",
        "DLOCK.TOKEN",
        "DLOCK.HELP",
    ] {
        assert_eq!(conn.ok(command), "QUEUED");
    }
    let answers = conn.ok("EXEC");
    let [first, again, denied, one_try, holds, extended, confirmed, rest @ ..] = answers.items() else {
        panic!("{answers:?}")
    };
    assert_eq!((first, denied, one_try), (again, &Value::Nil, &Value::Nil));
    assert_eq!((holds, extended, confirmed), (&2.into(), &1.into(), first));
    let [pttl, inspected, line, cancelled, released, broken, token, help] = rest else { panic!("{rest:?}") };
    assert_eq!((pttl, inspected, line), (&Value::Int(-2), &Value::Nil, &Value::Array(vec![])));
    assert_eq!((cancelled, released, broken), (&0.into(), &2.into(), &1.into()));
    assert_eq!((token.text().len(), help.items().len()), (27, 33));
    assert_eq!(conn.ok("DBSIZE"), 0);
}

#[each_server]
fn a_refused_command_in_multi_leaves_the_others(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    conn.ok("SET text x");
    conn.ok("MULTI");
    for command in ["DLOCK.ACQUIRE a t 600000", "DLOCK.ACQUIRE text t 600000", "DLOCK.ACQUIRE b t 600000"] {
        conn.ok(command);
    }
    let answers = conn.ok("EXEC");
    let [a, refused, b] = answers.items() else { panic!("{answers:?}") };
    assert!(refused.error().starts_with("WRONGTYPE"));
    assert!(b.int() > a.int());
}

/// Runs a command of ours inside a script.
#[track_caller]
fn script(conn: &mut Conn, command: &str) -> Value {
    let mut words: Vec<&str> = command.split(' ').collect();
    let key = if words.len() > 1 { Some(words.remove(1)) } else { None };
    let text = if key.is_some() {
        "return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))"
    } else {
        "return redis.call(ARGV[1])"
    };
    let keys = if key.is_some() { "1" } else { "0" };
    conn.call(&[vec!["EVAL", text, keys], key.into_iter().collect(), words].concat())
}

#[each_server]
fn every_command_works_in_a_script(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    let fence = granted(script(&mut conn, "DLOCK.ACQUIRE k t 600000 DEPTH 2"));
    // Lua's numbers are doubles: a fence goes through whole.
    assert_eq!(conn.ok("DLOCK.INSPECT k").field("fence"), &fence);
    for (command, answer) in [
        ("DLOCK.ACQUIRE k t 600000", Value::Int(fence)),
        ("DLOCK.ACQUIRE k other 600000", Value::Nil),
        ("DLOCK.ACQUIRE k other 600000 BLOCK 0", Value::Nil),
        ("DLOCK.HOLDS k t", 2.into()),
        ("DLOCK.EXTEND k t 3600000", 1.into()),
        ("DLOCK.PTTL free t", Value::Int(-2)),
        ("DLOCK.WAITERS k", Value::Array(vec![])),
        ("DLOCK.CANCEL k t", 0.into()),
        ("DLOCK.RELEASE k t", 1.into()),
    ] {
        assert_eq!(script(&mut conn, command), answer, "{command}");
    }
    assert_lease(&mut conn, "k", "t", 3_600_000);
    assert_eq!(script(&mut conn, &format!("DLOCK.CONFIRM k t {} 600000", fence + 1)), fence + 1);
    assert_eq!(script(&mut conn, "DLOCK.INSPECT k").field("mode"), &"exclusive");
    assert_eq!(script(&mut conn, "DLOCK.BREAK k"), 1);
    assert_eq!(script(&mut conn, "DLOCK.TOKEN").text().len(), 27);
    assert_eq!(script(&mut conn, "DLOCK.HELP").items().len(), 33);
    assert!(script(&mut conn, "DLOCK.EXTEND k t 0").error().contains("ERR ttl must be a whole number"));
    assert_eq!(conn.ok("DBSIZE"), 0);
}

/// Valkey 9 finds by its number whatever runs, and crashed when asked for its address.
#[each_server]
fn holds_granted_without_a_connection_show_no_address(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    let client = |inspected: Value| inspected.field("holders").items()[0].field("client").int();
    granted(script(&mut conn, "DLOCK.ACQUIRE k t 600000"));
    assert_eq!(client(script(&mut conn, "DLOCK.INSPECT k")), 0);
    assert_eq!(client(conn.ok("DLOCK.INSPECT k")), 0);
    granted(conn.ok("DLOCK.GUARD k t DLOCK.ACQUIRE l u 600000"));
    assert_eq!(client(conn.ok("DLOCK.GUARD k t DLOCK.INSPECT l")), 0);
    assert!(conn.ok("DLOCK.ACQUIRE l t 600000 QUEUE 600000").is_nil());
    let deadlock = ["EVAL", "return redis.pcall(unpack(ARGV))", "1", "k", "DLOCK.ACQUIRE", "k", "u", "1"];
    assert!(conn.call(&[&deadlock[..], &["QUEUE", "600000"]].concat()).error().starts_with("DEADLOCK"));
    assert_eq!(script(&mut conn, "DLOCK.BREAK k"), 1);
    let log = conn.ok("DLOCK.LOG");
    let noted = |entry: &Value| (entry.field("what").text(), entry.field("address").text());
    assert_eq!(
        log.items().iter().map(noted).collect::<Vec<_>>(),
        [("broken".into(), "".into()), ("deadlock".into(), "".into())]
    );
}

#[each_server]
fn a_read_only_script_reads_and_does_not_write(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    granted(conn.ok("DLOCK.ACQUIRE k t 600000"));
    let mut run = |command: &str| {
        let text = format!("return redis.call('{command}', KEYS[1], unpack(ARGV))");
        conn.call(&["EVAL_RO", &text, "1", "k", "t"])
    };
    assert_eq!(run("DLOCK.HOLDS"), 1);
    assert!(run("DLOCK.RELEASE").error().contains("Write commands are not allowed"));
    assert_eq!(run("DLOCK.HOLDS"), 1);
}

#[each_server]
fn watch_sees_a_lock_change_and_no_denial(kind: &ServerKind) {
    let server = Server::start(kind);
    let (mut conn, mut other) = (server.connect(), server.connect());
    let mut unchanged = |command: &str| {
        conn.ok("WATCH k");
        other.ok(command);
        conn.ok("MULTI");
        conn.ok("PING");
        !conn.ok("EXEC").is_nil()
    };
    for (command, quiet) in [
        ("DLOCK.RELEASE k t", true),
        ("DLOCK.ACQUIRE k t 600000", false),
        ("DLOCK.ACQUIRE k other 600000", true),
        ("DLOCK.RELEASE k other", true),
        ("DLOCK.EXTEND k other 600000", true),
        ("DLOCK.CONFIRM k other 1 600000", true),
        ("DLOCK.CONFIRM k t 1 600000", true),
        ("DLOCK.INSPECT k", true),
        ("DLOCK.ACQUIRE k t 600000 REENTRANT", false),
        ("DLOCK.RELEASE k t", false),
        ("DLOCK.EXTEND k t 3600000", false),
        ("DLOCK.RELEASE k t", false),
        ("DLOCK.ACQUIRE k t 600000", false),
        ("DLOCK.BREAK k", false),
        ("DLOCK.BREAK k", true),
    ] {
        assert_eq!(unchanged(command), quiet, "{command}");
    }
}

#[each_server]
fn client_side_caching_reports_a_change_and_no_denial(kind: &ServerKind) {
    let server = Server::start(kind);
    let (mut cache, mut other) = (server.connect(), server.connect());
    cache.hello3();
    cache.ok("CLIENT TRACKING ON");
    let mut told = |command: &str| {
        cache.ok("DLOCK.HOLDS k t");
        other.ok(command);
        // The push, if any, was sent before the answer to this.
        assert_eq!(cache.ok("PING"), "PONG");
        match cache.try_read(Duration::ZERO) {
            Some(push) => {
                assert_eq!(push, Value::Push(vec!["invalidate".into(), vec!["k"].into()]), "{command}");
                true
            }
            None => false,
        }
    };
    for (command, invalidates) in [
        ("DLOCK.ACQUIRE k t 600000", true),
        ("DLOCK.ACQUIRE k other 600000", false),
        ("DLOCK.RELEASE k other", false),
        ("DLOCK.EXTEND k t 3600000", true),
        ("DLOCK.ACQUIRE k t 600000 DEPTH 2", true),
        ("DLOCK.ACQUIRE k t 600000 DEPTH 2", false),
        ("DLOCK.RELEASE k t ALL", true),
        ("DLOCK.RELEASE k t ALL", false),
    ] {
        assert_eq!(told(command), invalidates, "{command}");
    }
}

#[each_server]
fn new_holds_are_refused_and_old_ones_released_when_memory_is_full(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    for key in ["a", "b", "c"] {
        granted(conn.ok(&format!("DLOCK.ACQUIRE {key} t 600000")));
    }
    let fence = conn.ok("DLOCK.INSPECT a").field("fence").int();
    conn.ok("CONFIG SET maxmemory 1");
    for command in
        ["DLOCK.ACQUIRE new t 600000", "DLOCK.ACQUIRE a t 600000", "DLOCK.ACQUIRE a t 600000 BLOCK 0"]
    {
        assert_eq!(conn.say(command).error().split(' ').next(), Some("OOM"), "{command}");
    }
    assert_eq!(conn.ok("DLOCK.HOLDS a t"), 1);
    assert_eq!(conn.ok("DLOCK.INSPECT a").field("fence"), &fence);
    assert_eq!(conn.ok("DLOCK.EXTEND a t 3600000"), 1);
    assert_lease(&mut conn, "a", "t", 3_600_000);
    assert_eq!(conn.ok(&format!("DLOCK.CONFIRM a t {fence} 600000")), fence);
    assert_eq!(conn.ok("DLOCK.RELEASE a t"), 1);
    assert_eq!(conn.ok("DLOCK.BREAK b"), 1);
    assert_eq!(conn.ok("DLOCK.CANCEL c t"), 0);
    assert_eq!(conn.ok("DLOCK.TOKEN").text().len(), 27);
    conn.ok("CONFIG SET maxmemory 0");
    granted(conn.ok("DLOCK.ACQUIRE new t 600000"));
}
