//! Members that are dead, silent, or restarted.

use dlock_client::{AcquireError, Answer, Lost, NodeState, Retry, Wait, now};
use std::net::TcpListener;
use std::time::Duration;

use super::{builder, client, held_on, masters, state, until_held_everywhere, until_nothing_is_left, url};
use dlock_testkit::{Server, ServerKind, each_server, until};

/// A short node timeout that is still long enough on a busy machine.
const HASTY: Duration = Duration::from_secs(1);
const ONCE: Retry = Retry::new(0, Duration::ZERO);
/// A node timeout that is long enough to fail the test if a client waits for it, even on a busy machine.
const NODE_TIMEOUT: Duration = Duration::from_secs(10);
const STUBBORN: Retry = Retry::new(255, Duration::from_millis(50));

#[each_server]
async fn a_majority_suffices_when_masters_are_killed(kind: &ServerKind) {
    for (count, dead) in [(3, 1), (5, 1), (5, 2)] {
        let servers = masters(kind, count);
        let client = client(&servers).await;
        let fence = async || {
            let guard = client.lock("r").fenced().acquire().await.expect("a majority is up");
            let fence = guard.fence().expect("it was asked for");
            guard.release().await.expect("the lock is held");
            fence
        };
        let before = fence().await;
        servers[..dead].iter().for_each(Server::kill9);
        let after = fence().await;
        assert!(after > before);
        assert!(fence().await > after);
        until_nothing_is_left(&servers, "r");
    }
}

#[each_server]
async fn a_majority_suffices_when_masters_are_stopped(kind: &ServerKind) {
    for (count, stopped) in [(3, 1), (5, 2)] {
        let servers = masters(kind, count);
        let client = builder(&servers).node_timeout(HASTY).build().await.expect("a client");
        let guard = client.lock("r").acquire().await.expect("all are up");
        guard.release().await.expect("the lock is held");
        client.flush().await;
        servers[..stopped].iter().for_each(Server::pause);
        for _ in 0..3 {
            let guard = client.lock("r").fenced().acquire().await.expect("a majority is up");
            guard.release().await.expect("the lock is held");
        }
        servers[..stopped].iter().for_each(Server::resume);
        until_nothing_is_left(&servers, "r");
    }
}

#[each_server]
async fn acquire_reports_each_dead_member_when_no_majority_lives(kind: &ServerKind) {
    let servers = masters(kind, 3);
    let client = builder(&servers).retry(ONCE).build().await.expect("a client");
    servers[1].kill9();
    servers[2].kill9();
    let why = client.lock("r").acquire().await.expect_err("no majority is up");
    let AcquireError::QuorumImpossible { resource, report } = &why else { panic!("{why:?}") };
    assert_eq!(resource, "r");
    // Two dead members decide: the client does not wait for the third.
    assert!(matches!(state(report, &servers[0]), NodeState::Agreed | NodeState::Unheard), "{report}");
    for dead in &servers[1..] {
        assert!(matches!(state(report, dead), NodeState::Down(_)), "{report}");
        assert!(why.to_string().contains(&format!("{} down: ", url(dead))), "{why}");
    }
    client.flush().await;
    assert_eq!(held_on(&servers, "r"), 0);
}

#[each_server]
async fn acquire_reports_each_silent_member_when_no_majority_answers(kind: &ServerKind) {
    let servers = masters(kind, 3);
    let client = builder(&servers).node_timeout(HASTY).retry(ONCE).build().await.expect("a client");
    servers[1].pause();
    servers[2].pause();
    let why = client.lock("r").wait(Wait::No).acquire().await.expect_err("no majority answers");
    let AcquireError::QuorumImpossible { report, .. } = &why else { panic!("{why:?}") };
    assert_eq!(*state(report, &servers[0]), NodeState::Agreed);
    assert_eq!(*state(report, &servers[1]), NodeState::Slow);
    assert_eq!(*state(report, &servers[2]), NodeState::Slow);
    client.flush().await;
    servers[1].resume();
    servers[2].resume();
    // The stopped members now run the ACQUIRE and the RELEASE behind it.
    until_nothing_is_left(&servers, "r");
}

#[each_server]
async fn acquire_reports_taken_when_most_living_members_refuse(kind: &ServerKind) {
    let servers = masters(kind, 5);
    let client = builder(&servers).retry(ONCE).build().await.expect("a client");
    for server in &servers[..2] {
        assert!(server.connect().ok("DLOCK.ACQUIRE r other 600000").int() > 0);
    }
    servers[3].kill9();
    servers[4].kill9();
    let why = client.lock("r").wait(Wait::No).acquire().await.expect_err("two of five are no majority");
    let AcquireError::Taken { report, .. } = &why else { panic!("{why:?}") };
    // The first refusal decides.
    assert!(servers[..2].iter().any(|server| *state(report, server) == NodeState::Taken), "{report}");
    let dead = &servers[3..];
    assert!(dead.iter().all(|server| *state(report, server) != NodeState::Agreed), "{report}");
    client.flush().await;
    assert_eq!(held_on(&servers, "r"), 2, "the others' holds stand, its own vote is gone");
}

