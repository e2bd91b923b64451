//! The reads: DLOCK.HOLDS, PTTL, INSPECT, WAITERS; and DLOCK.TOKEN and HELP.

use std::collections::HashSet;

use super::{assert_lease, granted};
use dlock_testkit::{Server, ServerKind, Value, each_server};

#[each_server]
fn holds_returns_the_count_of_the_token(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    assert_eq!(conn.ok("DLOCK.HOLDS k t"), 0);
    granted(conn.ok("DLOCK.ACQUIRE k t 600000 DEPTH 3"));
    assert_eq!(conn.ok("DLOCK.HOLDS k t"), 3);
    assert_eq!(conn.ok("DLOCK.HOLDS k other"), 0);
    assert_eq!(conn.ok("DLOCK.HOLDS other t"), 0);
}

#[each_server]
fn pttl_returns_the_lease_of_the_token_or_the_longest(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    for free in ["DLOCK.PTTL k", "DLOCK.PTTL k a"] {
        assert_eq!(conn.ok(free), -2);
    }
    granted(conn.ok("DLOCK.ACQUIRE k a 600000 SHARED"));
    granted(conn.ok("DLOCK.ACQUIRE k b 3600000 SHARED"));
    granted(conn.ok("DLOCK.ACQUIRE k c 300000 SHARED"));
    assert_lease(&mut conn, "k", "a", 600_000);
    assert_lease(&mut conn, "k", "b", 3_600_000);
    assert_lease(&mut conn, "k", "c", 300_000);
    assert_lease(&mut conn, "k", "", 3_600_000);
    assert_eq!(conn.ok("DLOCK.PTTL k other"), -2);
    // The server's own TTL is never used.
    assert_eq!(conn.ok("PTTL k"), -1);
}

/// Bulk strings throughout, so that a client in either protocol decodes them alike.
fn expected(fence: i64, [pttl, held]: [i64; 2], client: i64, addr: &str) -> Vec<(&'static str, Value)> {
    let hold = [
        ("token", Value::from("t")),
        ("count", 2.into()),
        ("fence", fence.into()),
        ("pttl", pttl.into()),
        ("held", held.into()),
        ("label", "host 1".into()),
        ("ephemeral", 1.into()),
        ("client", client.into()),
        ("addr", addr.into()),
    ];
    vec![
        ("mode", "exclusive".into()),
        ("permits", 0.into()),
        ("fence", fence.into()),
        ("holders", Value::Array(vec![map(hold)])),
        ("holders-count", 1.into()),
        ("waiters", 0.into()),
        ("delay", 0.into()),
    ]
}

