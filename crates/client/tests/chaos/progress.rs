//! Progress and fairness: what a fault of one client, or of the queue master, costs the other clients. The
//! queue master is the master at which all clients queue. `make chaos` runs the long forms, which print their
//! measurements.

use std::sync::Arc;
use std::time::Duration;

use dlock_client::{Client, ReleaseError, Wait, now};
use tokio::runtime::Builder;
use tokio::sync::Barrier;

use crate::links::{Links, compete, is_fair, jain};
use crate::proxy::{Cut, Proxy};
use dlock_testkit::{Server, ServerKind, TIMEOUT, each_server, queue, rounds, until};

const CLIENTS: usize = 6;

/// Number of waiting tasks of one client.
const TASKS: usize = 20;

fn block_on(test: impl Future<Output = ()>) {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime").block_on(test);
}

/// Returns the number of rounds without a winner. In each round all clients try at the same moment. Each
/// client has one master without latency. Messages to and from its other masters take `one_way` ms.
fn rounds_without_winner(
    kind: &ServerKind,
    clients: usize,
    masters: usize,
    one_way: u64,
    rounds: usize,
) -> usize {
    let links = Links::start(kind, masters, clients);
    for (number, links_of_client) in links.links.iter().enumerate() {
        for (master, link) in links_of_client.iter().enumerate() {
            link.set_latency(Duration::from_millis(if master == number { 0 } else { one_way }));
        }
    }
    let mut without_winner = 0;
    block_on(async {
        let clients = links.clients().await;
        let mut longest = Duration::ZERO;
        for round in 0..rounds {
            let begin = Arc::new(Barrier::new(clients.len()));
            let tries = clients.iter().map(|client| {
                let (begin, lock) = (begin.clone(), client.lock(format!("r{round}")));
                tokio::spawn(async move {
                    begin.wait().await;
                    let begun = now();
                    let acquired = lock.try_acquire().await.expect("all masters answer");
                    (acquired, now().saturating_since(begun))
                })
            });
            let mut guards = Vec::new();
            for attempt in tries.collect::<Vec<_>>() {
                let (acquired, length) = attempt.await.expect("no panic");
                longest = longest.max(length);
                guards.extend(acquired);
            }
            assert!(guards.len() <= 1, "a round has two winners");
            without_winner += usize::from(guards.is_empty());
            for guard in guards {
                // On a busy machine a release may time out; the client repeats it in the background.
                let released = guard.release().await;
                assert!(!matches!(released, Err(ReleaseError::NotHeld(_))), "{released:?}");
            }
        }
        println!(
            "{}: {} clients, {masters} masters, {one_way} ms one way: no winner in {without_winner} of {rounds} rounds, longest {longest:?}",
            kind.name,
            clients.len()
        );
    });
    without_winner
}

fn each_round_has_a_winner(kind: &ServerKind, rounds: usize) {
    let settings = [(3, 3, 0), (3, 3, 1), (3, 3, 5), (5, 5, 5)];
    let without_winner = settings
        .map(|(clients, masters, one_way)| rounds_without_winner(kind, clients, masters, one_way, rounds));
    assert_eq!(without_winner, [0; 4], "rounds without a winner");
}

#[each_server(in_turn)]
fn one_contender_wins_each_round_without_waiting(kind: &ServerKind) {
    each_round_has_a_winner(kind, 10);
}

#[each_server(in_turn)]
#[ignore = "for ROUNDS rounds: make chaos"]
fn one_contender_wins_each_of_many_rounds_without_waiting(kind: &ServerKind) {
    each_round_has_a_winner(kind, rounds(1_000));
}

/// Returns each client's number of acquisitions during `length`, with `fault` in place. Prints them with
/// Jain's index of fairness, which is 1 if all numbers are equal.
fn shares(kind: &ServerKind, name: &str, length: Duration, fault: impl FnOnce(&Links)) -> Vec<usize> {
    shares_over(Links::start(kind, 3, CLIENTS), kind, name, length, fault)
}

fn shares_over(
    links: Links,
    kind: &ServerKind,
    name: &str,
    length: Duration,
    fault: impl FnOnce(&Links),
) -> Vec<usize> {
    let mut counts = Vec::new();
    block_on(async {
        let clients = links.clients().await;
        fault(&links);
        counts = compete(&clients, length).await;
        let (sum, jain) = (counts.iter().sum::<usize>(), jain(&counts));
        println!("{}: {name}: {counts:?}, {sum} in {length:?}, Jain {jain:.2}", kind.name);
    });
    links.masters.iter().for_each(Server::resume);
    counts
}