#[each_server]
async fn a_restarted_master_votes_again(kind: &ServerKind) {
    let mut servers = masters(kind, 3);
    let client = builder(&servers).retry(STUBBORN).build().await.expect("a client");
    servers[0].kill9();
    client.lock("r").acquire().await.expect("two are up").release().await.expect("the lock is held");
    servers[0].restart();
    servers[1].kill9();
    // The restarted member is needed for a majority.
    let guard = client.lock("r").acquire().await.expect("two are up");
    guard.release().await.expect("the lock is held");
}

#[each_server]
async fn an_acquisition_with_retries_outlasts_a_restart(kind: &ServerKind) {
    let mut servers = masters(kind, 1);
    let client = builder(&servers).retry(STUBBORN).build().await.expect("a client");
    servers[0].kill9();
    let acquired = tokio::spawn(client.lock("r").acquire());
    servers[0].restart();
    acquired.await.expect("no panic").expect("it is back").release().await.expect("the lock is held");
}

/// Kills or stops a majority under a hold. The hold is lost before its validity ends, and the report names
/// the missing members.
async fn lost_when(kind: &ServerKind, end: fn(&Server), back: fn(&Server), missing: fn(&NodeState) -> bool) {
    for (count, gone) in [(1, 1), (3, 2), (5, 3)] {
        let servers = masters(kind, count);
        let client = builder(&servers).node_timeout(HASTY).build().await.expect("a client");
        let lock = client.lock("r").ttl(Duration::from_secs(3)).notice(Duration::from_millis(1500));
        let guard = lock.acquire().await.expect("the lock is free");
        until_held_everywhere(&servers, "r");
        servers[..gone].iter().for_each(end);
        let why = guard.lost().await;
        assert!(now() < guard.valid_until(), "the loss is reported before the lease ends");
        let Lost::NotRenewed(report) = why else { panic!("{why:?}") };
        let gone = &servers[..gone];
        assert!(gone.iter().any(|server| missing(state(&report, server))), "{report}");
        assert!(gone.iter().all(|server| *state(&report, server) != NodeState::Agreed), "{report}");
        gone.iter().for_each(back);
    }
}

#[each_server]
async fn a_hold_is_lost_before_it_ends_when_its_masters_die(kind: &ServerKind) {
    lost_when(kind, Server::kill9, |_| (), |state| matches!(state, NodeState::Down(_) | NodeState::Slow))
        .await;
}

#[each_server]
async fn a_hold_is_lost_before_it_ends_when_its_masters_stop(kind: &ServerKind) {
    lost_when(kind, Server::pause, Server::resume, |state| {
        matches!(state, NodeState::Down(_) | NodeState::Slow)
    })
    .await;
}

#[each_server]
async fn a_hold_survives_the_loss_of_a_minority(kind: &ServerKind) {
    let servers = masters(kind, 3);
    let client = client(&servers).await;
    let guard = client.lock("r").ttl(Duration::from_secs(3)).acquire().await.expect("the lock is free");
    servers[0].kill9();
    let first = guard.valid_until();
    until("the hold is renewed twice", || {
        guard.valid_until().saturating_since(first) > Duration::from_secs(2)
    });
    assert_eq!(guard.loss(), None);
    guard.release().await.expect("the lock is held");
}

/// The read that checks the missing member does not wait either: here a socket listens at its address and
/// sends nothing.
#[each_server]
async fn reads_do_not_wait_for_a_missing_member_when_a_majority_answers(kind: &ServerKind) {
    let servers = masters(kind, 3);
    let client = builder(&servers).node_timeout(NODE_TIMEOUT).build().await.expect("all are up");
    servers[0].kill9();
    let seen = async || match client.inspect("r").await.swap_remove(0).answer {
        Answer::Unanswered(NodeState::Down(why)) => why,
        Answer::Unanswered(NodeState::Slow) => "it broke".into(),
        other => panic!("{other:?}"),
    };
    while !seen().await.contains("refused") {}
    let port = TcpListener::bind(("127.0.0.1", servers[0].port())).expect("the lock is free");
    port.set_nonblocking(true).expect("a socket can");
    while port.accept().is_err() {
        let why = seen().await;
        assert!(why.contains("refused"), "the error of the earlier try: {why}");
    }
}

/// A connection may take four node timeouts, but a client with a majority does not wait for it.
#[each_server]
async fn acquire_succeeds_when_a_member_is_silent_from_the_start(kind: &ServerKind) {
    for (count, silent) in [(3, 1), (5, 2)] {
        let servers = masters(kind, count);
        servers[..silent].iter().for_each(Server::pause);
        let builder = builder(&servers).node_timeout(NODE_TIMEOUT);
        let all = tokio::time::timeout(NODE_TIMEOUT * 3, async {
            let client = builder.build().await.expect("a majority answers");
            let guard = client.lock("r").acquire().await.expect("a majority answers");
            let seen = client.inspect("r").await;
            assert_eq!(seen.iter().filter(|seen| seen.answer.found().is_some()).count(), count - silent);
            guard.release().await.expect("the lock is held");
        });
        all.await.expect("one answer is waited for in all of this");
        servers[..silent].iter().for_each(Server::resume);
        until_nothing_is_left(&servers, "r");
    }
}