fn map(pairs: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    Value::Map(pairs.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

/// As RESP2 has it: names and values in turn.
fn flat(value: Value) -> Value {
    match value {
        Value::Map(pairs) => {
            Value::Array(pairs.into_iter().flat_map(|(name, value)| [name, flat(value)]).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(flat).collect()),
        other => other,
    }
}

#[each_server]
fn inspect_is_a_map_in_resp3_and_the_same_as_an_array_in_resp2(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    let ask =
        [&b"DLOCK.ACQUIRE"[..], b"k", b"t", b"600000", b"DEPTH", b"2", b"EPHEMERAL", b"LABEL", b"host 1"];
    let fence = granted(conn.call(&ask));
    let client = conn.client_id();
    let info = conn.ok(&format!("CLIENT LIST ID {client}")).text();
    let addr = info.split(' ').find_map(|field| field.strip_prefix("addr=")).expect("an address").to_owned();
    for protocol in [2, 3] {
        if protocol == 3 {
            conn.hello3();
        }
        let lock = conn.ok("DLOCK.INSPECT k");
        let [left, held] = ["pttl", "held"].map(|name| lock.field("holders").items()[0].field(name).int());
        assert!((540_000..=600_000).contains(&left) && (0..60_000).contains(&held), "{left} {held}");
        let wanted = map(expected(fence, [left, held], client, &addr));
        assert_eq!(lock, if protocol == 3 { wanted } else { flat(wanted) });
    }
}

/// Known while that connection lives.
#[each_server]
fn inspect_shows_the_connection_of_each_hold(kind: &ServerKind) {
    let server = Server::start(kind);
    let (mut conn, mut look, mut holder) = (server.connect(), server.connect(), server.connect());
    granted(holder.ok("DLOCK.ACQUIRE k t 600000"));
    let mut seen = || {
        let lock = conn.ok("DLOCK.INSPECT k");
        let hold = &lock.field("holders").items()[0];
        (hold.field("client").int(), hold.field("addr").text())
    };
    let (client, addr) = seen();
    assert_eq!(client, holder.client_id());
    assert!(addr.starts_with("127.0.0.1:"), "{addr}");
    // A waiter's hold is the waiter's, whoever has released the lock.
    let mut waiter = server.connect();
    let waiting = waiter.client_id();
    waiter.send(&["DLOCK.ACQUIRE", "k", "w", "600000", "BLOCK", "0"]);
    dlock_testkit::until("it waits", || !look.ok("DLOCK.WAITERS k").items().is_empty());
    holder.ok("DLOCK.RELEASE k t");
    granted(waiter.read());
    assert_eq!(seen().0, waiting);
    drop(waiter);
    dlock_testkit::until("the connection is gone", || seen() == (0, String::new()));
}

#[each_server]
fn inspect_shows_the_mode_and_every_holder(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    conn.hello3();
    assert_eq!(conn.ok("DLOCK.INSPECT k"), Value::Nil);
    for (mode, word, permits) in [("SHARED", "shared", 0), ("PERMITS 5", "permits", 5)] {
        let key = word;
        let first = granted(conn.ok(&format!("DLOCK.ACQUIRE {key} a 600000 {mode}")));
        let latest = granted(conn.ok(&format!("DLOCK.ACQUIRE {key} b 600000 {mode}")));
        assert!(latest > first, "every grant has its own: {latest} after {first}");
        let lock = conn.ok(&format!("DLOCK.INSPECT {key}"));
        assert_eq!(lock.field("mode"), &word);
        assert_eq!(lock.field("permits"), &permits);
        assert_eq!(lock.field("fence"), &latest);
        let holders: Vec<String> =
            lock.field("holders").items().iter().map(|hold| hold.field("token").text()).collect();
        assert_eq!(holders, ["a", "b"]);
    }
}

#[each_server]
fn waiters_is_empty_and_cancel_returns_0_without_a_queue(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    granted(conn.ok("DLOCK.ACQUIRE k t 600000"));
    for key in ["k", "free"] {
        assert_eq!(conn.ok(&format!("DLOCK.WAITERS {key}")), Value::Array(vec![]));
        assert_eq!(conn.ok(&format!("DLOCK.WAITERS {key} COUNT 3")), Value::Array(vec![]));
        assert_eq!(conn.ok(&format!("DLOCK.CANCEL {key} t")), 0);
        assert_eq!(conn.ok(&format!("DLOCK.CANCEL {key} CLIENT 1")), 0);
    }
    assert_eq!(conn.ok("DLOCK.HOLDS k t"), 1);
    assert_eq!(conn.ok("EXISTS free"), 0);
}

#[each_server]
fn reads_change_nothing(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    granted(conn.ok("DLOCK.ACQUIRE k t 600000"));
    let dirty = server.info("rdb_changes_since_last_save");
    for key in ["k", "free"] {
        for read in ["HOLDS {} t", "PTTL {}", "PTTL {} t", "INSPECT {}", "WAITERS {}"] {
            conn.ok(&format!("DLOCK.{}", read.replace("{}", key)));
        }
    }
    assert_eq!(conn.ok("EXISTS free"), 0);
    assert_eq!(server.info("rdb_changes_since_last_save"), dirty);
    assert_lease(&mut conn, "k", "t", 600_000);
}

#[each_server]
fn inspect_and_waiters_show_at_most_1000_entries(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    conn.hello3();
    let fill = "for n = 1, 1500 do redis.call('DLOCK.ACQUIRE', 'k', 'token:' .. n, '600000', 'SHARED') end";
    assert!(conn.call(&["EVAL", fill, "0"]).is_nil());
    conn.ok("CONFIG SET dlock.max-waiters-per-key 2000");
    let queue =
        "for n = 1, 1500 do redis.call('DLOCK.ACQUIRE', 'k', 'w' .. n, '600000', 'QUEUE', '600000') end";
    assert!(conn.call(&["EVAL", queue, "0"]).is_nil());
    let cases = [
        ("", 1000),
        (" COUNT 1", 1),
        (" count 999", 999),
        (" COUNT 1200", 1000),
        (" COUNT 2147483647", 1000),
    ];
    for (ask, shown) in cases {
        assert_eq!(conn.ok(&format!("DLOCK.WAITERS k{ask}")).items().len(), shown, "{ask}");
        let lock = conn.ok(&format!("DLOCK.INSPECT k{ask}"));
        let tokens: HashSet<String> =
            lock.field("holders").items().iter().map(|hold| hold.field("token").text()).collect();
        assert_eq!((tokens.len(), lock.field("holders-count")), (shown, &1500.into()), "{ask}");
    }
    assert_eq!(conn.ok("DLOCK.INSPECT none COUNT 5"), Value::Nil);
    for wrong in ["COUNT", "COUNT 0", "COUNT x", "COUNT 1 COUNT 2", "MOST 1"] {
        assert!(conn.say(&format!("DLOCK.INSPECT k {wrong}")).error().starts_with("ERR"), "{wrong}");
    }
}

#[each_server]
fn token_returns_27_fresh_url_safe_characters(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    let mut seen = HashSet::new();
    for _ in 0..100 {
        let token = conn.ok("DLOCK.TOKEN").text();
        let url_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        assert!(token.len() == 27 && token.bytes().all(url_safe), "{token}");
        assert!(seen.insert(token), "the same token twice");
    }
    let token = seen.into_iter().next().expect("there are a hundred");
    granted(conn.ok(&format!("DLOCK.ACQUIRE k {token} 600000")));
    // It takes no allocation of its own.
    granted(conn.ok("DLOCK.ACQUIRE s t 600000"));
    assert_eq!(conn.ok("MEMORY USAGE k"), conn.ok("MEMORY USAGE s"));
}

#[each_server]
fn help_lists_every_client_command(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    let lines: Vec<String> = conn.ok("DLOCK.HELP").items().iter().map(Value::text).collect();
    assert_eq!(lines[0], "DLOCK.<command> [<arg> [value] ...]. Commands are:");
    let loaded = conn.ok("COMMAND LIST FILTERBY MODULE dlock");
    let mut loaded: Vec<String> = loaded.items().iter().map(|name| name.text().to_uppercase()).collect();
    loaded.retain(|name| !["DLOCK._SET", "DLOCK._MAY"].contains(&name.as_str()));
    let mut helped: Vec<String> = lines[1..]
        .chunks(2)
        .map(|pair| {
            assert!(pair[1].starts_with("    ") && pair[1].ends_with('.'), "{pair:?}");
            pair[0].split(' ').next().expect("a word").to_string()
        })
        .collect();
    loaded.sort();
    helped.sort();
    assert_eq!(helped, loaded);
    assert_eq!(helped.len(), 16);
}
