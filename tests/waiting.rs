//! Waiting in line: first come first served, handed over in the step that frees the lock, one outcome for each.

use dlock_testkit::queue::{clients, granted, holders, nobody_waits, tokens, waiter};
use dlock_testkit::{Events, Server, Stream, Value, each_server, until};

#[test]
fn the_lock_is_handed_to_the_next_in_line() {
    each_server(|kind| {
        let server = Server::start(kind);
        let mut a = server.connect();
        let first = a.ok("DLOCK.ACQUIRE k a 30000").int();
        let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
        let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 BLOCK 10000");
        assert_eq!(tokens(&mut a, "k"), ["b", "c"]);
        assert_eq!(a.say("DLOCK.RELEASE k a"), 1);
        let second = granted(&mut b);
        assert_eq!(holders(&mut a, "k"), ["b"]);
        assert_eq!(tokens(&mut a, "k"), ["c"]);
        assert_eq!(b.say("DLOCK.RELEASE k b"), 1);
        let third = granted(&mut c);
        assert!(first < second && second < third);
        assert_eq!(c.say("DLOCK.RELEASE k c"), 1);
        assert_eq!(a.say("EXISTS k"), 0);
        nobody_waits(&server);
        assert_eq!(server.info("dlock_handoffs"), "2");
    });
}

#[test]
fn a_newcomer_never_overtakes_the_line() {
    each_server(|kind| {
        let server = Server::start(kind);
        let mut a = server.connect();
        a.ok("DLOCK.ACQUIRE k a 30000 SHARED");
        let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
        // A sharer would fit beside a, but b waits.
        assert_eq!(a.say("DLOCK.ACQUIRE k c 30000 SHARED"), Value::Nil);
        let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 SHARED BLOCK 0");
        let mut d = waiter(&server, "DLOCK.ACQUIRE k d 30000 SHARED BLOCK 0");
        // In one batch with the release: the lock is b's before the newcomer is read.
        let mut e = server.connect();
        e.send_batch(&[&["DLOCK.RELEASE", "k", "a"], &["DLOCK.ACQUIRE", "k", "e", "30000"]]);
        assert_eq!((e.read(), e.read()), (1.into(), Value::Nil));
        granted(&mut b);
        assert_eq!(b.say("DLOCK.RELEASE k b"), 1);
        // Sharers in a row are let in together.
        assert!(granted(&mut c) < granted(&mut d));
        assert_eq!(holders(&mut a, "k"), ["c", "d"]);
    });
}

#[test]
fn a_wait_ends_when_its_time_is_over() {
    each_server(|kind| {
        let server = Server::start(kind);
        let mut a = server.connect();
        a.ok("DLOCK.ACQUIRE k a 30000");
        let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 60");
        let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 BLOCK 0");
        assert_eq!(b.read(), Value::Nil);
        assert_eq!(tokens(&mut a, "k"), ["c"]);
        assert_eq!(server.info("dlock_timeouts"), "1");
        assert_eq!(b.say("PING"), "PONG");
        a.ok("DLOCK.RELEASE k a");
        granted(&mut c);
    });
}

/// Deterministic: the server sleeps past the limit in the same batch as the release, so both are due at once.
#[test]
fn whose_time_is_over_is_never_granted() {
    each_server(|kind| {
        let server = Server::start(kind);
        let mut a = server.connect();
        a.ok("DLOCK.ACQUIRE k a 30000");
        let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 300");
        let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 BLOCK 0");
        a.send_batch(&[&["DEBUG", "SLEEP", "0.4"][..], &["DLOCK.RELEASE", "k", "a"]]);
        assert_eq!(a.read(), "OK");
        assert_eq!(a.read(), 1);
        assert_eq!(b.read(), Value::Nil);
        granted(&mut c);
        assert_eq!(b.say("PING"), "PONG");
    });
}

