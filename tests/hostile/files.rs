//! Damaged files: a server that loads one either starts with consistent locks, or logs the fault and exits.
//! The server parses the file and passes the stored locks and effects (logged changes of locks) to the
//! module. The fuzz targets `stored` and `effects` test the module without a server, a million times as fast.
//! `DLOCK_SECONDS` makes these tests longer (`make fuzz`).

#![allow(clippy::disallowed_methods, reason = "the tests measure how long they and the servers run")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dlock_testkit::{Conn, Options, Random, Server, ServerKind, Value, each_server, run_time, until};

/// Commands that create every kind of lock, and another key. Every token begins with `token`, so that
/// [`damage`] finds it in the file.
const LOCKS: [&str; 13] = [
    "DLOCK.ACQUIRE plain token1 600000",
    "DLOCK.ACQUIRE deep token1 600000 DEPTH 5 LABEL host:1",
    "DLOCK.ACQUIRE shared token1 600000 SHARED",
    "DLOCK.ACQUIRE shared token2 700000 SHARED DEPTH 2",
    "DLOCK.ACQUIRE shared token3 800000 SHARED LABEL host:2",
    "DLOCK.ACQUIRE permits token1 600000 PERMITS 3 DELAY 5000",
    "DLOCK.ACQUIRE permits token2 600000 PERMITS 3",
    "DLOCK.ACQUIRE ephemeral token1 600000 EPHEMERAL",
    "DLOCK.ACQUIRE released token1 600000",
    "DLOCK.RELEASE released token1",
    "DLOCK.RELEASE shared token3",
    "SET text token",
    "DLOCK.ACQUIRE later token1 600000",
];

/// Data files of a server: path in its folder, and contents.
type Files = Vec<(PathBuf, Vec<u8>)>;

fn files_in(dir: &Path, below: &Path, found: &mut Files) {
    for entry in fs::read_dir(dir.join(below)).expect("the server's folder") {
        let path = below.join(entry.expect("an entry").file_name());
        let name = path.to_string_lossy().into_owned();
        if dir.join(&path).is_dir() {
            files_in(dir, &path, found);
        } else if name.ends_with(".rdb") || name.contains("appendonlydir") {
            found.push((path.clone(), fs::read(dir.join(&path)).expect("the file can be read")));
        }
    }
}

fn write_files(dir: &Path, files: &Files) {
    let _ = fs::remove_dir_all(dir.join("appendonlydir"));
    for (path, bytes) in files {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("the folder can be created");
        fs::write(path, bytes).expect("the file can be written");
    }
}

/// Runs [`LOCKS`] and `finish`, kills the server, and returns it with its files.
fn killed_server(options: Options, finish: impl Fn(&Server)) -> (Server, Files) {
    // With a checksum, the server would refuse every damaged file before the module reads it.
    let server = options.conf("rdbchecksum no").conf("rdbcompression no").start();
    let mut conn = server.connect();
    for command in LOCKS {
        assert!(!conn.ok(command).is_nil(), "{command}");
    }
    finish(&server);
    server.kill9();
    let mut files = Files::new();
    files_in(server.dir(), Path::new(""), &mut files);
    (server, files)
}

/// Limit of a run: a number of files, or a time.
struct Limit {
    files: usize,
    until: Option<Instant>,
}

impl Limit {
    fn new() -> Limit {
        Limit { files: 12, until: run_time().map(|limit| Instant::now() + limit) }
    }

    fn allows_another(&mut self) -> bool {
        let more = self.until.map_or(self.files > 0, |until| Instant::now() < until);
        self.files = self.files.saturating_sub(1);
        more
    }
}

/// Returns true if the log shows a crash in the module. Crashes of the server itself do not count. Redis 7.0
/// crashes on a SET without arguments in an append only file. Every server crashes on a key that appears
/// twice in a snapshot. Memory damage is left to AddressSanitizer (`make asan`).
fn is_module_crash(log: &str) -> bool {
    let trace = log
        .split("STACK TRACE")
        .skip(1)
        .any(|rest| rest.split("REGISTERS").next().unwrap_or_default().contains("libdlock.so("));
    trace || ["panicked at", "internal error at"].iter().any(|bad| log.contains(bad))
}

