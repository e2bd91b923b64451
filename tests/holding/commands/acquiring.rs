//! DLOCK.ACQUIRE: who gets the lock, which fence, which lease, which count.

use super::{assert_lease, granted, state};
use dlock_testkit::{Server, ServerKind, Value, each_server};

#[each_server]
fn acquire_returns_a_rising_fence_that_follows_the_clock(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
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
fn acquire_returns_null_and_changes_nothing_when_another_token_holds(kind: &ServerKind) {
    let server = Server::start(kind);
    let (mut ann, mut bob) = (server.connect(), server.connect());
    granted(ann.ok("DLOCK.ACQUIRE k ann 600000 LABEL first"));
    let before = state(&mut ann, "k");
    assert_eq!(bob.ok("DLOCK.ACQUIRE k bob 3600000 LABEL second"), Value::Nil);
    assert_eq!(state(&mut ann, "k"), before);
    assert_lease(&mut ann, "k", "ann", 600_000);

    bob.hello3();
    assert_eq!(bob.ok("DLOCK.ACQUIRE k bob 3600000"), Value::Nil);
    assert_eq!(bob.ok("DLOCK.HOLDS k bob"), 0);
    assert_eq!(ann.ok("DLOCK.RELEASE k ann"), 1);
    granted(bob.ok("DLOCK.ACQUIRE k bob 3600000"));
}

#[each_server]
fn acquire_sent_again_after_a_lost_reply_keeps_one_hold(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    let fence = granted(conn.ok("DLOCK.ACQUIRE k t 600000"));
    let before = state(&mut conn, "k");
    // From another connection too: the token holds, not the connection.
    assert_eq!(server.connect().ok("DLOCK.ACQUIRE k t 600000"), fence);
    assert_eq!(conn.ok("DLOCK.ACQUIRE k t 600000"), fence);
    assert_eq!(state(&mut conn, "k"), before);
    assert_eq!(conn.ok("DLOCK.HOLDS k t"), 1);
    assert_eq!(conn.ok("DLOCK.RELEASE k t"), 1);
    assert_eq!(conn.ok("DLOCK.HOLDS k t"), 0);
}

#[each_server]
fn acquire_by_the_holder_keeps_the_longer_lease(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    granted(conn.ok("DLOCK.ACQUIRE k t 600000"));
    conn.ok("DLOCK.ACQUIRE k t 1000");
    assert_lease(&mut conn, "k", "t", 600_000);
    conn.ok("DLOCK.ACQUIRE k t 3600000");
    assert_lease(&mut conn, "k", "t", 3_600_000);
}

#[each_server]
fn ttl_max_is_the_longest_lease_that_the_server_grants(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    let fence = granted(conn.ok("DLOCK.ACQUIRE k t MAX"));
    assert_lease(&mut conn, "k", "t", 86_400_000);
    conn.ok("CONFIG SET dlock.max-ttl 7200000");
    assert_eq!(conn.ok("DLOCK.EXTEND k t max"), 1);
    assert_lease(&mut conn, "k", "t", 7_200_000);
    conn.ok("CONFIG SET dlock.max-ttl 3600000");
    assert_eq!(conn.ok(&format!("DLOCK.CONFIRM k t {fence} Max")), fence);
    assert_lease(&mut conn, "k", "t", 3_600_000);
    for no_ttl in ["MAXIMUM", "MA", "MAX1", "-MAX"] {
        let refused = conn.say(&format!("DLOCK.EXTEND k t {no_ttl}"));
        assert!(refused.error().starts_with("ERR ttl must be"), "{no_ttl}");
    }
}

#[each_server]
fn reentrant_counts_up_by_one_and_depth_up_to_n(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    let fence = granted(conn.ok("DLOCK.ACQUIRE k t 600000 REENTRANT"));
    let steps = [
        ("REENTRANT", 2),
        ("REENTRANT", 3),
        ("DEPTH 3", 3),
        ("DEPTH 5", 5),
        ("DEPTH 5", 5),
        ("DEPTH 2", 5),
        ("", 5),
        ("DEPTH 2147483647", i32::MAX.into()),
    ];
    assert_eq!(conn.ok("DLOCK.HOLDS k t"), 1);
    for (option, count) in steps {
        assert_eq!(conn.ok(&format!("DLOCK.ACQUIRE k t 600000 {option}")), fence, "{option}");
        assert_eq!(conn.ok("DLOCK.HOLDS k t"), count, "after {option}");
    }
    let full = conn.say("DLOCK.ACQUIRE k t 3600000 REENTRANT");
    assert_eq!(full.error(), "ERR the hold count has reached its maximum: release some first");
    assert_eq!(conn.ok("DLOCK.HOLDS k t"), i64::from(i32::MAX));
    assert_lease(&mut conn, "k", "t", 600_000);

    granted(conn.ok("DLOCK.ACQUIRE deep t 600000 DEPTH 4"));
    assert_eq!(conn.ok("DLOCK.HOLDS deep t"), 4);
    assert_eq!(conn.ok("DLOCK.ACQUIRE deep u 600000 REENTRANT"), Value::Nil);
    assert_eq!(conn.ok("DLOCK.ACQUIRE deep u 600000 DEPTH 9"), Value::Nil);
    assert_eq!(conn.ok("DLOCK.HOLDS deep t"), 4);
}

#[each_server]
fn options_are_read_in_any_case_and_order(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    granted(conn.ok("dlock.acquire a t 600000 label Host-1 depth 3"));
    granted(conn.ok("DLock.Acquire b t 600000 DePtH 3 LaBeL Host-1"));
    for key in ["a", "b"] {
        let lock = conn.ok(&format!("DLOCK.INSPECT {key}"));
        let hold = &lock.field("holders").items()[0];
        assert_eq!(hold.field("count"), &3);
        // What is no word of ours keeps its case.
        assert_eq!(hold.field("label"), &"Host-1");
    }
    // A value that reads like an option is a value.
    granted(conn.ok("DLOCK.ACQUIRE c t 600000 LABEL reentrant DEPTH 2"));
}

#[each_server]
fn a_token_has_up_to_255_bytes_and_is_compared_whole(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
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
    let server = Server::start(kind);
    let mut conn = server.connect();
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
fn acquire_uses_the_selected_database(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    for key in [&b""[..], b"\0\xff", &[b'k'; 3000]] {
        granted(conn.call(&[&b"DLOCK.ACQUIRE"[..], key, b"t", b"600000"]));
        assert_eq!(conn.call(&[&b"DLOCK.HOLDS"[..], key, b"t"]), 1);
        assert_eq!(conn.call(&[&b"TYPE"[..], key]), "dlock-key");
    }
    assert_eq!(conn.ok("DBSIZE"), 3);

    granted(conn.ok("DLOCK.ACQUIRE k zero 600000"));
    conn.ok("SELECT 9");
    assert_eq!(conn.ok("DLOCK.HOLDS k zero"), 0);
    granted(conn.ok("DLOCK.ACQUIRE k nine 600000"));
    assert_eq!(conn.ok("DLOCK.RELEASE k zero"), 0);
    conn.ok("SELECT 0");
    assert_eq!(conn.ok("DLOCK.RELEASE k nine"), 0);
    assert_eq!(conn.ok("DLOCK.RELEASE k zero"), 1);
    conn.ok("SELECT 9");
    assert_eq!(conn.ok("DLOCK.HOLDS k nine"), 1);
}

#[each_server]
fn acquire_accepts_a_ttl_from_1_to_max_ttl(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    let fence = granted(conn.ok("DLOCK.ACQUIRE k t 86400000"));
    let refusal = |max: &str| {
        format!(
            "ERR ttl must be a whole number of milliseconds from 1 to {max} (dlock.max-ttl, or a shorter dlock.restart-grace)"
        )
    };
    let no_ttls =
        ["0", "86400001", "-1", "+5", "05", "1.0", "1e3", "0x10", "4294967296", "18446744073709551617", "x"];
    for ttl in no_ttls.into_iter().chain([" 5", "5 ", ""]) {
        for command in [&["DLOCK.ACQUIRE", "free", "t"][..], &["DLOCK.EXTEND", "k", "t"]] {
            let refused = conn.call(&[command, &[ttl]].concat());
            assert_eq!(refused.error(), refusal("86400000"), "{command:?} {ttl:?}");
        }
        let refused = conn.call(&["DLOCK.CONFIRM", "k", "t", &fence.to_string(), ttl]);
        assert_eq!(refused.error(), refusal("86400000"), "CONFIRM {ttl:?}");
    }
    assert_eq!(conn.ok("EXISTS free"), 0);
    assert_lease(&mut conn, "k", "t", 86_400_000);

    // The shortest lease is granted; whether it has expired already when the answer comes is not the
    // question.
    granted(conn.ok("DLOCK.ACQUIRE short t 1"));

    assert_eq!(conn.ok("CONFIG SET dlock.max-ttl 300000"), "OK");
    assert_eq!(conn.say("DLOCK.ACQUIRE free t 300001").error(), refusal("300000"));
    assert_eq!(conn.say("DLOCK.EXTEND k t 300001").error(), refusal("300000"));
    granted(conn.ok("DLOCK.ACQUIRE free t 300000"));
    // What was granted before stays.
    assert_lease(&mut conn, "k", "t", 86_400_000);
    assert_eq!(conn.ok("DLOCK.EXTEND k t 300000"), 1);
    assert_lease(&mut conn, "k", "t", 300_000);
}
