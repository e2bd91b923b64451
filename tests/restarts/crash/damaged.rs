//! Truncated and damaged files: the server loads the intact part, or names the fault and does not start.

use std::fs;
use std::path::PathBuf;

use super::{attempts, lossless};
use dlock_testkit::{Random, Server, ServerKind, aof, each_server, locks_without_fence, parse, preloaded};

/// A dead server, its append only file, and the length of the file and the locks after each command.
struct WrittenFile {
    server: Server,
    file: PathBuf,
    bytes: Vec<u8>,
    states: Vec<(usize, Vec<String>)>,
}

/// Runs commands of each kind, and kills the server. The module logs most changes as effects (`DLOCK._SET`
/// with the changed holds). It logs an ACQUIRE without options verbatim if the last effect is of the
/// same millisecond. The module's clock is frozen, so that the file contains both forms.
fn write_file(kind: &ServerKind, conf: &str) -> WrittenFile {
    let kind = &preloaded(kind, "tests/replication/frozen_clock.c", &[]);
    let server = Server::options(kind).synced().conf(conf).start();
    let file = aof::incremental(server.dir());
    let mut conn = server.connect();
    let length = || fs::metadata(&file).expect("the file exists").len() as usize;
    let mut states = vec![(0, locks_without_fence(&server))];
    for command in [
        "DLOCK.ACQUIRE a t 36000000",
        "DLOCK.ACQUIRE b t 36000000 SHARED LABEL host",
        "DLOCK.ACQUIRE b u 700000 SHARED",
        "DLOCK.RELEASE a t",
        "SELECT 3",
        "DLOCK.ACQUIRE c t 36000000 PERMITS 3 DEPTH 2",
        "DLOCK.ACQUIRE c u 36000000 PERMITS 3",
        "SELECT 0",
        "DLOCK.ACQUIRE a u 36000000 DELAY 100",
        "DLOCK.EXTEND b t 800000",
        "DLOCK.RELEASE b u",
        "SELECT 3",
        "DLOCK.BREAK c",
        "SELECT 0",
        "DLOCK.ACQUIRE d t 36000000",
        "DLOCK.ACQUIRE e t 36000000",
        "DLOCK.RELEASE a u",
        "DLOCK.ACQUIRE a t 36000000",
    ] {
        assert!(!conn.ok(command).is_nil(), "{command}");
        states.push((length(), locks_without_fence(&server)));
    }
    let bytes = fs::read(&file).expect("the file can be read");
    assert_eq!(bytes.len(), length());
    server.kill9();
    WrittenFile { server, file, bytes, states }
}

#[track_caller]
fn assert_no_crash(log: &str) {
    assert!(!log.contains("BUG REPORT START") && !log.contains("panicked at"), "{log}");
}

#[each_server]
fn a_truncated_file_is_loaded_up_to_its_last_whole_command(kind: &ServerKind) {
    let WrittenFile { mut server, file, bytes, states } = write_file(kind, "aof-load-truncated yes");
    let mut random = Random::fresh();
    for _ in 0..attempts() {
        let length = random.below(bytes.len() + 1);
        fs::write(&file, &bytes[..length]).expect("the file can be written");
        server.restart();
        let (_, expected) = states.iter().rfind(|(at, _)| *at <= length).expect("the state at 0");
        assert_eq!(locks_without_fence(&server), *expected, "truncated to {length} of {} bytes", bytes.len());
        server.kill9();
    }
    server.restart();
}

/// Returns true if the bytes end at the end of a command.
fn is_whole(mut bytes: &[u8]) -> bool {
    while let Some((_, length)) = parse(bytes) {
        bytes = &bytes[length..];
    }
    bytes.is_empty()
}

#[each_server]
fn a_truncated_file_is_refused_with_aof_load_truncated_no(kind: &ServerKind) {
    let WrittenFile { mut server, file, bytes, states } = write_file(kind, "aof-load-truncated no");
    let mut random = Random::fresh();
    for _ in 0..attempts() {
        let length = random.below(bytes.len());
        if is_whole(&bytes[..length]) {
            continue;
        }
        fs::write(&file, &bytes[..length]).expect("the file can be written");
        let log = server.try_restart().expect_err("the server must not start");
        assert_no_crash(&log);
        assert!(log.contains("Unexpected end of file") || log.contains("fixed"), "{log}");
    }
    fs::write(&file, &bytes).expect("the file can be written");
    server.restart();
    assert_eq!(locks_without_fence(&server), states.last().expect("there is a last state").1);
}

