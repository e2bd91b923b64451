//! Crashes, disk errors and a disk that does not answer, at the steps of writing the fence mark: the number
//! on the disk that no fence exceeds. `steps.c`, a library that the server preloads, causes these faults.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use super::{DAY, logged, mark_path, status, stored_mark, until_status};
use dlock_testkit::wall_clock::WallClock;
use dlock_testkit::{Folder, Server, ServerKind, each_server, preloaded, until};

/// The steps of one write of the mark, in order. After `half`, the temporary file contains the first half of
/// the bytes, and after `write` all of them. `fsync` is that of the folder.
const STEPS: [&str; 6] = ["create", "half", "write", "fdatasync", "rename", "fsync"];

const EIO: i64 = 5;
const EACCES: i64 = 13;
const ENOSPC: i64 = 28;
const EROFS: i64 = 30;

/// Injected faults of a server that writes its mark.
struct Faults(Folder);

impl Faults {
    fn of(kind: &ServerKind) -> (ServerKind, Faults) {
        let faults = Faults(Folder::fresh());
        faults.clear();
        (preloaded(kind, "tests/restarts/mark/steps.c", &[("STEPS", faults.0.path())]), faults)
    }

    fn clear(&self) {
        self.set(0, 0);
    }

    fn kill_after(&self, step: &str) {
        self.inject(step, -1);
    }

    /// Blocks the server before a step until the fault is removed.
    fn wait_before(&self, step: &str) {
        self.inject(step, -2);
    }

    /// Injects an error number, or one of the actions above, at a step.
    fn inject(&self, step: &str, action: i64) {
        let step = STEPS.iter().position(|name| *name == step).expect("a step");
        self.set(step as i64 + 1, action);
    }

    fn set(&self, step: i64, action: i64) {
        // The preloaded library maps this file. So one write replaces both numbers in place.
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).open(self.0.path().join("fault"));
        let bytes = [step.to_ne_bytes(), action.to_ne_bytes()].concat();
        file.and_then(|file| file.write_all_at(&bytes, 0)).expect("the fault can be set");
    }

    /// Returns all completed steps.
    fn done(&self) -> Vec<String> {
        let done = fs::read_to_string(self.0.path().join("done")).unwrap_or_default();
        done.lines().map(str::to_string).collect()
    }
}

/// `shimmed` leaves out the servers whose modules do not call a preloaded library.
#[each_server(shimmed)]
fn the_mark_counts_once_its_file_is_synced_and_renamed_and_its_folder_synced(kind: &ServerKind) {
    let (kind, faults) = Faults::of(kind);
    let server = Server::start(&kind);
    assert_eq!(faults.done(), STEPS, "the start writes the mark once");
    let first = server.number("dlock_fence_mark");
    faults.wait_before("fsync");
    until("the next mark is written and renamed", || faults.done().len() == 2 * STEPS.len() - 1);
    assert!(stored_mark(&mark_path(&server)) > first, "the file has its final name");
    // The module checks an unfinished write ten times a second, so at least once before this lease ends.
    let mut conn = server.connect();
    assert!(conn.ok("DLOCK.ACQUIRE k t 250").int() > 0);
    until("the background job has run", || conn.ok("EXISTS k") == 0);
    assert_eq!(server.number("dlock_fence_mark"), first);
    faults.clear();
    until("INFO shows the mark", || server.number("dlock_fence_mark") == stored_mark(&mark_path(&server)));
    assert_eq!(faults.done(), [STEPS, STEPS].concat());
}

#[each_server(shimmed)]
fn a_crash_during_the_write_lowers_no_fence(kind: &ServerKind) {
    let (kind, clock) = WallClock::of(kind);
    let (kind, faults) = Faults::of(&kind);
    let mut server = Server::start(&kind);
    let mut last = 0;
    for (n, step) in STEPS.into_iter().enumerate() {
        let mut conn = server.connect();
        for _ in 0..10 {
            let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
            assert!(fence > last, "{fence} after {last}: {step}");
            last = fence;
            assert_eq!(conn.ok("DLOCK.RELEASE k t"), 1);
        }
        if n % 2 == 0 {
            // The server dies in the writer thread, while it grants locks.
            faults.kill_after(step);
            server.expect_exit();
        } else {
            // The server dies while it starts.
            server.kill9();
            faults.kill_after(step);
            assert!(server.try_restart().is_err(), "the server dies at {step}");
        }
        assert!(stored_mark(&mark_path(&server)) >= last, "{step}");
        faults.clear();
        clock.set_offset(-DAY);
        server.restart();
        let fence = server.connect().ok("DLOCK.ACQUIRE k t 600000").int();
        assert!(fence > last, "{fence} after {last}: {step}");
        last = fence;
        clock.set_offset(0);
        server.restart();
    }
}

