//! Behaviour of the commands that the data in `conformance/` cannot show: how fences follow the clock,
//! arbitrary bytes, connections, WATCH, client-side caching, long replies, and a server out of memory.

use std::collections::HashSet;
use std::time::Duration;

use dlock_testkit::queue::{clients, first_hold, granted, waiter};
use dlock_testkit::wall_clock::micros;
use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, until};

#[each_server]
fn a_fence_follows_the_clock(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    let before = micros(&mut conn);
    let fence = conn.ok("DLOCK.ACQUIRE k t 60000").int();
    let after = micros(&mut conn);
    // A fence is the time of the server clock in µs, rounded to whole ms. The server clock is the boot-time
    // clock plus an offset, which is also rounded to whole ms. So a fence is up to 2 ms off the wall clock.
    assert!((before - 2_000..=after + 2_000).contains(&fence), "fence {fence} between {before} and {after}");
}

#[each_server]
fn tokens_and_labels_may_contain_any_bytes_and_tokens_are_compared_whole(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    let long = [b'x'; 255];
    let tokens: [&[u8]; 6] = [b"a", b"A", b"a\0", b"\0\r\n\xff\x80", b" ", &long];
    for holder in tokens {
        let request = [b"DLOCK.ACQUIRE", &b"k"[..], holder, b"600000", b"LABEL", holder];
        assert!(conn.call(&request).int() > 0);
        for other in tokens.iter().filter(|other| **other != holder) {
            assert_eq!(conn.call(&[b"DLOCK.ACQUIRE", &b"k"[..], other, b"600000"]), Value::Nil);
            assert_eq!(conn.call(&[b"DLOCK.HOLDS", &b"k"[..], other]), 0);
            assert_eq!(conn.call(&[b"DLOCK.RELEASE", &b"k"[..], other]), 0);
            assert_eq!(conn.call(&[b"DLOCK.EXTEND", &b"k"[..], other, b"1"]), 0);
        }
        let hold = first_hold(&mut conn, "k");
        assert_eq!((hold.field("token").bytes(), hold.field("label").bytes()), (holder, holder));
        assert_eq!(conn.call(&[b"DLOCK.RELEASE", &b"k"[..], holder]), 1);
    }
}

/// The age used to be derived from the fence, so a raised fence put the grant in the future.
#[each_server]
fn confirm_keeps_the_age_of_the_hold(kind: &ServerKind) {
    let mut server = Server::options(kind).synced().start();
    let mut conn = server.connect();
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
    let age = |conn: &mut Conn| first_hold(conn, "k").field("held").int();
    until("the hold is 30 ms old", || age(&mut conn) >= 30);
    let raised = fence + 9_000_000;
    assert_eq!(conn.ok(&format!("DLOCK.CONFIRM k t {raised} 3600000")), raised);
    let before = age(&mut conn);
    assert!(before >= 30, "{before}");
    let mut conn = server.kill_and_restart();
    assert!(age(&mut conn) >= before, "the age survives the restart");
    assert_eq!(conn.ok("DLOCK.RELEASE k t"), 1);
    let longest = server.number("dlock_held_ms_max");
    assert!((before..60_000).contains(&longest), "{longest}");
}

/// INSPECT shows the address while the connection exists.
#[each_server]
fn inspect_shows_the_connection_of_each_hold(kind: &ServerKind) {
    let server = Server::start(kind);
    let (mut conn, mut holder) = (server.connect(), server.connect());
    assert!(holder.ok("DLOCK.ACQUIRE k t 600000").int() > 0);
    let connection = |conn: &mut Conn| {
        let hold = first_hold(conn, "k");
        (hold.field("client").int(), hold.field("addr").text())
    };
    let (client, addr) = connection(&mut conn);
    assert_eq!(client, holder.client_id());
    assert!(addr.starts_with("127.0.0.1:"), "{addr}");
    // The hold of a waiter belongs to the waiter's connection, not to the connection that released the lock.
    let mut waiter = waiter(&server, "DLOCK.ACQUIRE k w 600000 BLOCK 0");
    let waiter_id = clients(&mut conn, "k")[0];
    holder.ok("DLOCK.RELEASE k t");
    granted(&mut waiter);
    assert_eq!(connection(&mut conn).0, waiter_id);
    drop(waiter);
    until("INSPECT shows no address", || connection(&mut conn) == (0, String::new()));
}

#[each_server]
fn inspect_and_waiters_show_at_most_1000_entries(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    conn.hello3();
    conn.ok("CONFIG SET dlock.max-waiters-per-key 2000");
    for (prefix, options) in [("holder", "'SHARED'"), ("waiter", "'QUEUE', 600000")] {
        let many = "for n = 1, 1500 do redis.call('DLOCK.ACQUIRE', 'k', ARGV[1] .. n, 600000, OPTIONS) end";
        assert!(conn.call(&["EVAL", &many.replace("OPTIONS", options), "0", prefix]).is_nil());
    }
    for (count, shown) in
        [("", 1000), (" COUNT 1", 1), (" count 999", 999), (" COUNT 1200", 1000), (" COUNT 2147483647", 1000)]
    {
        assert_eq!(conn.ok(&format!("DLOCK.WAITERS k{count}")).items().len(), shown, "{count}");
        let lock = conn.ok(&format!("DLOCK.INSPECT k{count}"));
        let tokens: HashSet<String> =
            lock.field("holders").items().iter().map(|hold| hold.field("token").text()).collect();
        assert_eq!((tokens.len(), lock.field("holders-count")), (shown, &1500.into()), "{count}");
    }
}

