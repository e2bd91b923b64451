//! A cluster whose nodes come, go, are emptied and are reset, with holds and waits in every slot.

use super::cluster::{client_of, other_than};
use super::*;
use dlock_client::Leader;
use dlock_testkit::cluster::{
    EQUAL_SLOTS, add_master, cluster, cluster_with, meet, move_slot, node_id, owner, reshard,
};

/// A short lease, so that a hold is renewed soon.
const TTL: Duration = Duration::from_secs(4);

/// The other slots go on while a node is missing, which the others notice soon.
const CONF: [&str; 2] = ["cluster-node-timeout 1000", "cluster-require-full-coverage no"];

/// A name whose slot another node has than that of `r`.
fn elsewhere(nodes: &[Server]) -> String {
    let port = owner(nodes, "r").port();
    (0..).map(|n| format!("s{n}")).find(|name| owner(nodes, name).port() != port).expect("another slot")
}

/// The new node gets the slot, loses it again, is forgotten, and then has nothing.
#[each_server]
async fn holds_and_waits_go_to_a_new_node_and_back(kind: &ServerKind) {
    let mut nodes = Vec::from(cluster(kind, EQUAL_SLOTS));
    let client = client_of(&nodes).await;
    let home = nodes.iter().position(|node| node.port() == owner(&nodes, "r").port()).expect("the owner");
    let guard = client.lock("r").ttl(TTL).acquire().await.expect("the lock is free");
    let waits = tokio::spawn(client.lock("r").ttl(LONG).acquire());
    until("the waiter is queued", || waiters(&nodes[home]).len() == 1);

    // Else it would become a replica when it loses its last slot.
    nodes.push(add_master(kind, &nodes, &["cluster-allow-replica-migration no"]));
    move_slot(&nodes, &nodes[home], &nodes[3], "r", || {});
    outlast_lease(&guard, TTL);
    until("the waiter is queued at the new node", || waiters(&nodes[3]).len() == 1);

    move_slot(&nodes, &nodes[3], &nodes[home], "r", || {});
    let added = nodes.pop().expect("the new node");
    let id = node_id(&mut added.connect());
    nodes.iter().for_each(|node| assert_eq!(node.connect().ok(&format!("CLUSTER FORGET {id}")), "OK"));
    added.connect().ok("CLUSTER RESET HARD");
    drop(added);
    outlast_lease(&guard, TTL);
    until("the waiter is queued where it was", || waiters(&nodes[home]).len() == 1);
    guard.release().await.expect("the old node has the hold");
    waits.await.expect("no panic").expect("a handoff").release().await.expect("the lock is held");
    until_nothing_is_left(&nodes[home..=home], "r");
}

/// All slots of a node move to another one, with `redis-cli`, which leaves the node without slots.
#[each_server]
async fn holds_and_waits_survive_a_resharding_of_everything_that_a_node_has(kind: &ServerKind) {
    let nodes = cluster(kind, ["0 299", "300 8191", "8192 16383"]);
    let client = client_of(&nodes).await;
    let mut conn = nodes[0].connect();
    let mut slot = |name: &String| conn.ok(&format!("CLUSTER KEYSLOT {name}")).int();
    let names: Vec<String> = (0..).map(|n| format!("r{n}")).filter(|name| slot(name) < 300).take(5).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(client.lock(name).ttl(TTL).acquire().await.expect("the lock is free"));
    }
    let waits: Vec<_> =
        names.iter().map(|name| tokio::spawn(client.lock(name).ttl(LONG).acquire())).collect();
    let until_queued = |node: &Server| {
        let mut conn = node.connect();
        until("all waiters are queued", || {
            names.iter().all(|name| queue::tokens(&mut conn, name).len() == 1)
        });
    };
    until_queued(&nodes[0]);
    reshard(&nodes[0], &nodes[1], 300);
    until_queued(&nodes[1]);
    let end = guards.iter().map(Guard::valid_until).max().expect("guards") + TTL;
    guards.iter().for_each(|guard| outlast(guard, end));
    for guard in guards {
        guard.release().await.expect("the other node has the hold");
    }
    for wait in waits {
        wait.await.expect("no panic").expect("a handoff").release().await.expect("the lock is held");
    }
}

