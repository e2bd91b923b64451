//! Ephemeral holds, which end with their connection.

use std::io::Write;
use std::net::TcpStream;

use dlock_testkit::queue::{granted, holders, waiter};
use dlock_testkit::{Conn, Events, Server, ServerKind, Stream, each_server, until};

/// Ends the connection of a holder in four ways. Each must grant the lock to the waiter.
#[each_server]
fn an_ephemeral_hold_ends_with_its_connection(kind: &ServerKind) {
    let server = Server::options(kind).conf("notify-keyspace-events Kd").start();
    let mut observer = server.connect();
    type End = fn(Conn, &mut Conn);
    let ends: [(&str, End); 4] = [
        ("close", |conn, _| drop(conn)),
        ("QUIT", |mut conn, _| {
            let _ = conn.say("QUIT");
        }),
        ("CLIENT KILL by another client", |mut conn, observer| {
            let id = conn.client_id();
            assert_eq!(observer.say(&format!("CLIENT KILL ID {id}")), 1);
        }),
        ("CLIENT KILL of itself", |mut conn, _| {
            let id = conn.client_id();
            conn.send(&["CLIENT", "KILL", "ID", &id.to_string(), "SKIPME", "no"]);
            until("the server closes the connection", || conn.closed());
        }),
    ];
    let mut events = Events::subscribe(&server, "__keyspace@0__:k");
    for (name, end) in ends {
        events.discard();
        let mut a = server.connect();
        let first = a.ok("DLOCK.ACQUIRE k a 60000 EPHEMERAL").int();
        let mut b = waiter(&server, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
        end(a, &mut observer);
        assert!(granted(&mut b) > first, "{name}");
        assert_eq!(events.messages(), ["dlock.acquire", "dlock.disconnect", "dlock.acquire"], "{name}");
        observer.ok("DLOCK.RELEASE k b");
    }
    assert_eq!(server.number("dlock_disconnects"), 4);
}

#[each_server]
fn an_ephemeral_hold_ends_when_its_connection_is_reset(kind: &ServerKind) {
    let (server, mut observer) = Server::connected(kind);
    let mut raw = TcpStream::connect(("127.0.0.1", server.port())).expect("the server accepts a connection");
    raw.write_all(b"DLOCK.ACQUIRE k a 60000 EPHEMERAL\r\n").expect("the request is sent");
    until("a holds the lock", || holders(&mut observer, "k") == ["a"]);
    until("the reply has arrived", || raw.peek(&mut [0]).is_ok_and(|read| read == 1));
    // The close sends RST in place of FIN, because the reply has not been read.
    drop(raw);
    until("the lock is free", || observer.ok("EXISTS k") == 0);
}

/// MEMORY USAGE used to leave out the record of the connection, which is most of the memory of an ephemeral
/// hold.
#[each_server]
fn memory_usage_counts_the_connection_record_of_an_ephemeral_hold(kind: &ServerKind) {
    const HOLDS: usize = 300;
    let (server, mut observer) = Server::connected(kind);
    let mut clients: Vec<Conn> = (0..HOLDS).map(|_| server.connect()).collect();
    let mut memory_usage_after_acquiring = |options: &str| {
        for (n, conn) in clients.iter_mut().enumerate() {
            conn.ok(&format!("DLOCK.ACQUIRE key:{n} token 600000 {options}"));
        }
        let counted: i64 = (0..HOLDS).map(|n| observer.ok(&format!("MEMORY USAGE key:{n}")).int()).sum();
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
        server.number("used_memory") as f64
    };
    let (plain, before) = (memory_usage_after_acquiring(""), used());
    let counted = memory_usage_after_acquiring("EPHEMERAL") - plain;
    // Repeated, because a busy server frees memory late.
    until(&format!("MEMORY USAGE counts {counted} bytes, about what the holds take"), || {
        (0.6..1.4).contains(&((used() - before) / counted))
    });
}

/// The end of the hold used to be replicated as the command that closed the connection, CLIENT KILL.
#[each_server]
fn a_kill_inside_a_transaction_replicates_the_end_of_the_hold_and_no_kill(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
    a.ok("DLOCK.ACQUIRE k a 60000 EPHEMERAL");
    let kill = format!("CLIENT KILL ID {}", a.client_id());
    let mut stream = Stream::of(&server);
    let mut observer = server.connect();
    for command in ["MULTI", "SET x 1", &kill, "EXEC"] {
        observer.ok(command);
    }
    until("the hold has ended", || observer.ok("EXISTS k") == 0);
    let sent = stream.drain();
    let words: Vec<String> = sent.iter().map(|c| String::from_utf8_lossy(&c[0]).to_uppercase()).collect();
    assert!(!words.contains(&"CLIENT".into()), "{words:?}");
    assert_eq!(words.last().map(String::as_str), Some("DLOCK._SET"), "{words:?}");
}
