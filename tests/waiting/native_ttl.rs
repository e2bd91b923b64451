//! A native TTL on the key of a lock: its end ends the hold, and the queue is served.

use dlock_testkit::queue::{granted, holders, until_no_waiters, waiter};
use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, until};

/// Starts a server that deletes an expired key only when a command names the key. In effect, every server
/// with very many keys with a TTL does so.
fn server(kind: &ServerKind) -> (Server, Conn) {
    let (server, mut conn) = Server::connected(kind);
    conn.ok("DEBUG SET-ACTIVE-EXPIRE 0");
    (server, conn)
}

#[each_server]
fn the_queue_is_served_when_a_native_ttl_ends(kind: &ServerKind) {
    let (server, mut conn) = server(kind);
    conn.ok("DLOCK.ACQUIRE k a 600000");
    conn.ok("PEXPIRE k 300");
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 600000 BLOCK 0");
    granted(&mut b);
    let mut c = waiter(&server, "DLOCK.ACQUIRE k c 600000 BLOCK 0");
    conn.ok("PEXPIRE k 20");
    granted(&mut c);
    let mut subscriber = server.connect();
    subscriber.send(&["SUBSCRIBE", "c"]);
    subscriber.read();
    assert_eq!(conn.ok("DLOCK.ACQUIRE k d 600000 QUEUE 600000 NOTIFY c d"), Value::Nil);
    conn.ok("PEXPIRE k 20");
    assert_eq!(subscriber.read().items()[2], "d granted");
    assert_eq!(holders(&mut conn, "k"), ["d"]);
    until_no_waiters(&server);
}

#[each_server]
fn the_queue_is_served_when_the_ttl_of_a_restored_lock_ends(kind: &ServerKind) {
    let (server, mut conn) = server(kind);
    conn.ok("DLOCK.ACQUIRE k a 600000");
    let dump = conn.ok("DUMP k").bytes().to_vec();
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 600000 BLOCK 0");
    let restore: [&[u8]; 5] = [b"RESTORE", b"k", b"20", &dump, b"REPLACE"];
    assert_eq!(conn.call(&restore), "OK");
    granted(&mut b);
    assert_eq!(holders(&mut conn, "k"), ["b"]);
}

/// There are more queues than the number of keys that one tick of the background job opens.
#[each_server]
fn every_queue_is_served_when_many_native_ttls_end(kind: &ServerKind) {
    let (server, mut conn) = server(kind);
    let keys: Vec<String> = (0..1_000).map(|n| format!("k{n}")).collect();
    let each = |conn: &mut Conn, command: &dyn Fn(&str) -> String| {
        let commands: Vec<String> = keys.iter().map(|key| command(key)).collect();
        conn.say_together(&commands.iter().map(String::as_str).collect::<Vec<_>>())
    };
    each(&mut conn, &|key| format!("DLOCK.ACQUIRE {key} a 600000"));
    each(&mut conn, &|key| format!("DLOCK.ACQUIRE {key} b 600000 QUEUE 600000"));
    each(&mut conn, &|key| format!("PEXPIRE {key} 20"));
    until("all are granted", || server.info("dlock_handoffs") == "1000");
    assert_eq!(server.info("dlock_queued"), "0");
}