/// Restarts the server on many damaged copies of its files, one after the other.
fn load_damaged(options: Options, finish: impl Fn(&Server)) {
    let mut random = Random::fresh();
    let (mut server, files) = killed_server(options, finish);
    server.restart();
    let undamaged = check(&server);
    assert_eq!(undamaged, 6, "the undamaged files contain six locks");
    let (mut loaded, mut refused, mut changed) = (0, 0, 0);
    let mut limit = Limit::new();
    while limit.allows_another() {
        if server.is_alive() {
            server.kill9();
        }
        let mut damaged = files.clone();
        match (loaded + refused) % 4 {
            // Both outcomes must occur: every server loads the first kind of damage, and none the second.
            0 => damaged.iter_mut().for_each(|(_, bytes)| relabel(bytes, &mut random)),
            1 => damaged.iter_mut().for_each(|(_, bytes)| bytes[0] ^= 0xff),
            _ => {
                let at = random.below(damaged.len());
                damage(&mut damaged[at].1, b"token", &mut random);
            }
        }
        write_files(server.dir(), &damaged);
        let began = Instant::now();
        match server.try_restart() {
            Ok(()) => {
                loaded += 1;
                changed += usize::from(check(&server) != undamaged);
            }
            Err(log) => {
                refused += 1;
                // `try_restart` gives up after 60 s. A server that refuses the files exits long before.
                assert!(began.elapsed() < Duration::from_secs(50), "the server hangs:\n{log}");
                assert!(!is_module_crash(&log), "{log}");
            }
        }
    }
    println!("{loaded} loaded, {changed} of them with another number of locks, {refused} refused");
    assert!(refused > 0 && loaded > 0, "{loaded} loaded, {refused} refused");
    // Dropping the server fails the test if the server does not run.
    write_files(server.dir(), &files);
    server.restart();
}

/// Changes bytes in the labels, which are free text.
fn relabel(bytes: &mut [u8], random: &mut Random) {
    let places = bytes.windows(5).enumerate().filter(|(_, window)| *window == b"host:");
    for at in places.map(|(at, _)| at).collect::<Vec<_>>() {
        bytes[at..at + 5].fill_with(|| random.below(256) as u8);
    }
}

/// A lock as INSPECT, DEBUG DIGEST-VALUE and PTTL show it.
#[derive(Debug)]
struct Shown {
    /// Database, key, holders, digest.
    lock: String,
    /// Lease left in ms, as PTTL returns it.
    left: i64,
}

fn shown(conn: &mut Conn) -> Vec<Shown> {
    let mut all = Vec::new();
    for db in 0..16 {
        conn.ok(&format!("SELECT {db}"));
        for key in keys(conn) {
            let lock = conn.call(&[&b"DLOCK.INSPECT"[..], &key]);
            if lock.is_nil() {
                continue;
            }
            let holders = lock.field("holders").items();
            let max_holders = match lock.field("mode").text().as_str() {
                "free" => 0,
                "exclusive" => 1,
                "permits" => lock.field("permits").int() as usize,
                _ => usize::MAX,
            };
            assert!(holders.len() <= max_holders, "{lock:?}");
            let fields =
                |hold: &Value| ["token", "count", "fence", "label"].map(|name| hold.field(name).clone());
            let holders: Vec<_> = holders.iter().map(fields).collect();
            let digest = conn.call(&[&b"DEBUG"[..], b"DIGEST-VALUE", &key]);
            let left = conn.call(&[&b"DLOCK.PTTL"[..], &key]).int();
            all.push(Shown { lock: format!("{db} {} {holders:?} {digest:?}", key.escape_ascii()), left });
        }
    }
    all
}

/// Returns the keys of the selected database that hold locks.
fn keys(conn: &mut Conn) -> Vec<Vec<u8>> {
    let keys: Vec<Vec<u8>> = conn.ok("KEYS *").items().iter().map(|key| key.bytes().to_vec()).collect();
    keys.into_iter().filter(|key| conn.call(&[&b"TYPE"[..], key]) == "dlock-key").collect()
}

