//! Ephemeral holds, which end with their connection.

use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;

use dlock_testkit::queue::{granted, holders, waiter};
use dlock_testkit::{Conn, Events, Server, ServerKind, Value, each_server, until};

/// Ends a connection in every possible way. Each end must grant the lock to the waiter.
#[each_server]
fn an_ephemeral_hold_ends_with_its_connection(kind: &ServerKind) {
    let server = Server::options(kind).conf("notify-keyspace-events Kd").start();
    let mut look = server.connect();
    type End = fn(Conn, &mut Conn);
    let ways: [(&str, End); 4] = [
        ("close", |conn, _| drop(conn)),
        ("QUIT", |mut conn, _| {
            let _ = conn.say("QUIT");
        }),
        ("CLIENT KILL by another", |mut conn, look| {
            let id = conn.client_id();
            assert_eq!(look.say(&format!("CLIENT KILL ID {id}")), 1);
        }),
        ("CLIENT KILL of itself", |mut conn, _| {
            let id = conn.client_id();
            conn.send(&["CLIENT", "KILL", "ID", &id.to_string(), "SKIPME", "no"]);
            until("the server closes the connection", || conn.closed());
        }),
    ];
    let mut events = Events::subscribe(&server, "__keyspace@0__:k");
    for (way, end) in ways {
        drop(events.so_far());
        let mut a = server.connect();
        let first = a.ok("DLOCK.ACQUIRE k a 60000 EPHEMERAL").int();
        let mut b = waiter(&server, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
        end(a, &mut look);
        assert!(granted(&mut b) > first, "{way}");
        let told: Vec<String> = events.so_far().into_iter().map(|(_, event)| event).collect();
        assert_eq!(told, ["dlock.acquire", "dlock.disconnect", "dlock.acquire"], "{way}");
        look.ok("DLOCK.RELEASE k b");
    }
    assert_eq!(server.info("dlock_disconnects"), "4");
}

/// MEMORY USAGE left out the record of the connection, which is most of the memory of an ephemeral hold.
#[each_server]
fn memory_usage_counts_the_binding_of_a_hold(kind: &ServerKind) {
    const HOLDS: usize = 300;
    let (server, mut look) = Server::connected(kind);
    let mut clients: Vec<Conn> = (0..HOLDS).map(|_| server.connect()).collect();
    let mut take = |options: &str| {
        for (n, conn) in clients.iter_mut().enumerate() {
            conn.ok(&format!("DLOCK.ACQUIRE key:{n} token 600000 {options}"));
        }
        let counted: i64 = (0..HOLDS).map(|n| look.ok(&format!("MEMORY USAGE key:{n}")).int()).sum();
        counted as f64
    };
    // The server frees query buffers after 2 s, and shrinks reply buffers from 16 KiB to 1 KiB after 5 s.
    let mut other = server.connect();
    let is_small = |client: &str| {
        let size =
            client.split_once(" rbs=").and_then(|(_, rest)| rest.split(' ').next()?.parse::<usize>().ok());
        client.contains("qbuf-free=0 ") && size.is_some_and(|size| size < 2_048)
    };
    let mut used = || {
        until("idle connections have small buffers", || {
            other.ok("CLIENT LIST").text().lines().filter(|client| is_small(client)).count() >= HOLDS
        });
        server.info("used_memory").parse::<f64>().expect("a number")
    };
    let (plain, before) = (take(""), used());
    let counted = take("EPHEMERAL") - plain;
    let taken = used() - before;
    assert!((0.6..1.4).contains(&(taken / counted)), "{taken} bytes are taken and {counted} counted");
}

#[each_server]
fn an_ephemeral_hold_ends_when_its_connection_is_reset(kind: &ServerKind) {
    let (server, mut look) = Server::connected(kind);
    let raw = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
    use std::io::Write;
    (&raw).write_all(b"DLOCK.ACQUIRE k a 60000 EPHEMERAL\r\n").expect("sent");
    until("it holds", || holders(&mut look, "k") == ["a"]);
    // A socket with unread received bytes answers a close with RST.
    until("the reply has arrived", || {
        let mut byte = [0];
        raw.peek(&mut byte).is_ok_and(|read| read == 1)
    });
    assert!(raw.as_raw_fd() >= 0);
    raw.shutdown(Shutdown::Write).expect("half closed");
    drop(raw);
    until("it is free", || look.ok("EXISTS k") == 0);
}

#[each_server]
fn other_holds_survive_the_end_of_the_connection(kind: &ServerKind) {
    let (server, mut look) = Server::connected(kind);
    let mut a = server.connect();
    a.ok("DLOCK.ACQUIRE plain a 60000");
    a.ok("DLOCK.ACQUIRE k a 60000 EPHEMERAL");
    a.ok("DLOCK.RELEASE k a");
    look.ok("DLOCK.ACQUIRE k a 60000");
    a.ok("DLOCK.ACQUIRE last a 60000 EPHEMERAL");
    drop(a);
    until("the ephemeral hold has ended", || look.ok("EXISTS last") == 0);
    assert_eq!((holders(&mut look, "plain"), holders(&mut look, "k")), (vec!["a".into()], vec!["a".into()]));
}

#[each_server]
fn an_ephemeral_hold_moves_to_the_connection_that_asks_again(kind: &ServerKind) {
    let (server, mut look) = Server::connected(kind);
    let mut old = server.connect();
    let mut new = server.connect();
    let fence = old.ok("DLOCK.ACQUIRE k a 60000 EPHEMERAL").int();
    old.ok("DLOCK.ACQUIRE mark a 60000 EPHEMERAL");
    assert_eq!(new.say("DLOCK.ACQUIRE k a 60000 EPHEMERAL"), fence);
    let id = new.client_id();
    let shown = look.ok("DLOCK.INSPECT k");
    let hold = &shown.field("holders").items()[0];
    assert_eq!((hold.field("ephemeral"), hold.field("client")), (&1.into(), &id.into()));
    drop(old);
    until("the old connection is noticed", || look.ok("EXISTS mark") == 0);
    assert_eq!(holders(&mut look, "k"), ["a"]);
    drop(new);
    until("it has ended", || look.ok("EXISTS k") == 0);
}

#[each_server]
fn a_waiter_may_be_granted_an_ephemeral_hold(kind: &ServerKind) {
    let (server, mut look) = Server::connected(kind);
    look.ok("DLOCK.ACQUIRE k a 60000");
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 60000 EPHEMERAL BLOCK 0");
    look.ok("DLOCK.RELEASE k a");
    granted(&mut b);
    drop(b);
    until("it has ended", || look.ok("EXISTS k") == 0);
}

#[each_server]
fn the_delay_follows_a_lost_connection(kind: &ServerKind) {
    let (server, mut look) = Server::connected(kind);
    let mut a = server.connect();
    a.ok("DLOCK.ACQUIRE k a 60000 EPHEMERAL DELAY 60000");
    drop(a);
    until("the hold has ended", || look.ok("DLOCK.HOLDS k a") == 0);
    assert_eq!(look.say("DLOCK.ACQUIRE k b 1000"), Value::Nil);
}

#[each_server]
fn an_ephemeral_hold_lasts_until_its_lease_ends_after_a_restart(kind: &ServerKind) {
    let mut server = Server::options(kind).conf("appendonly yes").conf("appendfsync always").start();
    let mut a = server.connect();
    a.ok("DLOCK.ACQUIRE k a 60000 EPHEMERAL");
    server.kill9();
    server.restart();
    let mut look = server.connect();
    let shown = look.ok("DLOCK.INSPECT k");
    let hold = &shown.field("holders").items()[0];
    assert_eq!((hold.field("ephemeral"), hold.field("client")), (&1.into(), &0.into()), "an orphan");
    look.ok("DLOCK.EXTEND k a 50");
    until("its lease ends", || look.ok("EXISTS k") == 0);
}

/// A script runs on an internal client, which has no connection to bind the hold to. A transaction runs on
/// its own connection.
#[each_server]
fn ephemeral_is_refused_in_scripts_and_works_in_transactions(kind: &ServerKind) {
    let (server, mut look) = Server::connected(kind);
    let mut a = server.connect();
    let script = "return redis.call('DLOCK.ACQUIRE', KEYS[1], 'a', '60000', 'EPHEMERAL')";
    assert!(a.call(&["EVAL", script, "1", "k"]).error().contains("EPHEMERAL cannot be used in a script"));
    assert_eq!(look.say("EXISTS k"), 0);
    a.ok("MULTI");
    a.ok("DLOCK.ACQUIRE k a 60000 EPHEMERAL");
    a.ok("EXEC");
    assert_eq!(holders(&mut look, "k"), ["a"]);
    drop(a);
    until("it has ended", || look.ok("EXISTS k") == 0);
}

/// A write during a disconnect was replicated as the command that caused it, CLIENT KILL.
#[each_server]
fn a_kill_inside_a_transaction_replicates_the_end_of_the_hold_and_no_kill(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
    a.ok("DLOCK.ACQUIRE k a 60000 EPHEMERAL");
    let id = a.client_id();
    let mut stream = dlock_testkit::Stream::of(&server);
    let mut look = server.connect();
    look.ok("MULTI");
    look.ok("SET x 1");
    look.ok(&format!("CLIENT KILL ID {id}"));
    look.ok("EXEC");
    until("it has ended", || look.ok("EXISTS k") == 0);
    let sent = stream.drain();
    let words: Vec<String> = sent.iter().map(|c| String::from_utf8_lossy(&c[0]).to_uppercase()).collect();
    assert!(!words.contains(&"CLIENT".into()), "{words:?}");
    assert_eq!(words.last().map(String::as_str), Some("DLOCK._SET"), "{words:?}");
}
