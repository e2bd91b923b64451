//! Members that are dead, silent, or restarted.

use super::*;
use std::net::TcpListener;

/// A short node timeout that is still long enough on a busy machine.
const SHORT: Duration = Duration::from_secs(1);
const NO_RETRY: Retry = Retry::new(0, Duration::ZERO);
/// Even on a busy machine, only a client that waits for a missing member reaches this node timeout.
const LONG_NODE_TIMEOUT: Duration = Duration::from_secs(10);
const MANY_RETRIES: Retry = Retry::new(255, Duration::from_millis(50));

/// The begin and the end of a fault of a server.
type Fault = (fn(&Server), fn(&Server));

const DIES: Fault = (Server::kill9, |_| ());
const PAUSES: Fault = (Server::pause, Server::resume);

#[each_server]
async fn a_majority_suffices_when_a_minority_dies_or_is_paused(kind: &ServerKind) {
    for (count, missing, (begin, end)) in [(3, 1, DIES), (5, 2, DIES), (3, 1, PAUSES), (5, 2, PAUSES)] {
        let servers = masters(kind, count);
        let client = builder(&servers).node_timeout(SHORT).build().await.expect("a client");
        let fence = async || {
            let guard = client.lock("r").fenced().acquire().await.expect("a majority is up");
            let fence = guard.fence().expect("a fenced hold has a fence");
            guard.release().await.expect("the lock is held");
            fence
        };
        let before = fence().await;
        client.flush().await;
        servers[..missing].iter().for_each(begin);
        let after = [fence().await, fence().await];
        assert!(after[0] > before && after[1] > after[0]);
        servers[..missing].iter().for_each(end);
        until_nothing_is_left(&servers, "r");
    }
}

#[each_server]
async fn acquire_without_a_majority_reports_each_dead_or_silent_member(kind: &ServerKind) {
    let is_down: fn(&NodeState) -> bool = |state| matches!(state, NodeState::Down(_));
    let is_slow: fn(&NodeState) -> bool = |state| *state == NodeState::Slow;
    for ((begin, end), is_missing, text) in
        [(DIES, is_down, " down: "), (PAUSES, is_slow, " no answer in time")]
    {
        let servers = masters(kind, 3);
        let client = builder(&servers).node_timeout(SHORT).retry(NO_RETRY).build().await.expect("a client");
        servers[1..].iter().for_each(begin);
        let why = client.lock("r").wait(Wait::No).acquire().await.expect_err("no majority answers");
        let AcquireError::QuorumImpossible { resource, report } = &why else { panic!("{why:?}") };
        assert_eq!(resource, "r");
        // The two missing members rule out a majority, so the client need not wait for the third.
        assert!(matches!(state(report, &servers[0]), NodeState::Agreed | NodeState::Unheard), "{report}");
        for missing in &servers[1..] {
            assert!(is_missing(state(report, missing)), "{report}");
            assert!(why.to_string().contains(&(url(missing) + text)), "{why}");
        }
        client.flush().await;
        // Resumed members execute the ACQUIRE and the RELEASE that follows it.
        servers[1..].iter().for_each(end);
        until_nothing_is_left(&servers, "r");
    }
}

#[each_server]
async fn a_restarted_master_votes_again(kind: &ServerKind) {
    let mut servers = masters(kind, 3);
    let client = builder(&servers).retry(MANY_RETRIES).build().await.expect("a client");
    servers[0].kill9();
    client.lock("r").acquire().await.expect("two of three are up").release().await.expect("the lock is held");
    servers[0].restart();
    servers[1].kill9();
    // The restarted member is needed for a majority.
    let guard = client.lock("r").acquire().await.expect("two of three are up");
    guard.release().await.expect("the lock is held");
}

#[each_server]
async fn a_loss_is_reported_before_the_lease_ends_when_most_masters_die_or_are_paused(kind: &ServerKind) {
    for (count, missing) in [(1, 1), (3, 2), (5, 3)] {
        for (begin, end) in [DIES, PAUSES] {
            let servers = masters(kind, count);
            let client = builder(&servers).node_timeout(SHORT).build().await.expect("a client");
            // `notice`: the hold is declared lost 2 s before its validity ends.
            let lock = client.lock("r").ttl(Duration::from_secs(6)).notice(Duration::from_secs(2));
            let guard = lock.acquire().await.expect("the lock is free");
            until_held_everywhere(&servers, "r");
            let missing = &servers[..missing];
            missing.iter().for_each(begin);
            let why = guard.lost().await;
            assert!(now() < guard.valid_until(), "the loss is reported before the lease ends");
            let Lost::NotRenewed(report) = why else { panic!("{why:?}") };
            let mut states = missing.iter().map(|server| state(&report, server));
            assert!(
                states.clone().any(|state| matches!(state, NodeState::Down(_) | NodeState::Slow)),
                "{report}"
            );
            assert!(states.all(|state| *state != NodeState::Agreed), "{report}");
            missing.iter().for_each(end);
        }
    }
}

/// The member is killed, and a socket that sends nothing takes its port. While the client connects to this
/// socket, no read waits: each one repeats the earlier error, that the connection was refused.
#[each_server]
async fn reads_do_not_wait_for_a_missing_member_when_a_majority_answers(kind: &ServerKind) {
    let servers = masters(kind, 3);
    let client = builder(&servers).node_timeout(LONG_NODE_TIMEOUT).build().await.expect("all members are up");
    servers[0].kill9();
    let error_of_killed_member = async || match client.inspect("r").await.swap_remove(0).answer {
        Answer::Unanswered(NodeState::Down(why)) => why,
        Answer::Unanswered(NodeState::Slow) => "no answer".into(),
        other => panic!("{other:?}"),
    };
    while !error_of_killed_member().await.contains("refused") {}
    let silent_socket = TcpListener::bind(("127.0.0.1", servers[0].port())).expect("the port is free");
    silent_socket.set_nonblocking(true).expect("a socket");
    // Reads until the client has connected to the socket.
    while silent_socket.accept().is_err() {
        let why = error_of_killed_member().await;
        assert!(why.contains("refused"), "the read repeats the earlier error: {why}");
    }
}

/// The time limit for opening a connection is four node timeouts. The test fails after three, so it fails if
/// a client with a majority waits for the silent members.
#[each_server]
async fn acquire_succeeds_when_a_member_is_silent_from_the_start(kind: &ServerKind) {
    for (count, silent) in [(3, 1), (5, 2)] {
        let servers = masters(kind, count);
        servers[..silent].iter().for_each(Server::pause);
        let builder = builder(&servers).node_timeout(LONG_NODE_TIMEOUT);
        let acquisition = tokio::time::timeout(LONG_NODE_TIMEOUT * 3, async {
            let client = builder.build().await.expect("a majority answers");
            let guard = client.lock("r").acquire().await.expect("a majority answers");
            let seen = client.inspect("r").await;
            assert_eq!(seen.iter().filter(|seen| seen.answer.found().is_some()).count(), count - silent);
            guard.release().await.expect("the lock is held");
        });
        acquisition.await.expect("the client does not wait for the silent members");
        servers[..silent].iter().for_each(Server::resume);
        until_nothing_is_left(&servers, "r");
    }
}
