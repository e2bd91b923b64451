//! DUMP and RESTORE: round trips and forged bytes.

use super::{Dumped, restore, state};
use dlock_testkit::wall_clock::micros;
use dlock_testkit::{Conn, Layout, Server, ServerKind, Value, each_server, until};

/// Starts a server that does not check checksums, and does not compress strings, so that [`Dumped`] can split
/// a payload.
#[track_caller]
fn without_checksums(kind: &ServerKind) -> (Server, Conn) {
    let server = Server::options(kind).conf("rdbcompression no").start();
    let mut conn = server.connect();
    // Forged bytes must pass the server's own check: an attacker could compute a valid checksum.
    assert_eq!(conn.ok("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1"), "OK");
    (server, conn)
}

#[each_server]
fn dump_and_restore_keep_a_lock_unchanged(kind: &ServerKind) {
    let (server, mut conn) = without_checksums(kind);
    for (key, command) in [
        ("plain", "DLOCK.ACQUIRE plain t 600000 DEPTH 3 LABEL host"),
        ("shared", "DLOCK.ACQUIRE shared a 600000 SHARED"),
        ("permits", "DLOCK.ACQUIRE permits a 600000 PERMITS 2 DELAY 100"),
    ] {
        assert!(conn.ok(command).int() > 0);
        let before = state(&mut conn, key);
        let payload = conn.ok(&format!("DUMP {key}")).bytes().to_vec();
        assert!(restore(&mut conn, key, &payload).error().starts_with("BUSYKEY"));
        assert_eq!(conn.ok(&format!("DLOCK.BREAK {key}")), 1);
        assert_eq!(restore(&mut conn, key, &payload), "OK");
        assert_eq!(state(&mut conn, key), before);
        let left = conn.ok(&format!("DLOCK.PTTL {key}")).int();
        assert!((540_000..=600_000).contains(&left), "{left}");
    }
    assert_eq!(server.numbers(["dlock_held", "dlock_holders"]), [3; 2]);
    // RESTORE with REPLACE ends the hold of the replaced lock, and counts the restored hold.
    conn.ok("DLOCK.ACQUIRE other x 600000");
    let payload = conn.ok("DUMP plain").bytes().to_vec();
    assert_eq!(conn.call(&[&b"RESTORE"[..], b"other", b"0", &payload, b"REPLACE"]), "OK");
    assert_eq!(state(&mut conn, "other"), state(&mut conn, "plain"));
    assert_eq!(server.numbers(["dlock_held", "dlock_holders"]), [4; 2]);
}

/// A frozen fixture is a file of the core's tests with the bytes of a lock, which later versions must still
/// load. This one has a hold with count 3 and 29.9 s left.
#[each_server]
fn the_bytes_of_a_frozen_fixture_are_restored(kind: &ServerKind) {
    let digits: String = include_str!("../../../crates/core/tests/fixtures/4/exclusive.hex")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("two hexadecimal digits");
    let lock: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
    let (_server, mut conn) = without_checksums(kind);
    conn.ok("DLOCK.ACQUIRE other t 600000");
    let payload = Dumped::of(&mut conn, "other").with(&Dumped::body(&lock));
    assert_eq!(restore(&mut conn, "k", &payload), "OK");
    let hold = conn.ok("DLOCK.INSPECT k").field("holders").items()[0].clone();
    assert_eq!(hold.field("count").int(), 3);
    assert_eq!(hold.field("label").text(), "host-7/backup");
    assert!((1..=29_901).contains(&hold.field("pttl").int()), "{hold:?}");
    assert_eq!(Layout::of(&Dumped::of(&mut conn, "k").lock).version, 4);
}

#[each_server]
fn a_restored_lease_keeps_its_deadline(kind: &ServerKind) {
    let (server, mut conn) = without_checksums(kind);
    conn.ok("DLOCK.ACQUIRE k t 300");
    let payload = conn.ok("DUMP k").bytes().to_vec();
    conn.ok("DLOCK.RELEASE k t");
    assert_eq!(restore(&mut conn, "k", &payload), "OK");
    until("the restored hold ends", || conn.ok("EXISTS k") == 0);
    assert_eq!(server.number("dlock_expiries"), 1);
    // After a second RESTORE, no command shows the hold, because it has expired.
    conn.send_batch(&[&[&b"RESTORE"[..], b"k", b"0", &payload][..], &[b"DLOCK.HOLDS", b"k", b"t"]]);
    assert_eq!((conn.read(), conn.read()), (Value::Simple("OK".into()), 0.into()));
    until("the background job removes the key", || conn.ok("EXISTS k") == 0);
}