#[each_server(shimmed)]
fn each_failing_step_is_logged_once_and_retried(kind: &ServerKind) {
    let (kind, faults) = Faults::of(kind);
    for (step, error, words) in [
        ("create", EROFS, "Read-only file system"),
        ("half", ENOSPC, "No space left on device"),
        ("write", ENOSPC, "No space left on device"),
        ("fdatasync", EIO, "Input/output error"),
        ("rename", EACCES, "Permission denied"),
        ("fsync", EIO, "Input/output error"),
    ] {
        // The first write of the mark, at the start, fails.
        faults.inject(step, error);
        let server = Server::start(&kind);
        assert_eq!((status(&server), server.number("dlock_fence_mark")), ("failing".into(), 0), "{step}");
        assert_eq!(logged(&server, &format!("cannot be written: {words}")), 1, "{}", server.log());
        let mut conn = server.connect();
        let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
        assert!(fence > 0, "{step}");
        assert_eq!(server.number("dlock_fences_beyond_mark"), 0, "no mark, so no fence beyond the mark");
        faults.clear();
        // Switching the option off and on retries at once.
        assert_eq!(conn.ok("CONFIG SET dlock.fence-mark no"), "OK");
        assert_eq!(conn.ok("CONFIG SET dlock.fence-mark yes"), "OK");
        until_status(&server, "ok");
        let next = conn.ok("DLOCK.ACQUIRE other t 600000").int();
        assert!(next > fence && stored_mark(&mark_path(&server)) >= next, "{step}: {next} after {fence}");
        assert!(!mark_path(&server).with_extension("fence.tmp").exists(), "{step}");
    }
}

#[each_server(shimmed)]
fn the_mark_is_written_again_when_a_failing_disk_recovers(kind: &ServerKind) {
    let (kind, faults) = Faults::of(kind);
    let server = Server::start(&kind);
    let mut conn = server.connect();
    faults.inject("write", ENOSPC);
    let before = stored_mark(&mark_path(&server));
    until_status(&server, "failing");
    assert_eq!(stored_mark(&mark_path(&server)), before, "the earlier mark stays");
    assert!(conn.ok("DLOCK.ACQUIRE k t 600000").int() > 0);
    faults.clear();
    until_status(&server, "ok");
    let fence = conn.ok("DLOCK.ACQUIRE other t 600000").int();
    assert!(stored_mark(&mark_path(&server)) > fence);
    assert_eq!((logged(&server, "cannot be written"), logged(&server, "is written again")), (1, 1));
    assert_eq!(server.number("dlock_fences_beyond_mark"), 0);
}

#[each_server(shimmed)]
fn grants_neither_wait_nor_exceed_the_mark_until_a_silent_disk_is_reported(kind: &ServerKind) {
    let (kind, faults) = Faults::of(kind);
    let server = Server::start(&kind);
    let mut conn = server.connect();
    faults.wait_before("fdatasync");
    let (mut last, mut consecutive, mut grants) = (0, 0, 0);
    // The loop ends when the server reports the silent disk. Until then it answers every command.
    while status(&server) == "ok" {
        let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
        // A server that crashes now continues above the mark in this file, so no fence may exceed that mark.
        let mark = stored_mark(&mark_path(&server));
        assert!(fence > last && (fence <= mark || status(&server) != "ok"), "{fence} beyond {mark}");
        consecutive += i64::from(fence == last + 1);
        (last, grants) = (fence, grants + 1);
        assert_eq!(conn.ok("DLOCK.RELEASE k t"), 1);
    }
    // From 1 s below the mark, fences no longer follow the clock: each is the one before plus 1.
    assert!(consecutive > 10, "only {consecutive} of {grants} fences are one more than the fence before");
    assert_eq!(server.number("dlock_fences_beyond_mark"), 0);
    assert_eq!(logged(&server, "the disk does not answer"), 1);
    // The mark was 7 s ahead of the clock when it was written. A disk counts as silent after 10 s. By then,
    // the mark no longer binds, and the clock is more than 1 s past the mark.
    let (fence, mark) = (conn.ok("DLOCK.ACQUIRE k t 600000").int(), stored_mark(&mark_path(&server)));
    assert!(fence > mark + 1_000_000, "fence {fence} does not follow the clock past the mark {mark}");
    faults.clear();
    until_status(&server, "ok");
    until("the mark covers the granted fence", || stored_mark(&mark_path(&server)) > fence);
    assert_eq!(logged(&server, "is written again"), 1);
}
