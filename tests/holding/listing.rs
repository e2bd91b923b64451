//! LIST returns every lock of the database and nothing else.

use std::collections::BTreeMap;

use dlock_testkit::queue::{granted, waiter};
use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, until};

/// Returns the locks of a complete walk by key, with mode, holders and waiters. No lock may appear twice
/// while nothing changes.
#[track_caller]
fn walk(conn: &mut Conn, options: &str) -> BTreeMap<String, String> {
    let (mut cursor, mut locks) = ("0".to_string(), BTreeMap::new());
    loop {
        let part = conn.ok(&format!("DLOCK.LIST {cursor} {options}"));
        for lock in part.items()[1].items() {
            let [mode, holders, waiters] = ["mode", "holders", "waiters"].map(|name| lock.field(name));
            let before = locks.insert(lock.field("key").text(), format!("{mode:?} {holders:?} {waiters:?}"));
            assert_eq!(before, None, "{lock:?}");
        }
        cursor = part.items()[0].text();
        if cursor == "0" {
            return locks;
        }
    }
}

/// Builds the result that [`walk`] returns.
fn of<const N: usize>(locks: [(&str, &str); N]) -> BTreeMap<String, String> {
    let printed = |state: &str| {
        let words: Vec<&str> = state.split(' ').collect();
        let numbers = [words[1], words[2]].map(|n| Value::Int(n.parse().expect("a number")));
        format!("{:?} {:?} {:?}", Value::from(words[0]), numbers[0], numbers[1])
    };
    locks.map(|(key, state)| (key.to_string(), printed(state))).into()
}

#[each_server]
fn list_shows_locks_that_are_held_waited_for_or_in_delay(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    assert_eq!(walk(&mut conn, ""), of([]));
    for n in 0..500 {
        conn.ok(&format!("SET data:{n} x"));
    }
    conn.ok("DLOCK.ACQUIRE job:a t 600000");
    conn.ok("DLOCK.ACQUIRE job:b t 600000 SHARED");
    conn.ok("DLOCK.ACQUIRE job:b u 500000 SHARED");
    conn.ok("DLOCK.ACQUIRE permits t 600000 PERMITS 3");
    conn.ok("DLOCK.ACQUIRE late t 1 DELAY 600000");
    conn.ok("DLOCK.ACQUIRE gone t 600000");
    conn.ok("DLOCK.RELEASE gone t");
    conn.ok("DLOCK.ACQUIRE lapsed t 1");
    until("it has expired", || conn.ok("DLOCK.PTTL lapsed") == -2 && conn.ok("DLOCK.PTTL late") == -2);
    let _waits = ["DLOCK.ACQUIRE job:a u 1000 BLOCK 0", "DLOCK.ACQUIRE late u 1000 BLOCK 0"]
        .map(|command| waiter(&server, command));
    let all = of([
        ("job:a", "exclusive 1 1"),
        ("job:b", "shared 2 0"),
        ("permits", "permits 1 0"),
        ("late", "free 0 1"),
    ]);
    for count in ["", "COUNT 1", "count 3", "COUNT 2147483647"] {
        assert_eq!(walk(&mut conn, count), all, "{count}");
    }
    assert_eq!(
        walk(&mut conn, "MATCH job:[^a]*"),
        of([("job:b", "shared 2 0")]),
        "patterns are those of KEYS"
    );
    let waited = of([("job:a", "exclusive 1 1"), ("late", "free 0 1")]);
    assert_eq!(walk(&mut conn, "COUNT 1 WAITED"), waited);
    assert_eq!(walk(&mut conn, "waited match j*"), of([("job:a", "exclusive 1 1")]));
    conn.ok("SELECT 1");
    assert_eq!((walk(&mut conn, ""), walk(&mut conn, "WAITED")), (of([]), of([])));
    conn.ok("SWAPDB 0 1");
    let held = walk(&mut conn, "");
    assert_eq!(held.keys().collect::<Vec<_>>(), ["job:a", "job:b", "late", "permits"], "they have moved");
}

#[each_server]
fn list_shows_the_longest_lease_and_the_first_grant(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    conn.hello3();
    conn.ok("DLOCK.ACQUIRE k a 60000 SHARED");
    until("some time has passed", || {
        let holder = conn.ok("DLOCK.INSPECT k");
        holder.field("holders").items()[0].field("held").int() >= 5
    });
    // Enough deadlines to be kept in rows; the first are released in the middle of the walk.
    for n in 0..200 {
        conn.ok(&format!("DLOCK.ACQUIRE k sharer-{n} {} SHARED", 600_000 + n));
    }
    let lock = |conn: &mut Conn| conn.ok("DLOCK.LIST 0").items()[1].items()[0].clone();
    // The lock whose lease ends first was granted first.
    let first =
        |conn: &mut Conn| conn.ok("DLOCK.INSPECT k COUNT 1").field("holders").items()[0].field("held").int();
    let (before, listed, after) = (first(&mut conn), lock(&mut conn), first(&mut conn));
    assert!((before..=after).contains(&listed.field("held").int()), "{listed:?} {before} {after}");
    assert!((500_000..=600_199).contains(&listed.field("pttl").int()), "{listed:?}");
    assert_eq!(listed.field("holders"), &Value::Int(201));
    conn.ok("DLOCK.RELEASE k a");
    let (listed, after) = (lock(&mut conn), first(&mut conn));
    assert!(listed.field("held").int() <= after, "the first has left: {listed:?} {after}");
    conn.ok("DLOCK.ACQUIRE free t 1 DELAY 600000");
    until("it is in delay", || conn.ok("DLOCK.PTTL free") == -2);
    let delayed = conn.ok("DLOCK.LIST 0 MATCH free").items()[1].items()[0].clone();
    assert_eq!((delayed.field("pttl"), delayed.field("held")), (&Value::Int(-2), &Value::Int(0)));
    assert_eq!(conn.ok("EVAL return(redis.call('dlock.list',0,'match','free')[2][1][2]) 0"), "free");
}