/// Scripts and guarded commands run on an internal client of the server, which has an id but no connection.
/// INSPECT shows 0 instead of this id, and DLOCK.LOG shows no address.
/// Valkey 9 used to crash when the module asked for the address of that client.
#[each_server]
fn holds_granted_without_a_connection_show_no_address(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    let client = |inspected: Value| inspected.field("holders").items()[0].field("client").int();
    let script = |conn: &mut Conn, command: &str| {
        let words: Vec<&str> = command.split(' ').collect();
        conn.call(&[&["EVAL", "return redis.pcall(unpack(ARGV))", "1", words[1]], &words[..]].concat())
    };
    assert!(script(&mut conn, "DLOCK.ACQUIRE k t 600000").int() > 0);
    assert_eq!(client(script(&mut conn, "DLOCK.INSPECT k")), 0);
    assert_eq!(client(conn.ok("DLOCK.INSPECT k")), 0);
    assert!(conn.ok("DLOCK.GUARD k t DLOCK.ACQUIRE l u 600000").int() > 0);
    assert_eq!(client(conn.ok("DLOCK.GUARD k t DLOCK.INSPECT l")), 0);
    assert!(conn.ok("DLOCK.ACQUIRE l t 600000 QUEUE 600000").is_nil());
    let refused = script(&mut conn, "DLOCK.ACQUIRE k u 1 QUEUE 600000");
    assert!(refused.error().starts_with("DEADLOCK"), "{refused:?}");
    assert_eq!(script(&mut conn, "DLOCK.BREAK k"), 1);
    let log = conn.ok("DLOCK.LOG");
    let logged = |entry: &Value| (entry.field("what").text(), entry.field("address").text());
    assert_eq!(
        log.items().iter().map(logged).collect::<Vec<_>>(),
        [("broken".into(), "".into()), ("deadlock".into(), "".into())]
    );
}

#[each_server]
fn watch_and_client_side_caching_report_only_changes(kind: &ServerKind) {
    let server = Server::start(kind);
    let [mut watcher, mut cache, mut other] = [(); 3].map(|()| server.connect());
    cache.hello3();
    cache.ok("CLIENT TRACKING ON");
    let push = Value::Push(vec!["invalidate".into(), vec!["k"].into()]);
    for (command, changes) in [
        ("DLOCK.RELEASE k t", false),
        ("DLOCK.ACQUIRE k t 600000", true),
        ("DLOCK.ACQUIRE k other 600000", false),
        ("DLOCK.RELEASE k other", false),
        ("DLOCK.EXTEND k other 600000", false),
        ("DLOCK.CONFIRM k other 1 600000", false),
        ("DLOCK.CONFIRM k t 1 600000", false),
        ("DLOCK.INSPECT k", false),
        ("DLOCK.ACQUIRE k t 600000 REENTRANT", true),
        ("DLOCK.EXTEND k t 3600000", true),
        ("DLOCK.ACQUIRE k t 600000 DEPTH 3", true),
        ("DLOCK.ACQUIRE k t 600000 DEPTH 3", false),
        ("DLOCK.RELEASE k t", true),
        ("DLOCK.RELEASE k t ALL", true),
        ("DLOCK.RELEASE k t ALL", false),
        ("DLOCK.ACQUIRE k t 600000", true),
        ("DLOCK.BREAK k", true),
        ("DLOCK.BREAK k", false),
    ] {
        watcher.ok("WATCH k");
        cache.ok("DLOCK.HOLDS k t");
        other.ok(command);
        watcher.ok("MULTI");
        watcher.ok("PING");
        assert_eq!(watcher.ok("EXEC").is_nil(), changes, "{command}");
        // The server sends a push before the reply to this command.
        assert_eq!(cache.ok("PING"), "PONG");
        assert_eq!(cache.try_read(Duration::ZERO), changes.then(|| push.clone()), "{command}");
    }
}

#[each_server]
fn acquire_is_refused_and_holds_can_be_extended_and_ended_when_memory_is_full(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    for key in ["a", "b", "c"] {
        conn.ok(&format!("DLOCK.ACQUIRE {key} t 600000 DEPTH 3"));
    }
    let fence = first_hold(&mut conn, "a").field("fence").int();
    conn.ok("CONFIG SET maxmemory 1");
    for command in [
        "DLOCK.ACQUIRE new t 600000",
        "DLOCK.ACQUIRE a t 600000",
        "DLOCK.ACQUIRE a t 600000 BLOCK 0",
        "DLOCK.ACQUIRE a u 600000 BLOCK 0",
    ] {
        assert!(conn.say(command).error().starts_with("OOM "), "{command}");
    }
    assert_eq!(first_hold(&mut conn, "a").field("fence"), &fence);
    for (command, reply) in [
        ("DLOCK.HOLDS a t", 3),
        ("DLOCK.EXTEND a t 3600000", 1),
        (&format!("DLOCK.CONFIRM a t {fence} 600000"), fence),
        ("DLOCK.RELEASE a t ALL", 3),
        ("DLOCK.BREAK b", 1),
        ("DLOCK.CANCEL c t", 0),
    ] {
        assert_eq!(conn.ok(command), reply, "{command}");
    }
    conn.ok("CONFIG SET maxmemory 0");
    assert!(conn.ok("DLOCK.ACQUIRE new t 600000").int() > 0);
}
