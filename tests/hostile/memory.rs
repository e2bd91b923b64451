//! Requests that try to fill the memory.

use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, until};

/// Variation of used memory, in bytes, by connections and the allocator.
const NOISE: i64 = 2 << 20;

#[track_caller]
fn assert_refused(conn: &mut Conn, words: &[&[u8]]) {
    let answer = conn.call(words);
    assert!(answer.error().starts_with("ERR"), "{answer:?}");
    assert!(answer.error().len() < 300, "an error does not repeat a long argument: {answer:?}");
}

#[each_server]
fn refused_requests_leave_no_state(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    let long = vec![b'x'; 300_000];
    let many: Vec<&[u8]> = std::iter::repeat_n(&b"SHARED"[..], 50_000).collect();
    let round = |conn: &mut Conn| {
        assert_refused(conn, &[b"DLOCK.ACQUIRE", b"k", &long, b"600000"]);
        assert_refused(conn, &[b"DLOCK.ACQUIRE", b"k", b"t", &long]);
        assert_refused(conn, &[b"DLOCK.ACQUIRE", b"k", b"t", b"600000", b"LABEL", &long]);
        assert_refused(conn, &[b"DLOCK.ACQUIRE", b"k", b"t", b"600000", &long]);
        assert_refused(conn, &[&[&b"DLOCK.ACQUIRE"[..], b"k", b"t", b"600000"], many.as_slice()].concat());
        assert_refused(conn, &[b"DLOCK.RELEASE", b"k", &long]);
        assert_refused(conn, &[b"DLOCK.CANCEL", b"k", &long]);
        assert_refused(conn, &[b"DLOCK.CONFIRM", b"k", b"t", &long, b"600000"]);
        assert_refused(conn, &[b"DLOCK.WAITERS", b"k", b"COUNT", &long]);
    };
    round(&mut conn);
    let before = server.number("used_memory");
    for _ in 0..30 {
        round(&mut conn);
    }
    until("the memory is freed", || server.number("used_memory") < before + NOISE);
    assert_eq!(conn.ok("DBSIZE"), 0);
}

/// Ends the hold in each way that leaves its connection open.
#[each_server]
fn an_ended_ephemeral_hold_leaves_no_state(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    let mut round = |end: &str, holds: usize| {
        for n in 0..holds {
            // Keys of 1,000 bytes: 5,000 ended holds that left their keys in memory would take 5 MB.
            let key = format!("{n:01000}");
            let end = end.replace("KEY", &key);
            let answers = conn.say_together(&[&format!("DLOCK.ACQUIRE {key} t 600000 EPHEMERAL"), &end]);
            assert!(answers[0].int() > 0 && answers[1] != 0, "{end}: {answers:?}");
        }
    };
    for end in ["DLOCK.RELEASE KEY t", "DLOCK.BREAK KEY", "DEL KEY", "RENAME KEY renamed"] {
        round(end, 10);
        let before = server.number("used_memory");
        round(end, 5_000);
        until(&format!("the memory is freed after {end}"), || server.number("used_memory") < before + NOISE);
    }
}

#[each_server]
fn a_connection_has_one_wait_at_a_time(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    assert!(conn.ok("DLOCK.ACQUIRE k t 600000").int() > 0);
    let mut waiter = server.connect();
    let request = &["DLOCK.ACQUIRE", "k", "u", "600000", "BLOCK", "0"][..];
    waiter.send_batch(&[request; 500]);
    until("the client waits", || server.number("dlock_waiting") == 1);
    assert_eq!(conn.ok("DLOCK.WAITERS k").items().len(), 1);
    assert_eq!(conn.ok("DLOCK.RELEASE k t"), 1);
    let fence = waiter.read().int();
    for _ in 1..500 {
        assert_eq!(waiter.read(), fence, "the token already holds the lock");
    }
    assert_eq!(server.number("dlock_waiting"), 0);
}

#[each_server]
fn waiters_are_bounded_by_options_and_return_their_memory(kind: &ServerKind) {
    let options = ["dlock.max-waiters 60", "dlock.max-waiters-per-key 40"];
    let server = Server::options(kind).confs(&options).start();
    let mut conn = server.connect();
    assert!(conn.ok("DLOCK.ACQUIRE a t 600000").int() > 0);
    assert!(conn.ok("DLOCK.ACQUIRE b t 600000").int() > 0);
    let (token, label) = ("u".repeat(255), "l".repeat(255));
    let mut waiters: Vec<Conn> = (0..100).map(|_| server.connect()).collect();
    let before = server.number("used_memory");
    for (n, waiter) in waiters.iter_mut().enumerate() {
        let key = if n < 50 { "a" } else { "b" };
        waiter.send(&["DLOCK.ACQUIRE", key, &token, "600000", "BLOCK", "0", "LABEL", &label]);
    }
    // The queues take 40 waiters of one key and 20 of the other. The server refuses the rest.
    until("the server has read all requests", || server.number("dlock_queue_refusals") == 40);
    assert_eq!(server.number("dlock_waiting"), 60);
    // For each waiter, the server creates two internal clients with buffers of 16 KB.
    let grown = server.number("used_memory") - before;
    assert!(grown < 60 * 60_000 + NOISE, "{grown} bytes for 60 waiters");
    for key in ["a", "b"] {
        assert!(conn.ok(&format!("DLOCK.CANCEL {key} {token}")).int() >= 20);
    }
    let mut refusals = 0;
    for waiter in &mut waiters {
        match waiter.read() {
            Value::Nil => {}
            Value::Error(line) => {
                assert!(line.starts_with("QUEUEFULL"), "{line}");
                refusals += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(refusals, 40);
    waiters.clear();
    // The server keeps the internal clients for reuse.
    until("the memory is freed", || server.number("used_memory") < before + 60 * 40_000 + NOISE);
    assert_eq!(server.number("dlock_waiting"), 0);
}