#[each_server]
fn list_returns_every_lasting_lock_while_others_change(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    for n in 0..300 {
        conn.ok(&format!("DLOCK.ACQUIRE stays:{n} a 600000"));
        conn.ok(&format!("DLOCK.ACQUIRE goes:{n} a 600000"));
    }
    // A lock that is handed off stays in the walk.
    let mut next = waiter(&server, "DLOCK.ACQUIRE stays:7 b 600000 BLOCK 0");
    let (mut cursor, mut seen, mut round) = ("0".to_string(), Vec::new(), 0);
    loop {
        let part = conn.ok(&format!("DLOCK.LIST {cursor} COUNT 7"));
        seen.extend(part.items()[1].items().iter().map(|lock| lock.field("key").text()));
        cursor = part.items()[0].text();
        if cursor == "0" {
            break;
        }
        conn.ok(&format!("DLOCK.RELEASE goes:{round} a"));
        conn.ok(&format!("DLOCK.ACQUIRE comes:{round} a 600000"));
        if round == 3 {
            conn.ok("DLOCK.RELEASE stays:7 a");
            granted(&mut next);
        }
        round += 1;
    }
    assert!(round > 50, "{round}");
    for n in 0..300 {
        assert!(seen.contains(&format!("stays:{n}")), "{n} did not come");
    }
}

#[each_server]
fn a_replica_lists_its_locks(kind: &ServerKind) {
    let (server, replica) = (Server::start(kind), Server::start(kind));
    let mut conn = server.connect();
    conn.ok("DLOCK.ACQUIRE before t 600000");
    replica.replicate(&server);
    conn.ok("DLOCK.ACQUIRE after t 600000 SHARED");
    replica.wait_in_sync(&server);
    let both = of([("before", "exclusive 1 0"), ("after", "shared 1 0")]);
    assert_eq!(walk(&mut replica.connect(), ""), both);
    conn.ok("DLOCK.RELEASE before t");
    replica.wait_in_sync(&server);
    assert_eq!(walk(&mut replica.connect(), ""), of([("after", "shared 1 0")]));
}

#[each_server]
fn list_shows_only_keys_that_the_user_may_read(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    conn.ok("DLOCK.ACQUIRE mine:a t 600000");
    conn.ok("DLOCK.ACQUIRE theirs:b t 600000");
    for (rules, shown) in [
        ("~mine:*", &["mine:a"][..]),
        ("%R~mine:*", &["mine:a"]),
        ("%W~mine:*", &[]),
        ("~*", &["mine:a", "theirs:b"]),
    ] {
        conn.ok(&format!("ACL SETUSER app reset on >secret +dlock.list {rules}"));
        let mut app = server.connect();
        app.ok("AUTH app secret");
        assert_eq!(walk(&mut app, "").into_keys().collect::<Vec<_>>(), shown, "{rules}");
    }
}

#[each_server]
fn list_refuses_invalid_arguments(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    conn.ok("DLOCK.ACQUIRE k t 600000");
    let long = "x".repeat(1025);
    for (arguments, why) in [
        ("-1", "ERR cursor must be a whole number from 0 to 18446744073709551615"),
        ("x", "ERR cursor must be a whole number from 0 to 18446744073709551615"),
        ("0 COUNT 0", "ERR COUNT must be a whole number from 1 to 2147483647"),
        ("0 COUNT", "ERR syntax error: COUNT requires a value"),
        ("0 MATCH a MATCH b", "ERR syntax error: MATCH may be given only once"),
        ("0 WAITED WAITED", "ERR syntax error: WAITED may be given only once"),
        ("0 ALL", "ERR syntax error: unknown option 'ALL', DLOCK.HELP lists every form"),
        (&format!("0 MATCH {long}"), "ERR a MATCH pattern has at most 1024 bytes"),
    ] {
        assert_eq!(conn.say(&format!("DLOCK.LIST {arguments}")).error(), why, "{arguments}");
    }
    for cursor in [1_u64, 2, 3, 4, 99, 1 << 33, u64::MAX - 1, u64::MAX] {
        assert_eq!(conn.ok(&format!("DLOCK.LIST {cursor}")).items()[0], "0", "{cursor}");
    }
}