/// A node can be reset only when it is empty: its holds are lost, and this is told at once. Its waits outlast
/// the time in which no node serves the slot.
#[each_server]
async fn a_reset_of_a_node_ends_its_holds_and_its_waits_go_on(kind: &ServerKind) {
    for form in ["SOFT", "HARD"] {
        let nodes = cluster_with(kind, EQUAL_SLOTS, &CONF);
        let node = owner(&nodes, "r");
        let client = client_of(std::slice::from_ref(other_than(&nodes, node))).await;
        let guard = client.lock("r").ttl(LONG).acquire().await.expect("the lock is free");
        let other = elsewhere(&nodes);
        let kept = client.lock(&other).ttl(TTL).acquire().await.expect("the lock is free");
        let at = nodes.iter().position(|other| other.port() == node.port()).expect("one of them");
        let mut conn = node.connect();
        let waits = tokio::spawn(client.lock("r").ttl(LONG).wait(Wait::For(TIMEOUT)).acquire());
        until("the waiter is queued", || waiters(node).len() == 1);
        // Nothing is granted between the flush and the reset.
        conn.ok("CONFIG SET dlock.restart-grace 86400000");
        conn.ok("FLUSHALL");
        let Lost::TakenAway(report) = guard.lost().await else { panic!("{form}") };
        assert_eq!(report.to_string(), format!("{} not held", url(node)));
        assert_eq!(conn.ok(&format!("CLUSTER RESET {form}")), "OK");
        conn.ok("CONFIG SET dlock.restart-grace 0");
        outlast_lease(&kept, TTL);
        kept.release().await.expect("the other slots go on");
        client.lock(&other).ttl(TTL).acquire().await.expect("free").release().await.expect("held");
        assert!(!waits.is_finished(), "{form}: the wait goes on");

        if form == "HARD" {
            conn.ok("CLUSTER SET-CONFIG-EPOCH 10");
        }
        conn.ok(&format!("CLUSTER ADDSLOTSRANGE {}", EQUAL_SLOTS[at]));
        conn.ok(&format!("CLUSTER MEET 127.0.0.1 {}", other_than(&nodes, node).port()));
        let guard = waits.await.expect("no panic").expect("the slot is served again");
        assert_eq!(holders(node, "r").len(), 1, "{form}");
        guard.release().await.expect("the lock is held");
    }
}

/// Nobody has a copy of its slots: their locks wait or fail, within their limits, and the others go on.
#[each_server]
async fn a_lost_node_without_a_replica_stops_only_its_own_slots(kind: &ServerKind) {
    let mut nodes = cluster_with(kind, EQUAL_SLOTS, &CONF);
    let at = nodes.iter().position(|node| node.port() == owner(&nodes, "r").port()).expect("the owner");
    let client = client_of(std::slice::from_ref(other_than(&nodes, &nodes[at]))).await;
    let gone = client.lock("r").ttl(TTL).acquire().await.expect("the lock is free");
    let other = elsewhere(&nodes);
    let kept = client.lock(&other).ttl(TTL).acquire().await.expect("the lock is free");
    nodes[at].kill9();
    let waits = tokio::spawn(client.lock("r").ttl(LONG).wait(Wait::For(TIMEOUT)).acquire());
    assert!(matches!(gone.lost().await, Lost::NotRenewed(_)), "its lease ends");
    outlast_lease(&kept, TTL);
    kept.release().await.expect("the other slots go on");
    client.lock(&other).ttl(TTL).acquire().await.expect("free").release().await.expect("held");
    let limit = Duration::from_secs(1);
    let why = client.lock("r").wait(Wait::For(limit)).acquire().await.expect_err("no node has the slot");
    assert!(why.to_string().contains("down") || why.to_string().contains("CLUSTERDOWN"), "{why}");
    assert!(!waits.is_finished(), "the wait goes on until its limit");
    nodes[at].restart();
    waits.await.expect("no panic").expect("the node is back").release().await.expect("the lock is held");
}

/// The locks in its slots fail, with the reason, and those of the other nodes do not.
#[each_server]
async fn a_node_without_the_module_stops_only_its_own_slots(kind: &ServerKind) {
    let nodes = Vec::from(cluster_with(kind, EQUAL_SLOTS, &CONF));
    let (from, other) = (owner(&nodes, "r"), elsewhere(&nodes));
    let early = client_of(std::slice::from_ref(other_than(&nodes, from))).await;
    let without = Server::options(kind).conf("cluster-enabled yes").without_module().start();
    let without = meet(&nodes, without);
    move_slot(&nodes, from, &without, "r", || {});
    let late = client_of(&nodes).await;
    let fault = format!("{} does not have dlock: load the module (libdlock.so)", url(&without));
    for client in [&early, &late] {
        let why = client.lock("r").try_acquire().await.expect_err("the node has no locks");
        assert_eq!(why.to_string(), format!("no quorum for r ({fault})"));
        assert_eq!(client.unusable().to_string(), fault);
        let why = Leader::new(client, "r").campaign().await.expect_err("the node has no locks");
        assert_eq!(why.to_string(), format!("no quorum for r ({fault})"));
        client.lock(&other).ttl(LONG).acquire().await.expect("free").release().await.expect("held");
    }
    let at = nodes.iter().position(|node| node.port() == owner(&nodes, &other).port()).expect("the owner");
    nodes[at].kill9();
    for client in [early, late] {
        let leader = Leader::new(&client, &other);
        let outage = tokio::time::timeout(Duration::from_secs(3), leader.campaign()).await;
        assert!(outage.is_err(), "an election outlasts an outage: {outage:?}");
    }
}