/// MIGRATE and replication cross machines whose clocks may differ.
#[each_server]
fn a_lease_restored_from_another_machine_starts_at_its_arrival(kind: &ServerKind) {
    let (master, mut conn) = without_checksums(kind);
    let (replica, mut replica_conn) = without_checksums(kind);
    replica.replicate(&master);
    conn.ok("DLOCK.ACQUIRE k t 600000");
    let dumped = Dumped::of(&mut conn, "k");
    // Changes the bytes to those of another boot, with a clock five minutes behind. `put` lists the holds.
    let mut lock = Layout::of(&dumped.lock);
    lock.boot ^= 1;
    lock.at -= 300_000;
    lock.put[0].deadline -= 300_000;
    let payload = dumped.with(&Dumped::body(&lock.bytes()));
    assert_eq!(restore(&mut conn, "moved", &payload), "OK");
    replica.wait_in_sync(&master);
    for (place, conn) in [("master", &mut conn), ("replica", &mut replica_conn)] {
        let left = conn.ok("DLOCK.PTTL moved").int();
        assert!((540_000..=600_000).contains(&left), "{place}: {left}");
    }
}

/// RESTORE reads the lock before it checks the native TTL, and drops the lock if the TTL has elapsed. The
/// gauges used to count the dropped lock for ever.
#[each_server]
fn a_restored_key_with_an_elapsed_ttl_counts_as_no_hold(kind: &ServerKind) {
    let (server, mut conn) = without_checksums(kind);
    conn.ok("DLOCK.ACQUIRE k t 600000");
    let payload = conn.ok("DUMP k").bytes().to_vec();
    let expired = [&b"RESTORE"[..], b"x", b"1", &payload, b"ABSTTL"];
    let live = [&b"RESTORE"[..], b"y", b"0", &payload];
    // In the same write, so that these locks are acquired before the background job removes the dropped locks
    // from the gauges.
    let others = ["DLOCK.ACQUIRE z t 600000", "DLOCK.ACQUIRE x t 600000"]
        .map(|c| c.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    conn.send_batch(&[&expired[..], &expired, &expired, &live, &[b"DEL", b"y"], &others[0], &others[1]]);
    for _ in 0..7 {
        assert!(!matches!(conn.read(), Value::Error(_)));
    }
    let gauges = ["dlock_held", "dlock_holders"];
    until("the gauges count the three existing locks", || server.numbers(gauges) == [3, 3]);
    // The background job also removes the existing locks when their leases end.
    for key in ["k", "x", "z"] {
        assert_eq!(conn.ok(&format!("DLOCK.EXTEND {key} t 1")), 1);
    }
    until("all holds have ended", || conn.ok("DBSIZE") == 0);
    assert_eq!(server.numbers(["dlock_held", "dlock_holders"]), [0; 2]);
}

#[each_server]
fn restore_refuses_every_truncated_payload(kind: &ServerKind) {
    let (_server, mut conn) = without_checksums(kind);
    conn.ok("DLOCK.ACQUIRE k a 600000 SHARED LABEL host");
    conn.ok("DLOCK.ACQUIRE k b 600000 SHARED");
    let dumped = Dumped::of(&mut conn, "k");
    let whole = Dumped::body(&dumped.lock);
    assert_eq!(restore(&mut conn, "whole", &dumped.with(&whole)), "OK", "the undamaged bytes are valid");
    // Truncated bodies, truncated locks in complete bodies, and a lock with one byte too many. Each truncated
    // body lacks more bytes than the foot (RDB version and checksum) has: otherwise the server would take the
    // foot for the missing bytes.
    let bodies = (0..whole.len() - dumped.foot.len()).map(|end| whole[..end].to_vec());
    let locks = (0..dumped.lock.len()).map(|end| Dumped::body(&dumped.lock[..end]));
    let longer = [dumped.lock.clone(), vec![0]].concat();
    for body in bodies.chain(locks).chain([Dumped::body(&longer)]) {
        let refused = restore(&mut conn, "x", &dumped.with(&body));
        assert_eq!(refused.error(), "ERR Bad data format", "{}", body.escape_ascii());
        assert_eq!(conn.ok("EXISTS x"), 0);
    }
}

/// Asserts that the numbers of the restored lock `x` are within their bounds. `payload` is for the message.
#[track_caller]
fn assert_within_bounds(conn: &mut Conn, payload: &[u8]) {
    let lock = conn.ok("DLOCK.INSPECT x");
    if lock.is_nil() {
        return;
    }
    // RESTORE accepts a fence that is up to 10 s ahead of the clock.
    let bound = micros(conn) + 10_000_000;
    for hold in lock.field("holders").items() {
        let fields = [("fence", bound), ("pttl", 86_400_000), ("count", i32::MAX.into())];
        for (name, most) in fields {
            let value = hold.field(name).int();
            assert!((0..=most).contains(&value), "{name} {value}, restored from {}", payload.escape_ascii());
        }
    }
    let delay = lock.field("delay").int();
    assert!(delay <= 86_400_000, "delay {delay}, restored from {}", payload.escape_ascii());
}

#[each_server]
fn a_lock_with_a_flipped_bit_is_refused_or_restored_within_bounds(kind: &ServerKind) {
    let (server, mut conn) = without_checksums(kind);
    conn.ok("DLOCK.ACQUIRE a a 600000 SHARED LABEL host DELAY 5000 EPHEMERAL");
    conn.ok("DLOCK.ACQUIRE a b 600000 SHARED");
    conn.ok("DLOCK.ACQUIRE b t 600000");
    conn.ok("DLOCK.ACQUIRE c t 600000 PERMITS 2");
    conn.ok("DLOCK.ACQUIRE d t 1 DELAY 86400000");
    until("only the delay of d is left", || {
        conn.ok("DLOCK.HOLDS d t") == 0 && server.number("dlock_expiries") == 1
    });
    let (mut refused, mut accepted) = (0, 0);
    for key in ["a", "b", "c", "d"] {
        let dumped = Dumped::of(&mut conn, key);
        let body = Dumped::body(&dumped.lock);
        for bit in 0..body.len() * 8 {
            let mut flipped = body.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let payload = dumped.with(&flipped);
            match restore(&mut conn, "x", &payload) {
                Value::Error(line) => {
                    assert_eq!(line, "ERR Bad data format");
                    assert_eq!(conn.ok("EXISTS x"), 0);
                    refused += 1;
                }
                _ => {
                    assert_within_bounds(&mut conn, &flipped);
                    // The server answers each command. The replies depend on the flipped bit.
                    for command in [
                        "DLOCK.ACQUIRE x new 1000",
                        "DLOCK.EXTEND x t 1000",
                        "DLOCK.BREAK x",
                        "DUMP x",
                        "DEL x",
                    ] {
                        let _ = conn.say(command);
                    }
                    accepted += 1;
                }
            }
        }
    }
    assert!(refused > 300 && accepted > 300, "{refused} refused, {accepted} accepted");
    // No forged fence raised the server's last fence beyond the bound of 10 s. The 11th second is a margin.
    assert!(server.number("dlock_fence") <= micros(&mut conn) + 11_000_000);
    assert_eq!(server.numbers(["dlock_held", "dlock_holders"]), [4; 2]);
}

/// The logged reason of the refusal, and the change to valid bytes that causes it.
type Forgery<'a> = (&'a str, &'a dyn Fn(&mut Layout));

#[each_server]
fn restore_refuses_values_beyond_the_bounds_and_logs_the_reason(kind: &ServerKind) {
    let (server, mut conn) = without_checksums(kind);
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000 DELAY 1000").int();
    let dumped = Dumped::of(&mut conn, "k");
    let valid = Layout::of(&dumped.lock);
    let forbidden_fence = fence as u64 + 60_000_000;
    // These are examples; the core's tests cover every field. Mode 2 is a shared lock. Mode 6 is a change of
    // a shared lock, which only effects contain. Mode 8 does not exist. `counts.1` is the number of holds. A
    // fence may be 10 s ahead of the clock; `forbidden_fence` is 60 s ahead.
    let forgeries: &[Forgery<'_>] = &[
        ("version 5, this module reads 4", &|lock| lock.version = 5),
        ("impossible mode", &|lock| lock.mode = 8),
        ("a change of a lock, not a lock", &|lock| lock.mode = 6),
        ("end too early", &|lock| (lock.mode, lock.counts.1) = (2, u32::MAX.into())),
        ("further ahead of this server's clock", &|lock| lock.put[0].fence = forbidden_fence),
        ("longer than dlock.max-ttl", &|lock| lock.put[0].ttl = 86_400_001),
        ("longer than dlock.max-ttl", &|lock| lock.put[0].delay = 86_400_001),
    ];
    for (why, forge) in forgeries {
        let mut forged = valid.clone();
        forge(&mut forged);
        let forged = forged.bytes();
        let logged = server.log().len();
        let refused = restore(&mut conn, "x", &dumped.with(&Dumped::body(&forged)));
        assert_eq!(refused.error(), "ERR Bad data format", "{why}");
        let log = server.log().split_off(logged);
        assert!(log.contains("dlock: refused a stored lock") && log.contains(why), "{why}: {log}");
    }
    // A ttl above the current dlock.max-ttl is refused, although the lock was granted with it.
    conn.ok("CONFIG SET dlock.max-ttl 500000");
    assert!(restore(&mut conn, "x", &dumped.with(&Dumped::body(&dumped.lock))).error().starts_with("ERR"));
    conn.ok("CONFIG SET dlock.max-ttl 600000");
    assert_eq!(restore(&mut conn, "x", &dumped.with(&Dumped::body(&dumped.lock))), "OK");
    assert_eq!(server.number("dlock_fence"), fence);
}

#[each_server]
fn restore_refuses_a_newer_encoding_and_logs_the_reason(kind: &ServerKind) {
    let (server, mut conn) = without_checksums(kind);
    conn.ok("DLOCK.ACQUIRE k t 600000");
    let mut dumped = Dumped::of(&mut conn, "k");
    // The head ends with the module's name as a number. Its lowest bits are the encoding version.
    *dumped.head.last_mut().expect("the head is not empty") += 1;
    let refused = restore(&mut conn, "x", &dumped.with(&Dumped::body(&dumped.lock)));
    assert_eq!(refused.error(), "ERR Bad data format");
    assert!(server.log().contains("a newer module wrote it, load that one"));
}
