//! The key goes away under the line: the hold is over, the line is served or told, and there are never two holders.

mod harness;
mod line;

use harness::{Conn, Events, Server, Value, each_server, until};
use line::{granted, holders, nobody_waits, tokens, waiter};

#[test]
fn swapdb_moves_the_locks_and_leaves_the_lines() {
    each_server(|kind| {
        let server = Server::start(kind);
        let mut zero = server.connect();
        let mut one = server.connect();
        one.ok("SELECT 1");
        zero.ok("DLOCK.ACQUIRE k a 60000");
        zero.ok("DLOCK.ACQUIRE l a 60000");
        one.ok("DLOCK.ACQUIRE l z 200");
        let mut b = waiter(&server, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
        let mut c = waiter(&server, "DLOCK.ACQUIRE l c 60000 BLOCK 0");
        zero.ok("SWAPDB 0 1");
        // Where b waits nobody holds k any more; where c waits somebody else holds l, until that lease ends.
        granted(&mut b);
        assert_eq!((holders(&mut zero, "k"), holders(&mut one, "k")), (vec!["b".into()], vec!["a".into()]));
        assert_eq!(holders(&mut one, "l"), ["a"]);
        granted(&mut c);
        assert_eq!(holders(&mut zero, "l"), ["c"]);
        // What moved is found by its deadline where it is now.
        one.ok("DLOCK.EXTEND k a 30");
        until("the lease ends", || one.ok("EXISTS k") == 0);
        assert_eq!(server.info("dlock_holders"), "3");
    });
}

#[test]
fn an_ephemeral_hold_is_found_after_swapdb() {
    each_server(|kind| {
        let server = Server::start(kind);
        let mut a = server.connect();
        a.ok("DLOCK.ACQUIRE k a 60000 EPHEMERAL");
        let mut look = server.connect();
        look.ok("SWAPDB 0 1");
        look.ok("SELECT 1");
        assert_eq!(holders(&mut look, "k"), ["a"]);
        drop(a);
        until("it is over", || look.ok("EXISTS k") == 0);
    });
}

#[test]
fn a_native_ttl_ends_the_hold_and_serves_the_line() {
    each_server(|kind| {
        let server = Server::options(kind).conf("notify-keyspace-events Kd").start();
        let mut a = server.connect();
        let first = a.ok("DLOCK.ACQUIRE k a 60000").int();
        let mut b = waiter(&server, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
        assert_eq!(a.say("PEXPIRE k 30"), 1);
        assert!(granted(&mut b) > first);
        assert_eq!(a.say("TTL k"), -1, "the new hold's key has none");
        assert_eq!(holders(&mut a, "k"), ["b"]);
    });
}

#[test]
fn eviction_ends_the_hold_and_serves_the_line() {
    each_server(|kind| {
        let server = Server::start(kind);
        let mut a = server.connect();
        let first = a.ok("DLOCK.ACQUIRE k a 60000").int();
        let mut b = waiter(&server, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
        a.ok("CONFIG SET maxmemory-policy allkeys-random");
        // Any command that may use memory makes the server evict first. In one write, so that the new hold is not
        // evicted too.
        let set = |to| ["CONFIG", "SET", "maxmemory", to];
        a.send_batch(&[&set("1")[..], &["SET", "x", "1"], &set("0")]);
        for _ in 0..3 {
            a.read();
        }
        assert!(granted(&mut b) > first);
        assert_eq!(holders(&mut a, "k"), ["b"]);
        nobody_waits(&server);
    });
}

#[test]
fn a_key_of_another_type_ends_the_waiting() {
    each_server(|kind| {
        let server = Server::options(kind).conf("notify-keyspace-events Kd").start();
        let mut a = server.connect();
        let mut events = Events::subscribe(&server, "__keyspace@0__:k");
        a.ok("DLOCK.ACQUIRE k a 60000");
        let mut b = waiter(&server, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
        a.ok("SET k x");
        assert!(b.read().error().starts_with("WRONGTYPE"));
        nobody_waits(&server);
        until("its end is told", || events.so_far().iter().any(|(_, event)| event == "dlock.free"));
        assert_eq!(a.say("GET k"), "x");
    });
}

/// Three masters with all slots between them.
fn cluster(kind: &harness::ServerKind) -> [Server; 3] {
    let nodes = [(); 3].map(|()| {
        Server::options(kind).conf("cluster-enabled yes").conf("cluster-node-timeout 5000").start()
    });
    for (node, slots) in nodes.iter().zip(["0 5460", "5461 10922", "10923 16383"]) {
        let mut conn = node.connect();
        conn.ok(&format!("CLUSTER ADDSLOTSRANGE {slots}"));
        conn.ok(&format!("CLUSTER MEET 127.0.0.1 {}", nodes[0].port()));
    }
    let ready = |node: &Server| {
        let info = node.connect().ok("CLUSTER INFO").text();
        info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
    };
    until("the cluster is up", || nodes.iter().all(ready));
    nodes
}

fn id(conn: &mut Conn) -> String {
    conn.ok("CLUSTER MYID").text()
}

/// On the source MIGRATE looks like DEL. Granted there, the waiter would hold beside the one that moved.
#[test]
fn a_waiter_whose_slot_moves_is_sent_after_it() {
    each_server(|kind| {
        let [_, source, target] = cluster(kind);
        let (mut from, mut to) = (source.connect(), target.connect());
        let slot = from.ok("CLUSTER KEYSLOT k").int();
        let fence = from.ok("DLOCK.ACQUIRE k a 60000 SHARED").int();
        let mut b = waiter(&source, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
        let mut c = waiter(&source, "DLOCK.ACQUIRE k c 60000 SHARED BLOCK 0");
        to.ok(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", id(&mut from)));
        from.ok(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", id(&mut to)));
        // While the key is still here it is served here.
        assert_eq!(tokens(&mut from, "k"), ["b", "c"]);
        from.ok(&format!("MIGRATE 127.0.0.1 {} k 0 5000", target.port()));
        for conn in [&mut b, &mut c] {
            assert!(conn.read().error().starts_with("TRYAGAIN "));
            assert_eq!(conn.say("PING"), "PONG");
        }
        nobody_waits(&source);
        // What a cluster client does now.
        let redirect = b.say("DLOCK.ACQUIRE k b 60000 BLOCK 0");
        assert!(redirect.error().starts_with(&format!("ASK {slot} ")), "{redirect:?}");
        let mut b = target.connect();
        b.ok("ASKING");
        assert_eq!(b.say("DLOCK.ACQUIRE k b 60000"), Value::Nil, "a holds it still, over there");
        for conn in [&mut to, &mut from] {
            let owner = id(&mut target.connect());
            conn.ok(&format!("CLUSTER SETSLOT {slot} NODE {owner}"));
        }
        assert_eq!(holders(&mut to, "k"), ["a"]);
        assert!(from.say("DLOCK.ACQUIRE k b 60000").error().starts_with("MOVED "));
        let mut b = waiter(&target, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
        assert_eq!(to.say("DLOCK.RELEASE k a"), 1);
        assert!(granted(&mut b) > fence);
    });
}

#[test]
fn in_a_cluster_the_line_is_served_as_elsewhere() {
    each_server(|kind| {
        let [_, node, _] = cluster(kind);
        let mut a = node.connect();
        a.ok("DLOCK.ACQUIRE k a 60");
        let mut b = waiter(&node, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
        granted(&mut b);
        let mut c = waiter(&node, "DLOCK.ACQUIRE k c 60000 BLOCK 0");
        a.ok("DEL k");
        granted(&mut c);
        assert_eq!(holders(&mut a, "k"), ["c"]);
    });
}