/// The node has slots of its own. It counts only while no node of the cluster has ever answered.
#[each_server]
async fn a_node_that_is_not_in_the_cluster_does_not_replace_its_map(kind: &ServerKind) {
    let nodes = cluster_with(kind, EQUAL_SLOTS, &["cluster-node-timeout 60000"]);
    let stray = Server::options(kind).conf("cluster-enabled yes").start();
    stray.connect().ok("CLUSTER ADDSLOTSRANGE 0 99");
    let seeds = format!("redis-cluster://127.0.0.1:{}?node=127.0.0.1:{}", nodes[0].port(), stray.port());
    let build = || Client::builder().server(&seeds).node_timeout(Duration::from_millis(500)).observe();
    nodes.iter().for_each(Server::pause);
    let late = build().await.expect("a client");
    assert_eq!(missing(&late).await, [100..=16_383]);
    nodes.iter().for_each(Server::resume);
    let whole = async { while !missing(&late).await.is_empty() {} };
    tokio::time::timeout(TIMEOUT, whole).await.expect("the map of the cluster counts");
    let early = build().await.expect("a client");
    assert_eq!(missing(&early).await, []);
    nodes.iter().for_each(Server::pause);
    for client in [&early, &late] {
        assert_eq!(missing(client).await, []);
        assert_eq!(client.walk(None, false).len(), 3);
    }
    nodes.iter().for_each(Server::resume);
}

/// Both clusters are whole. The first one counts, also when it does not answer any more.
#[each_server]
async fn another_cluster_never_replaces_the_first(kind: &ServerKind) {
    let (nodes, other) = (cluster(kind, EQUAL_SLOTS), cluster(kind, EQUAL_SLOTS));
    let seeds = format!("redis-cluster://127.0.0.1:{}?node=127.0.0.1:{}", nodes[0].port(), other[0].port());
    let build = Client::builder().server(&seeds).node_timeout(Duration::from_secs(5)).build();
    let client = build.await.expect("a client");
    let strangers = client.cluster().await.expect("a map").strangers;
    assert_eq!(strangers.iter().map(|node| &**node).collect::<Vec<_>>(), [url(&other[0])]);
    let guard = client.lock("r").ttl(TTL).acquire().await.expect("the lock is free");
    nodes.iter().for_each(Server::kill9);
    assert!(matches!(guard.lost().await, Lost::NotRenewed(_)), "its lease ends");
    let limit = Duration::from_secs(1);
    let why = client.lock("r").wait(Wait::For(limit)).acquire().await.expect_err("the cluster is down");
    assert!(why.to_string().contains("down"), "{why}");
    assert!(holders(owner(&other, "r"), "r").is_empty());
}

/// For programs without a runtime.
#[each_server]
fn the_blocking_client_works_on_a_cluster(kind: &ServerKind) {
    let nodes = cluster(kind, EQUAL_SLOTS);
    let seed = format!("redis-cluster://127.0.0.1:{}", nodes[0].port());
    let build = || Client::builder().server(&seed).node_timeout(Duration::from_secs(5)).build_blocking();
    let (ann, bob) = (build().expect("a client"), build().expect("a client"));
    let guard = ann.lock("r").ttl(TTL).acquire().expect("the lock is free");
    let end = guard.valid_until() + TTL;
    let waits = std::thread::spawn(move || bob.lock("r").ttl(LONG).acquire());
    let (from, to) = (owner(&nodes, "r"), other_than(&nodes, owner(&nodes, "r")));
    until("the waiter is queued", || waiters(from).len() == 1);
    move_slot(&nodes, from, to, "r", || {});
    until("the original lease would have ended", || now() > end);
    assert_eq!(guard.loss(), None);
    guard.release().expect("the new node has the hold");
    waits.join().expect("no panic").expect("a handoff").release().expect("the lock is held");
}

/// Returns the slots that no known master has.
async fn missing(client: &Client) -> Vec<std::ops::RangeInclusive<u16>> {
    client.cluster().await.expect("a map").missing_slots
}
