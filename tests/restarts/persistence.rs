//! Locks and fences survive restarts and reloads, and other servers load the snapshots. Forged RESTORE
//! payloads and forged effects (commands in the append only file that set a lock) do no harm.

mod bytes;
mod effects;
mod elsewhere;
mod restarts;

use dlock_testkit::{Conn, Value, describe_lock, until};

/// Formats a lock without its remaining times, so that a test can compare two states.
#[track_caller]
fn state(conn: &mut Conn, key: &str) -> String {
    let lock = conn.ok(&format!("DLOCK.INSPECT {key}"));
    if lock.is_nil() {
        return "free".into();
    }
    // Only `delayed`, `closed` and `half` of `acquire_all_kinds` have this much of a lock-delay left.
    let in_delay = lock.field("delay").int() > 500_000;
    format!("{} {in_delay}", describe_lock(&lock))
}

/// Acquires a lock of every kind in database 0, and one lock in database 7. [`all_states`] reads them.
#[track_caller]
fn acquire_all_kinds(conn: &mut Conn) {
    for command in [
        "SELECT 7",
        "DLOCK.ACQUIRE seven t 600000",
        "SELECT 0",
        "DLOCK.ACQUIRE plain t 600000",
        "DLOCK.ACQUIRE deep t 600000 DEPTH 5 LABEL host:1",
        "DLOCK.ACQUIRE shared a 600000 SHARED",
        "DLOCK.ACQUIRE shared b 700000 SHARED DEPTH 2",
        "DLOCK.ACQUIRE permits a 600000 PERMITS 3 DELAY 5000",
        "DLOCK.ACQUIRE permits b 600000 PERMITS 4",
        "DLOCK.ACQUIRE ephemeral t 600000 EPHEMERAL",
        "DLOCK.ACQUIRE released t 600000",
        "DLOCK.RELEASE released t",
        "DLOCK.ACQUIRE closed t 600000",
        "DLOCK.RELEASE closed t DELAY 600000",
        "DLOCK.ACQUIRE half a 600000 SHARED",
        "DLOCK.ACQUIRE half b 600000 SHARED",
        "DLOCK.RELEASE half a ALL DELAY 600000",
        "DLOCK.ACQUIRE delayed t 1 DELAY 600000",
    ] {
        assert!(!conn.ok(command).is_nil(), "{command}");
    }
    let binary =
        conn.call(&[&b"DLOCK.ACQUIRE"[..], b"binary", b"\0\r\n\xff", b"600000", b"LABEL", b"\xfe \0"]);
    assert!(binary.int() > 0);
    until("only the delay is left", || conn.ok("DLOCK.HOLDS delayed t") == 0);
}

/// Returns the state of each lock of [`acquire_all_kinds`].
#[track_caller]
fn all_states(conn: &mut Conn) -> Vec<String> {
    let mut all = Vec::new();
    for (db, keys) in [
        (7, &["seven", "plain"][..]),
        (
            0,
            &[
                "plain",
                "deep",
                "shared",
                "permits",
                "ephemeral",
                "released",
                "binary",
                "delayed",
                "closed",
                "half",
            ],
        ),
    ] {
        conn.ok(&format!("SELECT {db}"));
        for key in keys {
            all.push(format!("{db} {key} {}", state(conn, key)));
            let left = conn.ok(&format!("DLOCK.PTTL {key}")).int();
            assert!(left == -2 || (540_000..=700_000).contains(&left), "{key}: {left} ms left");
        }
    }
    // Two keys are free: `released` in database 0, and `plain` in database 7, where it was never acquired.
    assert!(all.iter().any(|line| line.ends_with("free")) && all.len() == 12);
    all
}

/// The parts of a lock's DUMP payload. The server must not compress strings.
struct Dumped {
    /// The type and the module's name with its encoding version.
    head: Vec<u8>,
    /// The bytes that the module wrote.
    lock: Vec<u8>,
    /// The RDB version, and the checksum of the dumped payload. RESTORE does not check the checksum,
    /// because the tests switch the check off (`DEBUG SET-SKIP-CHECKSUM-VALIDATION`).
    foot: Vec<u8>,
}

impl Dumped {
    #[track_caller]
    fn of(conn: &mut Conn, key: &str) -> Dumped {
        let answer = conn.ok(&format!("DUMP {key}"));
        let bytes = answer.bytes();
        // Type, 0x81 (a number of 8 bytes follows), the module's name as such a number; string marker, length
        // and lock; end marker and foot.
        let (head, rest) = bytes.split_at(10);
        assert_eq!((head[0], head[1], rest[0]), (7, 0x81, 5), "{}", bytes.escape_ascii());
        let (length, start) = match rest[1] {
            short @ 0..64 => (short as usize, 2),
            long => ((long as usize & 0x3f) << 8 | rest[2] as usize, 3),
        };
        let (lock, end) = rest[start..].split_at(length);
        assert_eq!((end.len(), end[0]), (11, 0));
        Dumped { head: head.to_vec(), lock: lock.to_vec(), foot: end[1..].to_vec() }
    }

    /// Returns the part of a payload between head and foot, for these lock bytes. 0x4000 marks a length of
    /// two bytes.
    fn body(lock: &[u8]) -> Vec<u8> {
        let length = lock.len() as u16 | 0x4000;
        [&[5], &length.to_be_bytes()[..], lock, &[0]].concat()
    }

    /// Returns a RESTORE payload with this body.
    fn with(&self, body: &[u8]) -> Vec<u8> {
        [&self.head, body, &self.foot].concat()
    }
}

#[track_caller]
fn restore(conn: &mut Conn, key: &str, payload: &[u8]) -> Value {
    conn.call(&[&b"RESTORE"[..], key.as_bytes(), b"0", payload])
}
