//! Behaviour of the commands that the data in `conformance/` cannot show: arithmetic on fences, arbitrary
//! bytes, other connections, WATCH, client-side caching, and a server out of memory.

use std::collections::HashSet;
use std::time::Duration;

use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, until};

/// Returns the fence of a grant.
#[track_caller]
fn granted(reply: Value) -> i64 {
    let fence = reply.int();
    assert!(fence > 0 && fence < 1 << 53, "no fence: {fence}");
    fence
}

/// Asserts the lease that a hold has. The leases of these tests differ by minutes, so no timing decides.
#[track_caller]
fn assert_lease(conn: &mut Conn, key: &str, token: &str, ttl: i64) {
    let left = conn.ok(&format!("DLOCK.PTTL {key} {token}")).int();
    assert!((ttl - 60_000..=ttl).contains(&left), "{left} ms left, it should be a lease of {ttl}");
}

#[each_server]
fn acquire_returns_a_rising_fence_that_follows_the_clock(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    let mut micros = || {
        let time = conn.ok("TIME");
        let [seconds, micros] = [0, 1].map(|at| time.items()[at].text().parse::<i64>().unwrap());
        seconds * 1_000_000 + micros
    };
    let before = micros();
    let first = granted(server.connect().ok("DLOCK.ACQUIRE a t 60000"));
    let after = micros();
    // The server clock is anchored to the millisecond.
    assert!((before - 2_000..=after + 2_000).contains(&first), "{before} {first} {after}");

    let mut last = first;
    for command in ["DLOCK.ACQUIRE b t 60000", "DLOCK.ACQUIRE c u 60000"] {
        let fence = granted(conn.ok(command));
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
    assert_eq!(conn.ok("DLOCK.RELEASE a t"), 1);
    let again = granted(conn.ok("DLOCK.ACQUIRE a t 60000"));
    assert!(again > last, "a new hold of the same token has a new fence: {again} after {last}");
}

#[each_server]
fn a_token_has_up_to_255_bytes_and_is_compared_whole(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    let long = [b'x'; 255];
    let tokens: [&[u8]; 6] = [b"a", b"A", b"a\0", b"\0\r\n\xff\x80", b" ", &long];
    for holder in tokens {
        granted(conn.call(&[b"DLOCK.ACQUIRE", &b"k"[..], holder, b"600000"]));
        for other in tokens.iter().filter(|other| **other != holder) {
            assert_eq!(conn.call(&[b"DLOCK.ACQUIRE", &b"k"[..], other, b"600000"]), Value::Nil);
            assert_eq!(conn.call(&[b"DLOCK.HOLDS", &b"k"[..], other]), 0);
            assert_eq!(conn.call(&[b"DLOCK.RELEASE", &b"k"[..], other]), 0);
            assert_eq!(conn.call(&[b"DLOCK.EXTEND", &b"k"[..], other, b"1"]), 0);
        }
        let lock = conn.ok("DLOCK.INSPECT k");
        assert_eq!(lock.field("holders").items()[0].field("token").bytes(), holder);
        assert_eq!(conn.call(&[b"DLOCK.RELEASE", &b"k"[..], holder]), 1);
    }
    for token in [&b""[..], &[b'x'; 256]] {
        let refused = conn.call(&[b"DLOCK.ACQUIRE", &b"k"[..], token, b"600000"]);
        assert_eq!(refused.error(), "ERR a token has 1 to 255 bytes, DLOCK.TOKEN makes one");
    }
    assert_eq!(conn.ok("EXISTS k"), 0);
}

#[each_server]
fn a_label_has_up_to_255_bytes_and_the_last_one_stays(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    let mut ask = |label: &[u8]| {
        let answer = conn.call(&[b"DLOCK.ACQUIRE", &b"k"[..], b"t", b"600000", b"LABEL", label]);
        let lock = conn.ok("DLOCK.INSPECT k");
        let shown = if lock.is_nil() {
            Vec::new()
        } else {
            lock.field("holders").items()[0].field("label").bytes().to_vec()
        };
        (answer, shown)
    };
    let (refused, shown) = ask(&[b'l'; 256]);
    assert_eq!((refused.error(), shown), ("ERR a label has at most 255 bytes", Vec::new()));
    assert_eq!(ask(&[b'l'; 255]).1, [b'l'; 255]);
    assert_eq!(ask(b"\0\xff host 7").1, b"\0\xff host 7");
    // A request without a label leaves the one that is there.
    assert_eq!(ask(b"").1, b"\0\xff host 7");
}

#[each_server]
fn confirm_of_a_higher_fence_raises_the_hold_and_the_counter(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    let first = granted(conn.ok("DLOCK.ACQUIRE k t 600000"));
    // Ahead of the clock by less than the skew bound of 10 s.
    let raised = first + 5_000_000;
    let confirm = format!("DLOCK.CONFIRM k t {raised} 3600000");
    assert_eq!(conn.ok(&confirm), raised);
    assert_lease(&mut conn, "k", "t", 3_600_000);
    assert_eq!(conn.ok("DLOCK.INSPECT k").field("fence"), &raised);
    assert_eq!(server.info("dlock_fence"), raised.to_string());
    assert_eq!(conn.ok(&confirm), raised, "sent again it answers the same");
    // A retry of the ACQUIRE belongs to the same hold.
    assert_eq!(conn.ok("DLOCK.ACQUIRE k t 600000"), raised);
    assert_eq!(conn.ok("DLOCK.ACQUIRE other t 600000"), raised + 1);
}

/// The age was once derived from the fence, so a raised fence gave a grant in the future.
#[each_server]
fn confirm_keeps_the_age_of_the_hold(kind: &ServerKind) {
    let options = |kind| Server::options(kind).conf("appendonly yes").conf("appendfsync always");
    let (mut server, replica) = (options(kind).start(), Server::start(kind));
    replica.replicate(&server);
    let mut conn = server.connect();
    let fence = granted(conn.ok("DLOCK.ACQUIRE k t 600000"));
    let held = |server: &Server| {
        server.connect().ok("DLOCK.INSPECT k").field("holders").items()[0].field("held").int()
    };
    until("it is 30 ms old", || held(&server) >= 30);
    let raised = fence + 9_000_000;
    assert_eq!(conn.ok(&format!("DLOCK.CONFIRM k t {raised} 3600000")), raised);
    let age = held(&server);
    assert!(age >= 30, "{age}");
    replica.wait_in_sync(&server);
    assert!(held(&replica) >= age, "its replica knows");
    server.kill9();
    server.restart();
    assert!(held(&server) >= age, "a restart knows");
    assert_eq!(server.connect().ok("DLOCK.RELEASE k t"), 1);
    let longest: i64 = server.info("dlock_held_ms_max").parse().expect("a number");
    assert!((age..60_000).contains(&longest), "{longest}");
}

#[each_server]
fn confirm_refuses_a_fence_beyond_the_skew_bound_and_changes_no_fence(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    let fence = granted(conn.ok("DLOCK.ACQUIRE k t 600000"));
    // A minute ahead, and the greatest possible fence.
    for ahead in [fence + 60_000_000, (1 << 53) - 1] {
        let refused = conn.say(&format!("DLOCK.CONFIRM k t {ahead} 3600000"));
        let words = refused.error().to_string();
        assert!(words.starts_with("FENCEAHEAD the fence lies "), "{words}");
        assert!(words.contains(" beyond the 10000 ms "), "{words}");
    }
    assert_eq!(server.info("dlock_fence"), fence.to_string());
    assert_lease(&mut conn, "k", "t", 600_000);
    assert_eq!(conn.ok("DLOCK.ACQUIRE k t 600000"), fence);
    assert_eq!(conn.ok(&format!("DLOCK.CONFIRM k t {fence} 600000")), fence);
}

/// INSPECT shows the address while the connection exists.
#[each_server]
fn inspect_shows_the_connection_of_each_hold(kind: &ServerKind) {
    let server = Server::start(kind);
    let (mut conn, mut look, mut holder) = (server.connect(), server.connect(), server.connect());
    granted(holder.ok("DLOCK.ACQUIRE k t 600000"));
    let mut seen = || {
        let lock = conn.ok("DLOCK.INSPECT k");
        let hold = &lock.field("holders").items()[0];
        (hold.field("client").int(), hold.field("addr").text())
    };
    let (client, addr) = seen();
    assert_eq!(client, holder.client_id());
    assert!(addr.starts_with("127.0.0.1:"), "{addr}");
    // The hold of a waiter belongs to the waiter's connection, not to the one that released.
    let mut waiter = server.connect();
    let waiting = waiter.client_id();
    waiter.send(&["DLOCK.ACQUIRE", "k", "w", "600000", "BLOCK", "0"]);
    until("it waits", || !look.ok("DLOCK.WAITERS k").items().is_empty());
    holder.ok("DLOCK.RELEASE k t");
    granted(waiter.read());
    assert_eq!(seen().0, waiting);
    drop(waiter);
    until("the connection is gone", || seen() == (0, String::new()));
}

#[each_server]
fn reads_change_nothing(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    granted(conn.ok("DLOCK.ACQUIRE k t 600000"));
    let dirty = server.info("rdb_changes_since_last_save");
    for key in ["k", "free"] {
        for read in ["HOLDS {} t", "PTTL {}", "PTTL {} t", "INSPECT {}", "WAITERS {}"] {
            conn.ok(&format!("DLOCK.{}", read.replace("{}", key)));
        }
    }
    assert_eq!(conn.ok("EXISTS free"), 0);
    assert_eq!(server.info("rdb_changes_since_last_save"), dirty);
    assert_lease(&mut conn, "k", "t", 600_000);
}

#[each_server]
fn inspect_and_waiters_show_at_most_1000_entries(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    conn.hello3();
    let fill = "for n = 1, 1500 do redis.call('DLOCK.ACQUIRE', 'k', 'token:' .. n, '600000', 'SHARED') end";
    assert!(conn.call(&["EVAL", fill, "0"]).is_nil());
    conn.ok("CONFIG SET dlock.max-waiters-per-key 2000");
    let queue =
        "for n = 1, 1500 do redis.call('DLOCK.ACQUIRE', 'k', 'w' .. n, '600000', 'QUEUE', '600000') end";
    assert!(conn.call(&["EVAL", queue, "0"]).is_nil());
    let cases = [
        ("", 1000),
        (" COUNT 1", 1),
        (" count 999", 999),
        (" COUNT 1200", 1000),
        (" COUNT 2147483647", 1000),
    ];
    for (ask, shown) in cases {
        assert_eq!(conn.ok(&format!("DLOCK.WAITERS k{ask}")).items().len(), shown, "{ask}");
        let lock = conn.ok(&format!("DLOCK.INSPECT k{ask}"));
        let tokens: HashSet<String> =
            lock.field("holders").items().iter().map(|hold| hold.field("token").text()).collect();
        assert_eq!((tokens.len(), lock.field("holders-count")), (shown, &1500.into()), "{ask}");
    }
    assert_eq!(conn.ok("DLOCK.INSPECT none COUNT 5"), Value::Nil);
    for wrong in ["COUNT", "COUNT 0", "COUNT x", "COUNT 1 COUNT 2", "MOST 1"] {
        assert!(conn.say(&format!("DLOCK.INSPECT k {wrong}")).error().starts_with("ERR"), "{wrong}");
    }
}

#[each_server]
fn token_returns_27_fresh_url_safe_characters(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    let mut seen = HashSet::new();
    for _ in 0..100 {
        let token = conn.ok("DLOCK.TOKEN").text();
        let url_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        assert!(token.len() == 27 && token.bytes().all(url_safe), "{token}");
        assert!(seen.insert(token), "the same token twice");
    }
    let token = seen.into_iter().next().expect("there are a hundred");
    granted(conn.ok(&format!("DLOCK.ACQUIRE k {token} 600000")));
    // A token of this length is stored inline.
    granted(conn.ok("DLOCK.ACQUIRE s t 600000"));
    assert_eq!(conn.ok("MEMORY USAGE k"), conn.ok("MEMORY USAGE s"));
}

/// Runs a command with a key inside a script.
#[track_caller]
fn script(conn: &mut Conn, command: &str) -> Value {
    let words: Vec<&str> = command.split(' ').collect();
    let text = "return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))";
    conn.call(&[&["EVAL", text, "1", words[1], words[0]], &words[2..]].concat())
}

/// Valkey 9 finds internal clients by their id too, and crashed when asked for the address of one.
#[each_server]
fn holds_granted_without_a_connection_show_no_address(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
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
        // The server sends a push before the reply to this command.
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
    let (_server, mut conn) = Server::connected(kind);
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