#[test]
fn a_lease_that_ends_hands_over() {
    each_server(|kind| {
        let server = Server::options(kind).conf("notify-keyspace-events Kd").start();
        let mut a = server.connect();
        let mut events = Events::subscribe(&server, "__keyspace@0__:k");
        let first = a.ok("DLOCK.ACQUIRE k a 150").int();
        let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
        assert!(granted(&mut b) > first);
        assert_eq!(a.say("DLOCK.RELEASE k a"), 0);
        let told: Vec<String> = events.so_far().into_iter().map(|(_, event)| event).collect();
        assert_eq!(told, ["dlock.acquire", "dlock.expired", "dlock.acquire"], "never free in between");
    });
}

#[test]
fn release_takes_a_waiter_out_of_the_line() {
    each_server(|kind| {
        let server = Server::start(kind);
        let mut a = server.connect();
        a.ok("DLOCK.ACQUIRE k a 30000");
        let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
        assert_eq!(a.say("DLOCK.RELEASE k b"), 0);
        assert_eq!(b.read(), Value::Nil);
        assert_eq!(a.say("DLOCK.RELEASE k b"), 0);
        nobody_waits(&server);
        assert_eq!(holders(&mut a, "k"), ["a"]);
    });
}

/// Whoever leaves may have stood in the way of those behind.
#[test]
fn a_waiter_that_is_gone_makes_way() {
    each_server(|kind| {
        let server = Server::start(kind);
        let mut a = server.connect();
        a.ok("DLOCK.ACQUIRE k a 30000 SHARED");
        let b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
        let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 SHARED BLOCK 0");
        drop(b);
        granted(&mut c);
        let b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 50");
        let mut d = waiter(&server, "DLOCK.ACQUIRE k d 30000 SHARED BLOCK 0");
        granted(&mut d);
        assert_eq!(holders(&mut a, "k"), ["a", "c", "d"]);
        drop(b);
        nobody_waits(&server);
        assert_eq!(server.info("dlock_waiters_gone"), "1");
    });
}

#[test]
fn cancel_by_token_and_by_client() {
    each_server(|kind| {
        let server = Server::start(kind);
        let mut a = server.connect();
        a.ok("DLOCK.ACQUIRE k a 30000 SHARED");
        let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
        let mut b2 = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
        let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 SHARED BLOCK 0");
        let mut d = waiter(&server, "DLOCK.ACQUIRE k d 30000 BLOCK 0");
        let last = clients(&mut a, "k")[3];
        assert_eq!(a.say("DLOCK.CANCEL k nobody"), 0);
        assert_eq!(a.say(&format!("DLOCK.CANCEL other CLIENT {last}")), 0);
        assert_eq!(a.say(&format!("DLOCK.CANCEL k CLIENT {last}")), 1);
        assert_eq!(d.read(), Value::Nil);
        assert_eq!(a.say("DLOCK.CANCEL k b"), 2);
        assert_eq!((b.read(), b2.read()), (Value::Nil, Value::Nil));
        // What stood in c's way is gone.
        granted(&mut c);
        assert_eq!(holders(&mut a, "k"), ["a", "c"]);
        assert_eq!(server.info("dlock_cancels"), "3");
    });
}

#[test]
fn waiters_and_inspect_show_the_line() {
    each_server(|kind| {
        let server = Server::start(kind);
        let mut a = server.connect();
        a.ok("DLOCK.ACQUIRE k a 30000");
        let _b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0 LABEL nightly");
        let _c = waiter(&server, "DLOCK.ACQUIRE k c 30000 SHARED BLOCK 20000");
        let _d = waiter(&server, "DLOCK.ACQUIRE k d 30000 PERMITS 2 BLOCK 20000");
        let line = a.ok("DLOCK.WAITERS k COUNT 2");
        let [b, c] = line.items() else { panic!("two were asked for: {line:?}") };
        assert_eq!((b.field("token"), b.field("mode")), (&"b".into(), &"exclusive".into()));
        assert_eq!((b.field("left"), b.field("label")), (&(-1).into(), &"nightly".into()));
        assert!(b.field("waited").int() >= 0 && b.field("client").int() > 0);
        assert_eq!((c.field("token"), c.field("mode")), (&"c".into(), &"shared".into()));
        assert!((1..=20000).contains(&c.field("left").int()));
        assert_eq!(a.ok("DLOCK.WAITERS k").items().len(), 3);
        assert_eq!(a.ok("DLOCK.INSPECT k").field("waiters"), &3);
        assert_eq!(server.info("dlock_waiting"), "3");
        assert_eq!(a.ok("DLOCK.WAITERS free").items().len(), 0);
        a.hello3();
        assert_eq!(a.ok("DLOCK.WAITERS k").items()[2].field("mode"), &"permits");
    });
}

