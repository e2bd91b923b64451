//! Probes: what one master alone holds keeps nobody out.

use dlock_client::Guard;
use std::time::Duration;
use tokio::task::JoinHandle;

use super::{
    client, each_kind, head, held_on, holders, masters, until_held_everywhere, until_nothing_is_left,
};
use dlock_testkit::queue;
use dlock_testkit::{Server, until, until_within};

/// For what takes several tries.
const LONG_WAIT: Duration = Duration::from_secs(30);

/// The master where the clients queue alone has a hold that nobody releases, as of a client whose RELEASE
/// never arrived.
fn stale(servers: &[Server]) {
    assert!(head(servers).connect().ok("DLOCK.ACQUIRE r stale 600000 SHARED").int() > 0);
}

/// How many are queued.
fn waiting(servers: &[Server]) -> usize {
    queue::clients(&mut head(servers).connect(), "r").len()
}

/// How often a server has been asked for a lock.
fn asked(server: &Server) -> u64 {
    let stats = server.info("cmdstat_DLOCK.ACQUIRE");
    let calls = stats.strip_prefix("calls=").and_then(|stats| stats.split(',').next());
    calls.and_then(|calls| calls.parse().ok()).expect("a number of calls")
}

/// Many want it, and each gets it in its turn: one at a time, while the stale hold stands.
fn in_turn(fenced: bool) {
    each_kind(async |kind| {
        for count in [3, 5] {
            let servers = masters(kind, count);
            stale(&servers);
            let mut queue: Vec<JoinHandle<_>> = Vec::new();
            for position in 1..=3 {
                let lock = client(&servers).await.lock("r");
                queue.push(tokio::spawn(if fenced { lock.fenced() } else { lock }.acquire()));
                until("it is queued", || waiting(&servers) == position);
            }
            let mut last = None;
            for next in queue {
                let next = tokio::time::timeout(LONG_WAIT, next).await.expect("its turn comes");
                let guard: Guard = next.expect("no panic").expect("a majority is free");
                assert_eq!(holders(head(&servers), "r"), ["stale"], "there it is still held");
                // It need not be more than a majority that has it: of a release that came late it may miss a
                // vote.
                assert!(held_on(&servers, "r") > 1 + count / 2);
                assert!(guard.fence().is_some() == fenced && (guard.fence() > last || !fenced));
                last = guard.fence();
                guard.release().await.expect("it is held");
            }
            assert_eq!(waiting(&servers), 0);
            assert_eq!(head(&servers).connect().say("DLOCK.RELEASE r stale"), 1);
            until_nothing_is_left(&servers, "r");
        }
    });
}

#[test]
fn a_hold_on_the_lines_master_alone_keeps_nobody_out() {
    in_turn(false);
}

#[test]
fn nor_anybody_who_wants_a_fence() {
    in_turn(true);
}

/// A sharer would get in with a sharer who holds, and past the one who wants it alone and came before.
#[test]
fn nobody_overtakes_by_it() {
    each_kind(async |kind| {
        let servers = masters(kind, 3);
        let guard = client(&servers).await.lock("r").shared().acquire().await.expect("it is free");
        until_held_everywhere(&servers, "r");
        let writer = tokio::spawn(client(&servers).await.lock("r").acquire());
        until("the writer waits", || waiting(&servers) == 1);
        let sharer = tokio::spawn(client(&servers).await.lock("r").shared().acquire());
        until("the sharer waits", || waiting(&servers) == 2);
        // One question each has asked there; what comes now are probes.
        let other = servers.iter().find(|server| server.port() != head(&servers).port()).expect("a server");
        until_within(LONG_WAIT, "the first has probed", || asked(other) >= 3 + 3);
        assert!(!sharer.is_finished() && !writer.is_finished());
        assert_eq!(holders(&servers[0], "r").len(), 1);
        guard.release().await.expect("it is held");
        writer.await.expect("no panic").expect("a handoff").release().await.expect("it is held");
        sharer.await.expect("no panic").expect("a handoff").release().await.expect("it is held");
        until_nothing_is_left(&servers, "r");
    });
}

/// As a probe wins, or its first votes come, the queue grants it as well; or it is dropped.
#[test]
fn whichever_is_won_first_nothing_is_left_of_the_other() {
    each_kind(async |kind| {
        let servers = masters(kind, 3);
        for round in 0..4 {
            stale(&servers);
            let waits = tokio::spawn(client(&servers).await.lock("r").acquire());
            until("it is queued", || waiting(&servers) == 1);
            // Either the answers that win it are on their way, or the handoff from one place to the other is.
            until("a probe wins", || held_on(&servers, "r") > 1);
            match round % 2 {
                0 => assert_eq!(head(&servers).connect().say("DLOCK.RELEASE r stale"), 1),
                _ => waits.abort(),
            }
            if let Ok(won) = waits.await {
                won.expect("it is free").release().await.expect("it is held");
            }
            let _ = head(&servers).connect().ok("DLOCK.RELEASE r stale");
            until_nothing_is_left(&servers, "r");
        }
    });
}
