//! The client over a cluster of three masters: locks in several slots, slots that move, and failovers.

use super::*;
use dlock_client::Inspected;
use dlock_testkit::cluster::{EQUAL_SLOTS, add_replica, cluster, cluster_with, move_slot, owner};
use dlock_testkit::until_within;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Long enough for a failover.
const TTL: Duration = Duration::from_secs(20);

/// A node takes another one for dead after this time.
const CONF: [&str; 1] = ["cluster-node-timeout 1000"];

pub async fn client_of(nodes: &[Server]) -> Client {
    let seed = format!("redis-cluster://127.0.0.1:{}", nodes[0].port());
    Client::builder().server(seed).node_timeout(Duration::from_secs(5)).build().await.expect("a client")
}

/// Returns a node that does not serve the slot of the key.
pub fn other_than<'a>(nodes: &'a [Server], one: &Server) -> &'a Server {
    nodes.iter().find(|node| node.port() != one.port()).expect("another node")
}

/// Waits until the replica is a master, and its cluster is up.
fn until_serving(replica: &Server) {
    let mut conn = replica.connect();
    until_within(Duration::from_secs(60), "the replica is the master", || {
        let answer = format!("{:?}", conn.say("DLOCK.INSPECT r"));
        !["CLUSTERDOWN", "MOVED"].iter().any(|word| answer.contains(word))
    });
}

/// Returns the number of requests for locks that the nodes have redirected.
fn redirected(nodes: &[Server]) -> i64 {
    let count = |node: &Server| {
        let stats = node.connect().ok("INFO errorstats").text();
        let count_of = |word| {
            let line = stats.lines().find(|line| line.starts_with(&format!("errorstat_{word}:count=")));
            line.and_then(|line| line.split('=').nth(1)?.trim().parse::<i64>().ok()).unwrap_or(0)
        };
        count_of("MOVED") + count_of("ASK")
    };
    nodes.iter().map(count).sum()
}

#[each_server]
async fn everything_that_works_on_one_server_works_in_every_slot(kind: &ServerKind) {
    let nodes = cluster(kind, EQUAL_SLOTS);
    let (ann, bob) = (client_of(&nodes).await, client_of(&nodes).await);
    let names: Vec<String> = (0..12).map(|n| format!("r{n}")).collect();
    let used: std::collections::HashSet<u16> = names.iter().map(|name| owner(&nodes, name).port()).collect();
    assert_eq!(used.len(), 3, "the locks are in the slots of every node");

    let guards = ann.lock_all(&names).each(|lock| lock.ttl(LONG).owner("ann")).acquire().await;
    let guards = guards.expect("all locks are free");
    let waits: Vec<_> = names.iter().map(|name| tokio::spawn(bob.lock(name).ttl(LONG).acquire())).collect();
    for name in &names {
        let mut conn = owner(&nodes, name).connect();
        until("the waiter is queued", || queue::tokens(&mut conn, name).len() == 1);
    }
    guards.release().await.expect("all locks are held");
    for wait in waits {
        let guard = wait.await.expect("no panic").expect("a handoff");
        guard.extend(LONG).await.expect("the lock is held");
        guard.release().await.expect("the lock is held");
    }
    for name in &names {
        let shared = || ann.lock(name).ttl(LONG).shared();
        let (mut first, second) = (shared().await.expect("free"), shared().await.expect("it can be shared"));
        second.release().await.expect("the lock is held");
        first.upgrade(Wait::No).await.expect("no other sharer");
        first.downgrade().await.expect("the lock is held");
        first.release().await.expect("the lock is held");
        let permit = || ann.lock(name).ttl(LONG).permits(2);
        let permits = (permit().await.expect("a permit"), permit().await.expect("a permit"));
        assert!(permit().try_acquire().await.expect("an answer").is_none());
        permits.0.release().await.expect("the permit is held");
        permits.1.release().await.expect("the permit is held");
        let first = ann.lock(name).ttl(LONG).reentrant().await.expect("the lock is free");
        drop(ann.lock(name).reentrant().await.expect("entered again"));
        let token = first.forget().expect("the lock is held").token;
        let adopted = bob.adopt(name, &token, LONG).await.expect("the token holds the lock");
        adopted.release().await.expect("the lock is held");
        let ephemeral = ann.lock(name).ttl(LONG).ephemeral().await.expect("the lock is free");
        ephemeral.release().await.expect("the lock is held");
        let closed = ann.lock(name).ttl(LONG).at_least(Duration::from_millis(1)).fenced().await;
        closed.expect("the lock is free").release().await.expect("the lock is held");
    }
    let guard = ann.lock("r0").ttl(LONG).await.expect("the lock is free");
    let listed: Vec<Inspected<Vec<_>>> = ann.list(None).await;
    assert_eq!(listed.len(), 3, "every master answers");
    assert_eq!(listed.iter().filter_map(|seen| seen.answer.found()).flatten().count(), 1);
    owner(&nodes, "r0").connect().ok("DLOCK.BREAK r0");
    assert!(matches!(guard.lost().await, Lost::TakenAway(_)));
    assert_eq!(redirected(&nodes), 0, "every request went to the right node at once");
}

