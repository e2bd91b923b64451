//! Restarts that lose all data except the mark, a number on the disk that no fence exceeds. The clock is set
//! back as well.

use super::{DAY, logged, mark_path, stored_mark};
use dlock_testkit::wall_clock::WallClock;
use dlock_testkit::{Random, Server, ServerKind, each_server, restarts, until};

/// Number of restarts on each server.
const RESTARTS: usize = 25;

#[each_server(shimmed)]
fn fences_rise_over_restarts_without_data_and_with_the_clock_set_back(kind: &ServerKind) {
    let mut random = Random::fresh();
    let (kind, clock) = WallClock::of(kind);
    let mut server = Server::start(&kind);
    let (mut last, mut fences) = (0, 0);
    for restart in 0..restarts(RESTARTS) {
        let mut conn = server.connect();
        for _ in 0..=random.below(20) {
            let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
            assert!(fence > last, "fence {fence} after {last}, at restart {restart}");
            last = fence;
            if random.once_in(3) {
                // In a quorum, a server with a clock 4 ms ahead would grant such a fence. CONFIRM refuses
                // the fence while the clock is set back, because the fence is then days ahead of the clock.
                let raised = fence + 4_000;
                if conn.say(&format!("DLOCK.CONFIRM k t {raised} 600000")) == raised {
                    last = raised;
                }
            }
            assert_eq!(conn.ok("DLOCK.BREAK k"), 1);
            fences += 1;
        }
        server.kill9();
        assert!(stored_mark(&mark_path(&server)) >= last, "the mark is below the fence {last}");
        // The clock is up to three days back; in every fifth round it is correct.
        let days = [0, -1, -2, -1, -3][(restart + 1) % 5];
        clock.set_offset(days * DAY);
        server.restart();
        assert_eq!(server.connect().ok("DBSIZE"), 0, "all data is lost");
    }
    assert!(fences >= restarts(RESTARTS));
    // The server logs this line at a start with a clock behind the mark. The fences then follow the mark.
    assert!(logged(&server, "s ahead of the clock: fences go on above it") >= restarts(RESTARTS) / 5);
}

/// Shows that the test above fails without a mark.
#[each_server(shimmed)]
fn fences_fall_without_the_mark(kind: &ServerKind) {
    let (kind, clock) = WallClock::of(kind);
    let mut server = Server::options(&kind).conf("dlock.fence-mark no").start();
    let fence = server.connect().ok("DLOCK.ACQUIRE k t 600000").int();
    server.kill9();
    assert!(!mark_path(&server).exists(), "the mark is off");
    clock.set_offset(-DAY);
    server.restart();
    let next = server.connect().ok("DLOCK.ACQUIRE k t 600000").int();
    assert!(next < fence - (DAY - 3600) * 1_000_000, "{next} after {fence}");
}

/// A rewritten append only file without a preamble contains only keys. After the release, no key contains the
/// last fence. The next fence is greater because of the mark.
#[each_server(shimmed)]
fn fences_rise_after_a_rewrite_without_preamble_and_holds(kind: &ServerKind) {
    let mut server = Server::options(kind).synced().conf("aof-use-rdb-preamble no").start();
    let mut conn = server.connect();
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
    let raised = fence + 4_000_000;
    assert_eq!(conn.ok(&format!("DLOCK.CONFIRM k t {raised} 600000")), raised);
    assert_eq!(conn.ok("DLOCK.RELEASE k t"), 1);
    server.rewrite();
    let next = server.kill_and_restart().ok("DLOCK.ACQUIRE k t 600000").int();
    assert!(next > raised, "{next} after {raised}");
}

/// A replica grants nothing, but it may be restarted as a master, as in this test.
#[each_server(shimmed)]
fn the_mark_of_a_replica_covers_the_fences_of_its_master(kind: &ServerKind) {
    let (replica_kind, clock) = WallClock::of(kind);
    let (master, mut replica) = (Server::start(kind), Server::start(&replica_kind));
    replica.replicate(&master);
    let fence = master.connect().ok("DLOCK.ACQUIRE k t 600000").int();
    let raised = fence + 9_000_000;
    assert_eq!(master.connect().ok(&format!("DLOCK.CONFIRM k t {raised} 600000")), raised);
    replica.wait_in_sync(&master);
    until("the replica's mark covers the raised fence", || replica.number("dlock_fence_mark") > raised);
    drop(master);
    replica.kill9();
    clock.set_offset(-DAY);
    replica.restart();
    let next = replica.connect().ok("DLOCK.ACQUIRE k t 600000").int();
    assert!(next > raised, "{next} after {raised}");
}