#[test]
fn a_grant_answers_every_acquire_of_its_token() {
    each_server(|kind| {
        let server = Server::start(kind);
        let mut a = server.connect();
        a.ok("DLOCK.ACQUIRE k a 30000");
        let mut b1 = waiter(&server, "DLOCK.ACQUIRE k b 10000 BLOCK 0");
        let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 BLOCK 0");
        let mut b2 = waiter(&server, "DLOCK.ACQUIRE k b 20000 BLOCK 0");
        a.ok("DLOCK.RELEASE k a");
        assert_eq!(granted(&mut b1), granted(&mut b2));
        assert_eq!(a.say("DLOCK.HOLDS k b"), 1);
        assert!(a.ok("DLOCK.PTTL k b").int() > 10000, "the longer lease counts");
        assert_eq!(tokens(&mut a, "k"), ["c"]);
        a.ok("DLOCK.RELEASE k b");
        granted(&mut c);
    });
}

#[test]
fn block_is_one_try_in_transactions_and_scripts() {
    each_server(|kind| {
        let server = Server::start(kind);
        let mut a = server.connect();
        a.ok("DLOCK.ACQUIRE k a 30000");
        a.ok("MULTI");
        a.ok("DLOCK.ACQUIRE k b 30000 BLOCK 0");
        a.ok("DLOCK.ACQUIRE free b 30000 BLOCK 0");
        let done = a.ok("EXEC");
        assert_eq!(done.items()[0], Value::Nil);
        assert!(done.items()[1].int() > 0);
        let script = "return redis.call('DLOCK.ACQUIRE', KEYS[1], 'b', '30000', 'BLOCK', '0')";
        assert_eq!(a.call(&["EVAL", script, "1", "k"]), Value::Nil);
        assert!(a.call(&["EVAL", script, "1", "other"]).int() > 0);
        nobody_waits(&server);
    });
}

#[test]
fn a_release_in_a_transaction_or_a_script_hands_over_too() {
    each_server(|kind| {
        let server = Server::start(kind);
        let mut a = server.connect();
        a.ok("DLOCK.ACQUIRE k a 30000");
        let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
        let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 BLOCK 0");
        a.ok("MULTI");
        a.ok("DLOCK.RELEASE k a");
        a.ok("DLOCK.HOLDS k b");
        assert_eq!(a.ok("EXEC").items(), [Value::Int(1), Value::Int(1)]);
        granted(&mut b);
        let script = "return redis.call('DLOCK.RELEASE', KEYS[1], 'b')";
        assert_eq!(a.call(&["EVAL", script, "1", "k"]), 1);
        granted(&mut c);
    });
}

#[test]
fn commands_behind_a_waiting_one_run_after_it() {
    each_server(|kind| {
        let server = Server::start(kind);
        let mut a = server.connect();
        a.ok("DLOCK.ACQUIRE k a 30000");
        let mut b = server.connect();
        b.send_batch(&[
            &["DLOCK.ACQUIRE", "k", "b", "30000", "BLOCK", "0"][..],
            &["DLOCK.RELEASE", "k", "b"],
            &["PING"],
        ]);
        until("b waits", || server.info("dlock_waiting") == "1");
        a.ok("DLOCK.RELEASE k a");
        granted(&mut b);
        assert_eq!(b.read(), 1);
        assert_eq!(b.read(), "PONG");
    });
}

