//! Which locks LIST returns, and what it shows of each.

use std::collections::BTreeMap;

use dlock_testkit::queue::{first_hold, waiter};
use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, until};

/// Lists all locks, by key, as "mode holders waiters". Asserts that no lock appears twice.
#[track_caller]
fn list_all(conn: &mut Conn, options: &str) -> BTreeMap<String, String> {
    let (mut cursor, mut found) = ("0".to_string(), BTreeMap::new());
    loop {
        let part = conn.ok(&format!("DLOCK.LIST {cursor} {options}"));
        for lock in part.items()[1].items() {
            let [mode, holders, waiters] = ["mode", "holders", "waiters"].map(|name| lock.field(name));
            let state = format!("{} {holders:?} {waiters:?}", mode.text());
            let before = found.insert(lock.field("key").text(), state);
            assert_eq!(before, None, "listed twice: {lock:?}");
        }
        cursor = part.items()[0].text();
        if cursor == "0" {
            return found;
        }
    }
}

/// Returns the expected result of [`list_all`].
fn locks<const N: usize>(locks: [(&str, &str); N]) -> BTreeMap<String, String> {
    locks.map(|(key, state)| (key.to_string(), state.to_string())).into()
}

#[each_server]
fn list_shows_locks_that_are_held_waited_for_or_in_delay(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    assert_eq!(list_all(&mut conn, ""), locks([]));
    for n in 0..500 {
        conn.ok(&format!("SET data:{n} x"));
    }
    conn.ok("DLOCK.ACQUIRE job:a t 600000");
    conn.ok("DLOCK.ACQUIRE job:b t 600000 SHARED");
    conn.ok("DLOCK.ACQUIRE job:b u 500000 SHARED");
    conn.ok("DLOCK.ACQUIRE permits t 600000 PERMITS 3");
    conn.ok("DLOCK.ACQUIRE delayed t 1 DELAY 600000");
    conn.ok("DLOCK.ACQUIRE gone t 600000");
    conn.ok("DLOCK.RELEASE gone t");
    conn.ok("DLOCK.ACQUIRE expired t 1");
    until("the short leases have expired", || {
        conn.ok("DLOCK.PTTL expired") == -2 && conn.ok("DLOCK.PTTL delayed") == -2
    });
    let _waiters = ["DLOCK.ACQUIRE job:a u 1000 BLOCK 0", "DLOCK.ACQUIRE delayed u 1000 BLOCK 0"]
        .map(|command| waiter(&server, command));
    let all = locks([
        ("job:a", "exclusive 1 1"),
        ("job:b", "shared 2 0"),
        ("permits", "permits 1 0"),
        ("delayed", "free 0 1"),
    ]);
    for count in ["", "COUNT 1", "count 3", "COUNT 2147483647"] {
        assert_eq!(list_all(&mut conn, count), all, "{count}");
    }
    assert_eq!(
        list_all(&mut conn, "MATCH job:[^a]*"),
        locks([("job:b", "shared 2 0")]),
        "the pattern works as in KEYS"
    );
    let with_waiters = locks([("job:a", "exclusive 1 1"), ("delayed", "free 0 1")]);
    assert_eq!(list_all(&mut conn, "COUNT 1 WAITED"), with_waiters);
    assert_eq!(list_all(&mut conn, "waited match j*"), locks([("job:a", "exclusive 1 1")]));
    conn.ok("SELECT 1");
    assert_eq!((list_all(&mut conn, ""), list_all(&mut conn, "WAITED")), (locks([]), locks([])));
    conn.ok("SWAPDB 0 1");
    let held = list_all(&mut conn, "");
    assert_eq!(
        held.keys().collect::<Vec<_>>(),
        ["delayed", "job:a", "job:b", "permits"],
        "the locks have moved"
    );
}

#[each_server]
fn list_shows_the_longest_lease_and_the_age_of_the_oldest_hold(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    conn.hello3();
    let age_of_first = |conn: &mut Conn| first_hold(conn, "k").field("held").int();
    let listed = |conn: &mut Conn, key: &str| {
        conn.ok(&format!("DLOCK.LIST 0 MATCH {key}")).items()[1].items()[0].clone()
    };
    // INSPECT shows a few holds in the order of their grants, and many in the order of their deadlines. Here
    // the oldest hold also has the earliest deadline, so INSPECT always shows it first.
    conn.ok("DLOCK.ACQUIRE k a 60000 SHARED");
    until("the first hold is 5 ms old", || age_of_first(&mut conn) >= 5);
    for n in 0..200 {
        conn.ok(&format!("DLOCK.ACQUIRE k sharer-{n} {} SHARED", 600_000 + n));
    }
    let (before, lock, after) = (age_of_first(&mut conn), listed(&mut conn, "k"), age_of_first(&mut conn));
    assert!((before..=after).contains(&lock.field("held").int()), "{lock:?} {before} {after}");
    assert!((500_000..=600_199).contains(&lock.field("pttl").int()), "{lock:?}");
    assert_eq!(lock.field("holders"), &Value::Int(201));
    conn.ok("DLOCK.RELEASE k a");
    let (lock, after) = (listed(&mut conn, "k"), age_of_first(&mut conn));
    assert!(lock.field("held").int() <= after, "the released hold does not count: {lock:?} {after}");
    conn.ok("DLOCK.ACQUIRE free t 1 DELAY 600000");
    until("the lock is in its delay", || conn.ok("DLOCK.PTTL free") == -2);
    let delayed = listed(&mut conn, "free");
    assert_eq!((delayed.field("pttl"), delayed.field("held")), (&Value::Int(-2), &Value::Int(0)));
    // A script gets each lock as a flat array (RESP2). Its second element is the value of the field `key`.
    assert_eq!(conn.ok("EVAL return(redis.call('dlock.list',0,'match','free')[2][1][2]) 0"), "free");
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
        let mut app = server.user(&format!("+dlock.list {rules}"));
        assert_eq!(list_all(&mut app, "").into_keys().collect::<Vec<_>>(), shown, "{rules}");
    }
}