#[each_server]
fn a_damaged_file_is_refused_or_loaded_without_a_crash(kind: &ServerKind) {
    let WrittenFile { mut server, file, bytes, states } = write_file(kind, "aof-load-truncated yes");
    let mut random = Random::fresh();
    let label = bytes.windows(4).position(|word| word == b"host").expect("the label");
    let (mut refused, mut loaded) = (0, 0);
    for attempt in 0..attempts() * 2 {
        let mut damaged = bytes.clone();
        // Flips a bit of the label (which cannot be detected), of the start of a command, or of any byte.
        let (begin, _) = states[random.below(states.len() - 1)];
        let (at, bit) = match attempt {
            0 => (label, 0),
            _ if attempt % 2 == 1 => (begin, random.below(8)),
            _ => (random.below(bytes.len()), random.below(8)),
        };
        damaged[at] ^= 1 << bit;
        fs::write(&file, &damaged).expect("the file can be written");
        match server.try_restart() {
            Ok(()) => {
                loaded += 1;
                // Fails if the server crashes when a lock is read.
                locks_without_fence(&server);
                server.kill9();
            }
            Err(log) => {
                refused += 1;
                assert_no_crash(&log);
                assert!(log.contains("append only file") || log.contains("AOF"), "{log}");
            }
        }
    }
    assert!(refused > 0 && loaded > 0, "{refused} refused, {loaded} loaded");
    fs::write(&file, &bytes).expect("the file can be written");
    server.restart();
}

/// If a command of the append only file fails, the server reports the command, and loads the rest of the
/// file. The hold of that command is lost.
#[each_server]
fn a_lock_whose_effect_cannot_be_read_is_not_granted_in_the_grace_period(kind: &ServerKind) {
    let mut server = lossless(kind).conf("dlock.restart-grace 36000000").start();
    let mut conn = server.connect();
    // Ends the grace period of this start. The next start has a grace period again.
    assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 0"), "OK");
    assert!(conn.ok("DLOCK.ACQUIRE k t 36000000").int() > 0);
    server.kill9();
    let file = aof::incremental(server.dir());
    let mut bytes = fs::read(&file).expect("the file can be read");
    let name = bytes.windows(10).position(|word| word == b"DLOCK._SET").expect("the effect");
    // The last argument of the effect begins with the last fence (8 bytes); the version and the mode share
    // the next byte. $00 stands for the length of this argument.
    let version = name + b"DLOCK._SET\r\n$1\r\nk\r\n$00\r\n".len() + 8;
    assert_eq!(bytes[version], 0x41, "version 4, exclusive");
    bytes[version] = 0x91; // version 9
    fs::write(&file, bytes).expect("the file can be written");
    server.restart();
    let mut conn = server.connect();
    assert_eq!(conn.ok("DLOCK.HOLDS k t"), 0, "the hold is lost");
    let answer = conn.say("DLOCK.ACQUIRE k other 1000");
    assert!(answer.error().starts_with("GRACE "), "{answer:?}");
}

#[each_server]
fn a_damaged_snapshot_is_refused(kind: &ServerKind) {
    let mut server = Server::start(kind);
    let mut conn = server.connect();
    for n in 0..20 {
        conn.ok(&format!("DLOCK.ACQUIRE k{n} t 36000000 SHARED LABEL host{n}"));
        conn.ok(&format!("DLOCK.ACQUIRE k{n} u 36000000 SHARED"));
    }
    conn.ok("SAVE");
    let (file, before) = (server.dir().join("dump.rdb"), locks_without_fence(&server));
    server.kill9();
    let bytes = fs::read(&file).expect("the snapshot can be read");
    let mut random = Random::fresh();
    for attempt in 0..attempts() * 2 {
        let mut damaged = bytes.clone();
        // Leaves the signature and the version of the format (9 bytes) intact.
        let at = 9 + random.below(bytes.len() - 9);
        if attempt % 2 == 0 {
            damaged.truncate(at);
        } else {
            damaged[at] ^= 1 << random.below(8);
        }
        fs::write(&file, &damaged).expect("the snapshot can be written");
        let log = server.try_restart().expect_err("the server must not start");
        // If the damage makes two keys equal, the server's own message looks like a crash report.
        if !log.contains("Duplicated key found in RDB file") {
            assert_no_crash(&log);
        }
        assert!(["Short read", "RDB", "rdb"].iter().any(|words| log.contains(words)), "{log}");
    }
    fs::write(&file, &bytes).expect("the snapshot can be written");
    server.restart();
    assert_eq!(locks_without_fence(&server), before);
}