/// Asserts that the loaded locks are consistent, survive a reload, and can be broken and acquired. Returns
/// the number of locks.
#[track_caller]
fn check(server: &Server) -> usize {
    let mut conn = server.connect();
    let before = shown(&mut conn);
    let fence = server.number("dlock_fence");
    assert!(fence < 1 << 53, "{fence}");
    assert_eq!(conn.ok("DEBUG RELOAD"), "OK");
    let reloaded = shown(&mut conn);
    // A damaged lease may be short, and end during the reload.
    for lock in before.iter().filter(|lock| lock.left > 60_000) {
        assert!(reloaded.iter().any(|other| other.lock == lock.lock), "{lock:?} is not in {reloaded:?}");
    }
    for db in 0..16 {
        conn.ok(&format!("SELECT {db}"));
        for key in keys(&mut conn) {
            // The files are too short for more than 1,000 holds.
            assert!(conn.call(&[&b"DLOCK.BREAK"[..], &key]).int() <= 1_000);
            match conn.call(&[&b"DLOCK.ACQUIRE"[..], &key, b"fresh", b"60000"]) {
                Value::Int(next) => assert!(next > fence, "{next} after {fence}"),
                Value::Error(line) => assert!(line.contains("no fence is left"), "{line}"),
                other => panic!("expected a grant of the broken lock, got {other:?}"),
            }
            assert!(conn.call(&[&b"DLOCK.RELEASE"[..], &key, b"fresh"]).int() <= 1);
        }
    }
    let gauges = ["dlock_held", "dlock_holders"];
    until("no lock is held", || server.numbers(gauges) == [0, 0]);
    before.len()
}

#[each_server]
fn damaged_snapshots_do_not_crash_the_server(kind: &ServerKind) {
    load_damaged(Server::options(kind), |server| drop(server.connect().ok("SAVE")));
}

/// Two files of effects: the rewritten base, and later effects.
#[each_server]
fn damaged_append_only_files_do_not_crash_the_server(kind: &ServerKind) {
    load_damaged(Server::options(kind).synced().conf("aof-use-rdb-preamble no"), rewrite_and_append);
}

/// Two files: a snapshot as the base, and later effects.
#[each_server]
fn damaged_append_only_files_with_a_preamble_do_not_crash_the_server(kind: &ServerKind) {
    load_damaged(Server::options(kind).synced(), rewrite_and_append);
}

fn rewrite_and_append(server: &Server) {
    let mut conn = server.connect();
    server.rewrite();
    for command in [
        "DLOCK.EXTEND plain token1 900000",
        "DLOCK.ACQUIRE shared token4 600000 SHARED",
        "DLOCK.RELEASE shared token2",
        "DLOCK.BREAK deep",
        "SELECT 3",
        "DLOCK.ACQUIRE third token1 600000",
    ] {
        assert!(!conn.ok(command).is_nil(), "{command}");
    }
}

/// Numbers at which lengths, counts and deadlines often fail.
const NUMBERS: [u64; 10] =
    [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 53, i64::MAX as u64, u64::MAX];

/// Changes `bytes` at random, half of the changes near occurrences of `interesting`.
fn damage(bytes: &mut Vec<u8>, interesting: &[u8], random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        let places: Vec<usize> = bytes
            .windows(interesting.len())
            .enumerate()
            .filter(|(_, window)| *window == interesting)
            .map(|(at, _)| at)
            .collect();
        let at = if places.is_empty() || random.once_in(2) {
            random.below(bytes.len() + 1)
        } else {
            // In a stored hold, the numbers precede the token, and the label follows the token.
            (random.of(&places) + random.below(96)).saturating_sub(64).min(bytes.len())
        };
        change(bytes, at, random);
        if bytes.is_empty() {
            return;
        }
    }
}

fn change(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let end = (at + 1 + random.below(24)).min(bytes.len());
    match random.below(10) {
        // Most changes keep the number of bytes, so that the file's length fields stay correct.
        0..3 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        3..5 if at < bytes.len() => bytes[at] = random.below(256) as u8,
        5..7 => {
            let number = random.of(&NUMBERS).to_le_bytes();
            let size = [1, 2, 4, 8][random.below(4)].min(bytes.len() - at);
            bytes[at..at + size].copy_from_slice(&number[..size]);
        }
        7 => drop(bytes.drain(at..end)),
        8 => {
            let copy = bytes[at..end].to_vec();
            let to = random.below(bytes.len() + 1);
            bytes.splice(to..to, copy);
        }
        _ if random.once_in(4) => bytes.truncate(at),
        _ => {
            let noise: Vec<u8> = (0..random.below(16)).map(|_| random.below(256) as u8).collect();
            bytes.splice(at..at, noise);
        }
    }
}