#[each_server]
async fn holds_and_waits_follow_their_slot(kind: &ServerKind) {
    follow_a_slot(kind, "ip").await;
}

/// The redirects name the host as `?`.
#[each_server]
async fn holds_and_waits_follow_their_slot_to_a_node_without_a_name(kind: &ServerKind) {
    follow_a_slot(kind, "hostname").await;
}

/// The redirects leave the host out.
#[each_server]
async fn holds_and_waits_follow_their_slot_to_another_port(kind: &ServerKind) {
    follow_a_slot(kind, "unknown-endpoint").await;
}

/// The keys move first, one by one, and then the slot: requests in between get ASK, and later ones MOVED.
/// `endpoint`: how the nodes name each other.
async fn follow_a_slot(kind: &ServerKind, endpoint: &str) {
    let endpoint = format!("cluster-preferred-endpoint-type {endpoint}");
    let nodes = cluster_with(kind, EQUAL_SLOTS, &["cluster-node-timeout 5000", &endpoint]);
    let client = client_of(&nodes).await;
    let (from, to) = (owner(&nodes, "r"), other_than(&nodes, owner(&nodes, "r")));
    let short = Duration::from_secs(3);
    let guard = client.lock("r").ttl(short).acquire().await.expect("the lock is free");
    let waits = tokio::spawn(client.lock("r").ttl(LONG).acquire());
    until("the waiter is queued", || waiters(from).len() == 1);
    move_slot(&nodes, from, to, "r", || outlast_lease(&guard, short));
    outlast_lease(&guard, short);
    until("the waiter is queued at the new node", || waiters(to).len() == 1);
    assert_eq!(holders(to, "r").len(), 1);
    guard.release().await.expect("the new node has the hold");
    let guard = waits.await.expect("no panic").expect("a handoff");
    to.connect().ok("DLOCK.BREAK r");
    assert!(matches!(guard.lost().await, Lost::TakenAway(_)), "the new node reports the loss");
    assert!(redirected(&nodes) > 0);
    // The client still believes that the slot of `{r}2` is that of `r`, which it knows by now.
    let before = redirected(&nodes);
    client.lock("{r}2").ttl(LONG).acquire().await.expect("free").release().await.expect("held");
    assert_eq!(redirected(&nodes), before);
    until_nothing_is_left(std::slice::from_ref(to), "r");
}

/// The old map sends the request to the wrong node, which answers MOVED.
#[each_server]
async fn a_slot_that_has_moved_costs_one_redirect(kind: &ServerKind) {
    let nodes = cluster(kind, EQUAL_SLOTS);
    let client = client_of(&nodes).await;
    let (from, to) = (owner(&nodes, "r"), other_than(&nodes, owner(&nodes, "r")));
    move_slot(&nodes, from, to, "r", || {});
    for lock in [client.lock("r"), client.lock("r").ephemeral(), client.lock("r").shared()] {
        lock.ttl(LONG).acquire().await.expect("the lock is free").release().await.expect("the lock is held");
    }
    assert_eq!(redirected(&nodes), 1);
    until_nothing_is_left(std::slice::from_ref(to), "r");
}