#[test]
fn a_full_queue_refuses_at_once() {
    each_server(|kind| {
        let server = Server::options(kind).conf("dlock.max-waiters-per-key 1").start();
        let mut a = server.connect();
        a.ok("DLOCK.ACQUIRE k a 30000");
        a.ok("DLOCK.ACQUIRE l a 30000");
        let _b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
        assert!(a.say("DLOCK.ACQUIRE k c 30000 BLOCK 0").error().starts_with("QUEUEFULL "));
        assert_eq!(a.say("DLOCK.ACQUIRE k c 30000"), Value::Nil, "one try needs no place");
        a.ok("CONFIG SET dlock.max-waiters 2");
        let _d = waiter(&server, "DLOCK.ACQUIRE l d 30000 BLOCK 0");
        a.ok("CONFIG SET dlock.max-waiters-per-key 10");
        assert!(a.say("DLOCK.ACQUIRE l c 30000 BLOCK 0").error().starts_with("QUEUEFULL "));
        assert_eq!(server.info("dlock_queue_refusals"), "2");
        assert_eq!(server.info("dlock_waiting"), "2");
    });
}

#[test]
fn a_cycle_is_refused_and_named() {
    each_server(|kind| {
        let server = Server::start(kind);
        let mut conn = server.connect();
        conn.ok("DLOCK.ACQUIRE x a 30000");
        conn.ok("DLOCK.ACQUIRE y b 30000");
        conn.ok("DLOCK.ACQUIRE z c 30000");
        let mut a = waiter(&server, "DLOCK.ACQUIRE y a 30000 BLOCK 0");
        let _b = waiter(&server, "DLOCK.ACQUIRE z b 30000 BLOCK 0");
        assert_eq!(conn.say("DLOCK.ACQUIRE x c 30000 BLOCK 0").error(), "DEADLOCK c -> a -> b -> c");
        assert_eq!(server.info("dlock_waiting"), "2", "nothing was queued");
        assert_eq!(conn.say("DLOCK.ACQUIRE x c 30000"), Value::Nil, "one try does not wait");
        assert_eq!(server.info("dlock_deadlocks"), "1");
        conn.ok("DLOCK.RELEASE y b");
        granted(&mut a);
    });
}

#[test]
fn what_is_replicated_is_the_handoff_and_nothing_of_the_line() {
    each_server(|kind| {
        let server = Server::start(kind);
        let mut a = server.connect();
        a.ok("DLOCK.ACQUIRE k a 30000");
        let mut stream = Stream::of(&server);
        let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
        let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 BLOCK 40");
        assert_eq!(c.read(), Value::Nil);
        a.ok("DLOCK.RELEASE k a");
        granted(&mut b);
        let sent: Vec<String> =
            stream.drain().iter().map(|c| String::from_utf8_lossy(&c[0]).to_string()).collect();
        assert_eq!(sent, ["SELECT", "DLOCK._SET"], "one effect for the release and the grant");
        let replica = Server::start(kind);
        replica.replicate(&server);
        assert_eq!(holders(&mut replica.connect(), "k"), ["b"]);
    });
}

/// Valkey 8.1 and later let no subscribed client wait for a module, and say so by a null pointer. It crashed the server.
#[test]
fn a_subscribed_client_waits_or_is_refused_as_its_server_does() {
    each_server(|kind| {
        let server = Server::start(kind);
        let mut a = server.connect();
        a.ok("DLOCK.ACQUIRE k a 30000");
        let mut b = server.connect();
        b.hello3();
        b.send(&["SUBSCRIBE", "channel"]);
        assert!(matches!(b.read(), Value::Push(_)));
        b.send(&["DLOCK.ACQUIRE", "k", "b", "30000", "BLOCK", "0"]);
        if kind.is_valkey && kind.is_at_least(8, 1) {
            let refused = b.read();
            assert!(refused.error().contains("subscribed"), "{refused:?}");
            a.ok("DLOCK.RELEASE k a");
        } else {
            until("it waits", || server.info("dlock_waiting") == "1");
            a.ok("DLOCK.RELEASE k a");
            granted(&mut b);
        }
        assert_eq!(b.say("PING"), "PONG", "one reply, no more");
        nobody_waits(&server);
    });
}