fn all_shares_are_fair(kind: &ServerKind, length: Duration) {
    let mut wrong = Vec::new();
    let mut check = |name: &str, counts: &[usize]| {
        if !is_fair(counts) {
            wrong.push(format!("{name}: {counts:?}"));
        }
    };
    for cut in [Cut::Closed, Cut::BothWays, Cut::Requests, Cut::Answers] {
        let name = format!("one client's {cut:?} cut");
        check(&name, &shares(kind, &name, length, |links| links.cut_from_queue_master(0, cut)));
    }
    // If clients sorted the masters by address, this client would choose another queue than the others.
    let name = "one client's addresses sort differently";
    let reversed = Links::with_order(kind, 3, CLIENTS, |client| client == 0);
    check(name, &shares_over(reversed, kind, name, length, |_| ()));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[each_server(in_turn)]
#[ignore = "for 10 s each: make chaos"]
fn a_fault_of_one_client_leaves_all_shares_fair(kind: &ServerKind) {
    all_shares_are_fair(kind, Duration::from_secs(10));
}

/// Many tasks of one client and two other clients, one of which cannot reach the queue master: each task and
/// client gets a fair share.
#[each_server(in_turn)]
#[ignore = "for 10 s each: make chaos"]
fn many_tasks_of_one_client_get_a_fair_share(kind: &ServerKind) {
    for cut in [Cut::Nothing, Cut::Closed, Cut::BothWays, Cut::Answers] {
        let links = Links::start(kind, 3, 3);
        block_on(async {
            let clients = links.clients().await;
            links.cut_from_queue_master(1, cut);
            let tasks = std::iter::repeat_n(clients[0].clone(), TASKS);
            let all: Vec<Client> = clients[1..].iter().cloned().chain(tasks).collect();
            let counts = compete(&all, Duration::from_secs(10)).await;
            let sum: usize = counts.iter().sum();
            let (name, jain) = (&kind.name, jain(&counts));
            println!(
                "{name}: {cut:?} cut for one client, with {TASKS} tasks of another: {counts:?}, {sum}, Jain {jain:.2}"
            );
            assert!(is_fair(&counts), "{counts:?}");
        });
    }
}

#[each_server(in_turn)]
#[ignore = "for 10 s: make chaos"]
fn throughput_stays_above_half_when_the_queue_master_stops(kind: &ServerKind) {
    let length = Duration::from_secs(10);
    let healthy = shares(kind, "healthy", length, |_| ()).iter().sum::<usize>();
    let counts = shares(kind, "the queue master stopped", length, |links| links.masters[0].pause());
    let stopped = counts.iter().sum::<usize>();
    println!("{}: {} % of the grants without the fault", kind.name, 100 * stopped / healthy.max(1));
    assert!(stopped >= healthy / 2 && jain(&counts) >= 0.9, "{stopped} instead of {healthy}: {counts:?}");
}

/// A client that died during its acquisition can leave a hold on the queue master alone.
#[each_server(in_turn)]
#[ignore = "for 10 s: make chaos"]
fn throughput_stays_above_half_with_a_stale_hold_on_one_master(kind: &ServerKind) {
    let leave_stale_hold = |links: &Links| {
        assert!(links.masters[0].connect().ok("DLOCK.ACQUIRE r stale 600000").int() > 0);
    };
    let length = Duration::from_secs(10);
    let links = Links::start(kind, 3, 1);
    block_on(async {
        let client = links.client(0).await;
        leave_stale_hold(&links);
        let begun = now();
        for _ in 0..5 {
            let guard = client.lock("r").wait(Wait::For(length)).acquire().await.expect("the lock is free");
            guard.release().await.expect("the lock is held");
        }
        println!("{}: five acquisitions past a stale hold: {:?}", kind.name, now().saturating_since(begun));
    });
    let healthy: usize = shares(kind, "healthy", length, |_| ()).iter().sum();
    let counts = shares(kind, "a stale hold at the queue master", length, leave_stale_hold);
    assert!(counts.iter().sum::<usize>() >= healthy / 2 && jain(&counts) >= 0.9, "{counts:?}");
}

/// A lost RELEASE is sent again when its link is repaired, long before the lease ends.
#[each_server(in_turn)]
fn an_unconfirmed_release_is_sent_again(kind: &ServerKind) {
    let links = Links::start(kind, 3, 1);
    block_on(async {
        // With the default node timeout, a busy machine answers too late.
        let urls = links.links[0].iter().map(Proxy::url);
        let client = Client::builder().servers(urls).node_timeout(Duration::from_secs(1)).build().await;
        let client = client.expect("the masters are up");
        let lock = client.lock("r").ttl(Duration::from_secs(600));
        let guard = lock.acquire().await.expect("the lock is free");
        let held = || !queue::holders(&mut links.masters[0].connect(), "r").is_empty();
        until("the first master has the hold", held);
        links.cut_from_queue_master(0, Cut::Requests);
        guard.release().await.expect("two of three answer");
        client.flush().await;
        assert!(held(), "the RELEASE was lost");
        links.cut_from_queue_master(0, Cut::Nothing);
        until("the first master has released the hold", || !held());
    });
}

/// The server sends the message of a grant at most once, so a waiter also polls. In this test the message is
/// lost and the connection stays open.
#[each_server(in_turn)]
fn a_waiter_acquires_although_the_message_of_its_grant_is_lost(kind: &ServerKind) {
    let links = Links::start(kind, 1, 1);
    let (master, link) = (&links.masters[0], &links.links[0][0]);
    let mut conn = master.connect();
    assert!(conn.ok("DLOCK.ACQUIRE r other 600000").int() > 0);
    block_on(async {
        // With the default node timeout, the client of a busy machine could replace a slow connection.
        let client = Client::builder().server(link.url()).node_timeout(TIMEOUT).build().await;
        let lock = client.expect("the master is up").lock("r").ttl(Duration::from_secs(600));
        link.set_cut(Cut::Messages);
        let wait = tokio::spawn(lock.acquire());
        until("the client waits", || !queue::tokens(&mut conn, "r").is_empty());
        // The first field is the id of the client's subscribed connection.
        let subscribers = || master.connect().ok("CLIENT LIST TYPE pubsub").text();
        let id = |list: String| list.split_whitespace().next().map(str::to_owned);
        let connected = id(subscribers());
        assert_eq!(conn.ok("DLOCK.RELEASE r other"), 1);
        until("the message is lost", || link.lost() > 0);
        assert!(!wait.is_finished());
        link.set_cut(Cut::Nothing);
        let acquired = tokio::time::timeout(TIMEOUT, wait).await.expect("the waiter polls");
        let guard = acquired.expect("no panic").expect("the waiter is the head of the queue");
        assert!(connected.is_some());
        assert_eq!(id(subscribers()), connected, "the client has not reconnected");
        guard.release().await.expect("the lock is held");
    });
}