#[each_server]
async fn holds_waits_and_releases_follow_a_failover(kind: &ServerKind) {
    let mut nodes = Vec::from(cluster_with(kind, EQUAL_SLOTS, &CONF));
    let master = nodes.iter().position(|node| node.port() == owner(&nodes, "r").port()).expect("the owner");
    let replica = add_replica(kind, &nodes, &nodes[master], &CONF);
    nodes.swap(0, (master + 1) % 3);
    let master = nodes.iter().position(|node| node.port() == owner(&nodes, "r").port()).expect("the owner");
    let (ann, bob) = (client_of(&nodes).await, client_of(&nodes).await);
    let guard = ann.lock("r").ttl(TTL).durable(1, LONG).acquire().await.expect("the lock is free");
    let waits = tokio::spawn(bob.lock("r").ttl(TTL).acquire());
    until("the waiter is queued", || waiters(&nodes[master]).len() == 1);
    replica.wait_in_sync(&nodes[master]);
    nodes[master].kill9();
    until_serving(&replica);
    until("the waiter is queued at the new master", || waiters(&replica).len() == 1);
    outlast_lease(&guard, TTL);
    guard.release().await.expect("the new master has the hold");
    waits.await.expect("no panic").expect("a handoff").release().await.expect("the lock is held");
    until_nothing_is_left(&[replica], "r");
}

/// The replica does not know the hold, which is lost with its master. The client finds out as soon as the
/// replica is promoted, long before the lease ends.
#[each_server]
async fn a_hold_that_the_new_master_does_not_know_is_reported_lost(kind: &ServerKind) {
    let nodes = Vec::from(cluster_with(kind, EQUAL_SLOTS, &CONF));
    let master = owner(&nodes, "r");
    let replica = add_replica(kind, &nodes, master, &CONF);
    let seeds: Vec<&Server> = nodes.iter().filter(|node| node.port() != master.port()).collect();
    let seed = format!("redis-cluster://127.0.0.1:{}?node=127.0.0.1:{}", seeds[0].port(), master.port());
    let client = Client::builder().server(seed).build().await.expect("a client");
    let lost = Arc::<AtomicUsize>::default();
    let losses = lost.clone();
    let lock = client.lock("r").ttl(LONG).on_lost(move |_| _ = losses.fetch_add(1, Ordering::Relaxed));
    let guard = lock.acquire().await.expect("the lock is free");
    replica.wait_in_sync(master);
    // The replica forgets the hold.
    replica.connect().ok("CLUSTER FAILOVER TAKEOVER");
    until_serving(&replica);
    replica.connect().ok("DEL r");
    assert!(matches!(guard.lost().await, Lost::TakenAway(_)));
    until("the callback ran", || lost.load(Ordering::Relaxed) == 1);
}

/// Two clients contend for locks whose slots move back and forth, key by key: no lock has two holders, no
/// fence falls, and every wait ends.
#[each_server]
async fn locks_exclude_each_other_while_their_slots_move(kind: &ServerKind) {
    let nodes = cluster(kind, EQUAL_SLOTS);
    let names = ["r", "s"];
    let holders: Arc<[AtomicUsize; 2]> = Arc::default();
    let fences: Arc<[AtomicUsize; 2]> = Arc::default();
    let (grants, over) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let mut tasks = Vec::new();
    for client in [client_of(&nodes).await, client_of(&nodes[1..]).await] {
        for task in 0..6 {
            let (at, client) = (task % 2, client.clone());
            let (holders, fences, grants, over) =
                (holders.clone(), fences.clone(), grants.clone(), over.clone());
            tasks.push(tokio::spawn(async move {
                while over.load(Ordering::Relaxed) == 0 {
                    let guard = client.lock(names[at]).ttl(LONG).wait(Wait::For(TIMEOUT)).acquire().await;
                    let guard = guard.expect("the wait ends with a grant");
                    assert_eq!(holders[at].fetch_add(1, Ordering::SeqCst), 0, "a second holder");
                    let fence = guard.fence().expect("a fence").get() as usize;
                    assert!(fences[at].swap(fence, Ordering::SeqCst) < fence, "a fence falls");
                    tokio::task::yield_now().await;
                    holders[at].fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.expect("the lock is held");
                    grants.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
    }
    let until_more_grants = || {
        let before = grants.load(Ordering::Relaxed);
        until("more locks are granted", || grants.load(Ordering::Relaxed) > before + 20);
    };
    for round in 0..12 {
        let name = names[round % 2];
        let (from, to) = (owner(&nodes, name), other_than(&nodes, owner(&nodes, name)));
        move_slot(&nodes, from, to, name, until_more_grants);
        until_more_grants();
    }
    over.store(1, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no second holder, and no failed wait");
    }
    assert!(redirected(&nodes) > 0);
}
