//! All subcommands over a cluster of three masters, found from one of them.

use super::metrics::{get, port};
use super::operators::{dlock, json};
use super::*;
use dlock_testkit::cluster::{
    EQUAL_SLOTS, add_master, add_replica, cluster, cluster_with, meet, move_slot, node_id, owner,
};
use dlock_testkit::{Conn, Server, ServerKind, each_server};

/// Locks in the slots of all three nodes.
const NAMES: [&str; 6] = ["r0", "r1", "r2", "r3", "r4", "r5"];

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn address(node: &Server) -> String {
    format!("redis-cluster://127.0.0.1:{}", node.port())
}

fn stage(kind: &ServerKind) -> Stage {
    let nodes = Vec::from(cluster(kind, EQUAL_SLOTS));
    let used: std::collections::HashSet<u16> = NAMES.iter().map(|name| owner(&nodes, name).port()).collect();
    assert_eq!(used.len(), 3);
    let address = address(&nodes[0]);
    Stage::at(nodes, address)
}

#[each_server]
fn every_subcommand_works_in_every_slot(kind: &ServerKind) {
    let stage = stage(kind);
    let all = NAMES.join(" ");
    let run = stage.shell(&format!("\"$DLOCK\" run {all} -- \"$DLOCK\" list --json"));
    let done = stage.execute(run);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(done.stdout.matches(r#""state":"held""#).count(), NAMES.len(), "{}", done.stdout);
    for name in NAMES {
        let token = dlock(&stage, &format!("acquire {name} --ttl 10m"), 0).stdout;
        let token = token.split_whitespace().next().expect("a token").to_owned();
        assert_eq!(dlock(&stage, &format!("run --wait 0 {name} -- true"), 75).stdout, "");
        assert_eq!(json(&stage, &format!("inspect {name}"), 0)["state"], "held");
        dlock(&stage, &format!("extend {name} {token} --ttl 20m"), 0);
        dlock(&stage, &format!("release {name} {token}"), 0);
        dlock(&stage, &format!("wait {name}"), 0);
        dlock(&stage, &format!("acquire {name} --ttl 10m"), 0);
        let waits = stage.start(stage.dlock(&format!("run {name} -- true")));
        let mut conn = owner(&stage.servers, name).connect();
        until("the run waits", || queue::tokens(&mut conn, name).len() == 1);
        assert!(dlock(&stage, &format!("break --yes {name}"), 0).stdout.contains("ended 1 hold"));
        assert_eq!(waits.wait().code, Some(0));
    }
    let status = json(&stage, "status", 0);
    assert_eq!(status["servers"].as_array().map(Vec::len), Some(3), "{status}");
    let log = dlock(&stage, "log", 0).stdout;
    assert_eq!(log.matches("broken").count(), NAMES.len(), "{log}");
    let metrics = dlock(&stage, "metrics", 0).stdout;
    assert!(
        metrics.contains("\ndlock_quorum 1\n") && metrics.matches("\ndlock_up{").count() == 3,
        "{metrics}"
    );
    let found = json(&stage, "doctor", 1)["findings"].to_string();
    assert!(!found.contains("must be up") && !found.contains("rights"), "{found}");
    assert_eq!(found.matches("no replica is connected to it").count(), 3, "{found}");
}

#[each_server]
fn a_run_outlasts_the_move_of_its_slot(kind: &ServerKind) {
    let stage = stage(kind);
    let nodes = &stage.servers;
    let from = owner(nodes, "r");
    let to = nodes.iter().find(|node| node.port() != from.port()).expect("another node");
    let run =
        stage.start(stage.run("--ttl 3s", "echo runs > running; until test -e end; do sleep 0.05; done"));
    stage.until_written("running");
    move_slot(nodes, from, to, "r", || {});
    let held = queue::holders(&mut to.connect(), "r");
    let mut conn = to.connect();
    until("the hold is renewed at the new node", || {
        conn.ok("INFO commandstats").text().to_lowercase().contains("cmdstat_dlock.extend:")
    });
    assert_eq!(queue::holders(&mut conn, "r"), held);
    stage.write("end", "");
    assert_eq!(run.wait().code, Some(0));
    assert!(queue::holders(&mut conn, "r").is_empty());
}

/// The key is at the new node already, and the slot at the old one.
#[each_server]
fn the_node_that_answers_is_named_while_a_slot_moves(kind: &ServerKind) {
    let stage = stage(kind);
    let nodes = &stage.servers;
    let from = owner(nodes, "r");
    let to = nodes.iter().find(|node| node.port() != from.port()).expect("another node");
    from.connect().ok("DLOCK.ACQUIRE r t 600000");
    let new = format!("redis://127.0.0.1:{}", to.port());
    move_slot(nodes, from, to, "r", || {
        let mut conn = to.connect();
        conn.ok("ASKING");
        assert!(conn.ok("DLOCK.ACQUIRE r u 600000 QUEUE 600000").is_nil());
        let seen = &json(&stage, "inspect r", 0)["masters"][0];
        assert_eq!((&seen["server"], &seen["found"]["waiters"]), (&new.as_str().into(), &1.into()), "{seen}");
        assert_eq!(seen["queue"][0]["mode"], "exclusive", "{seen}");
        assert_eq!(dlock(&stage, "break --yes r", 0).stdout, format!("{new}: ended 1 hold\n"));
    });
}

/// The other slots go on, and the node that is down is a row.
#[each_server]
fn a_node_that_is_down_is_a_row(kind: &ServerKind) {
    let mut nodes = Vec::from(cluster_with(
        kind,
        EQUAL_SLOTS,
        &["cluster-node-timeout 1000", "cluster-require-full-coverage no"],
    ));
    let dead = nodes.iter().position(|node| node.port() == owner(&nodes, "r").port()).expect("the owner");
    nodes.swap(2, dead);
    let replica = add_replica(kind, &nodes, &nodes[0], &[]);
    let address = address(&nodes[0]);
    let stage = Stage::at(nodes, address);
    let status = json(&stage, "status", 0);
    let replicas = status["servers"][0]["replicas"].to_string()
        + &status["servers"][1]["replicas"].to_string()
        + &status["servers"][2]["replicas"].to_string();
    assert!(replicas.contains(&format!("127.0.0.1:{}", replica.port())), "{status}");
    let known = &status["replicas"][0];
    assert_eq!(known["server"], format!("redis://127.0.0.1:{}", replica.port()), "{status}");
    let master = format!("127.0.0.1:{}", stage.servers[0].port());
    for (field, value) in [("role", "replica"), ("master", &master), ("link", "up"), ("module", VERSION)] {
        assert_eq!(known[field], value, "{field}: {known}");
    }
    assert!(known["lag_s"].is_u64() && status["servers"][0]["module"] == VERSION, "{status}");
    let shown = dlock(&stage, "status", 0).stdout;
    assert!(shown.contains("REPLICA") && shown.contains(&format!(" {VERSION} ")), "{shown}");
    replica.connect().ok("CONFIG SET dlock.fence-mark no");
    let found = json(&stage, "doctor", 1)["findings"].to_string();
    assert_eq!(found.matches("no replica is connected to it").count(), 2, "{found}");
    assert!(found.contains(&format!("no on redis://127.0.0.1:{}", replica.port())), "{found}");
    replica.connect().ok("CONFIG SET dlock.fence-mark yes");
    let grace = "it has replicas, and no grace period";
    let never = "its replicas have cluster-replica-no-failover yes";
    assert!(found.contains(grace) && !found.contains(never), "{found}");
    replica.connect().ok("CONFIG SET cluster-replica-no-failover yes");
    let found = json(&stage, "doctor", 1)["findings"].to_string();
    assert!(found.contains(never), "{found}");
    replica.connect().ok("CONFIG SET cluster-replica-no-failover no");
    let other = NAMES.iter().find(|name| owner(&stage.servers, name).port() != stage.servers[2].port());
    let other = other.expect("a lock of another node");
    stage.connect().ok("CONFIG SET dlock.max-ttl 60000");
    let found = json(&stage, "doctor --ttl 500ms", 1)["findings"].to_string();
    for part in
        ["dlock.max-ttl differs: 60000 on", "grants locks without them", "a failover begins after 1000 ms"]
    {
        assert!(found.contains(part), "{part}: {found}");
    }
    stage.servers[2].kill9();
    until("the others take the node for dead", || {
        stage.connect().ok("CLUSTER NODES").text().contains("master,fail ")
    });
    let status = json(&stage, "status", 69);
    let down = format!("redis://127.0.0.1:{}", stage.servers[2].port());
    let rows = status["servers"].as_array().expect("rows");
    assert_eq!(rows.len(), 3, "{status}");
    replica.kill9();
    let known = json(&stage, "status", 69)["replicas"].to_string();
    assert!(known.contains(&format!("127.0.0.1:{}", replica.port())) && known.contains("down"), "{known}");
    let found = json(&stage, "doctor", 69)["findings"].to_string();
    assert!(found.contains("it cannot take over locks: down: "), "{found}");
    let row = rows.iter().find(|row| row["server"] == down.as_str()).expect("a row of the dead node");
    assert!(row["unanswered"].to_string().contains("down"), "{row}");
    let listed = dlock(&stage, "list --json", 69);
    assert!(listed.stderr.contains(&down), "{}", listed.stderr);
    dlock(&stage, &format!("run {other} -- true"), 0);
    let failed = dlock(&stage, "run --wait 0 r -- true", 69).stderr;
    assert!(failed.contains(&down) || failed.contains("CLUSTERDOWN"), "{failed}");
    let failed = dlock(&stage, "wait --timeout 1s r", 69).stderr;
    assert!(failed.contains(&format!("too few servers answered ({down} down: ")), "{failed}");
}

/// Checks that every subcommand about all servers names these slots, and exits with 69.
#[track_caller]
fn assert_missing(stage: &Stage, slots: &str, number: u32) {
    let status = json(stage, "status", 69);
    assert_eq!(
        (&status["status"], &status["missing_slots"][0]),
        (&"no_quorum".into(), &slots.into()),
        "{status}"
    );
    let shown = dlock(stage, "status", 69).stdout;
    assert!(shown.contains(&format!("no known master has the slots {slots}")), "{shown}");
    let listed = dlock(stage, "list", 69);
    assert!(listed.stderr.contains(slots) && !listed.stdout.contains("no locks"), "{listed:?}");
    let metrics = dlock(stage, "metrics", 69).stdout;
    assert_missing_in(&metrics, slots, number);
    let found = json(stage, "doctor", 69)["findings"].to_string();
    assert!(
        found.contains(&format!("slots {slots}")) && found.contains("redis-cli --cluster fix"),
        "{found}"
    );
}

/// Checks that every subcommand for one lock says that its slot has no master.
#[track_caller]
fn assert_granted_nowhere(stage: &Stage, name: &str) {
    let slot = stage.connect().ok(&format!("CLUSTER KEYSLOT {name}")).int();
    let said = format!("no known master has the slot {slot}: the cluster grants nothing in it");
    for words in [
        format!("run {name} --no-wait -- true"),
        format!("run {name} --wait 100ms -- true"),
        format!("wait {name} --timeout 100ms"),
        format!("inspect {name}"),
    ] {
        let done = dlock(stage, &words, 69);
        let shown = done.stdout + &done.stderr;
        assert!(shown.contains(&said), "{words}: {shown}");
    }
}

#[track_caller]
fn assert_missing_in(metrics: &str, slots: &str, number: u32) {
    let sample = format!("\ndlock_missing_slots{{slots=\"{slots}\"}} {number}\n");
    assert!(metrics.contains("\ndlock_quorum 0\n") && metrics.contains(&sample), "{metrics}");
}

#[each_server]
fn a_slot_that_no_node_serves_is_named(kind: &ServerKind) {
    for coverage in ["yes", "no"] {
        let conf = format!("cluster-require-full-coverage {coverage}");
        let nodes = Vec::from(cluster_with(kind, EQUAL_SLOTS, &[&conf]));
        let address = address(&nodes[0]);
        let stage = Stage::at(nodes, address);
        let exporter = stage.start(stage.dlock("exporter --listen 127.0.0.1:0"));
        let port = port(&exporter);
        let scraped = get(port, "GET /metrics").1;
        assert!(scraped.contains("\ndlock_quorum 1\n") && !scraped.contains("missing_slots{"), "{scraped}");
        let slot = stage.connect().ok("CLUSTER KEYSLOT r").int();
        // A node that still has the slot tells the others.
        until("no node has the slot", || {
            let mut conns: Vec<Conn> = stage.servers.iter().map(Server::connect).collect();
            conns.iter_mut().for_each(|conn| _ = conn.say(&format!("CLUSTER DELSLOTS {slot}")));
            let lacks = |conn: &mut Conn| conn.ok("CLUSTER INFO").text().contains("slots_assigned:16383\r");
            conns.iter_mut().all(lacks)
        });
        assert_granted_nowhere(&stage, "r");
        assert_missing(&stage, &slot.to_string(), 1);
        assert_missing_in(&get(port, "GET /metrics").1, &slot.to_string(), 1);
    }
}

#[each_server]
fn the_slots_of_a_node_that_was_reset_are_named(kind: &ServerKind) {
    // With full coverage, the whole cluster is down after a while.
    let nodes = Vec::from(cluster_with(kind, EQUAL_SLOTS, &["cluster-require-full-coverage no"]));
    let name = NAMES.iter().find(|name| owner(&nodes, name).port() == nodes[1].port()).expect("a lock of it");
    let address = address(&nodes[0]);
    let stage = Stage::at(nodes, address);
    let mut conn = stage.servers[1].connect();
    conn.ok("MULTI");
    ["FLUSHALL", "CLUSTER RESET HARD"].iter().for_each(|command| _ = conn.ok(command));
    conn.ok("EXEC");
    until("the others have noticed", || {
        stage.execute(stage.dlock("status --json")).stdout.contains("\"missing_slots\":[\"5461-10922\"]")
    });
    assert_missing(&stage, "5461-10922", 5462);
    assert_granted_nowhere(&stage, name);
}

/// The other nodes still name it as the master of its slots.
#[each_server]
fn slots_that_their_own_master_lacks_are_named(kind: &ServerKind) {
    let stage = stage(kind);
    let slot = stage.connect().ok("CLUSTER KEYSLOT r").int();
    owner(&stage.servers, "r").connect().ok(&format!("CLUSTER DELSLOTS {slot}"));
    dlock(&stage, "run r --no-wait -- true", 69);
    assert_missing(&stage, &slot.to_string(), 1);

    let stage = self::stage(kind);
    let mut conn = stage.servers[1].connect();
    conn.ok("MULTI");
    ["FLUSHALL", "CLUSTER RESET SOFT"].iter().for_each(|command| _ = conn.ok(command));
    conn.ok("EXEC");
    assert_missing(&stage, "5461-10922", 5462);
}

/// The node is no part of a cluster, or was reset.
#[each_server]
fn a_seed_without_a_cluster_has_no_slots(kind: &ServerKind) {
    let node = Server::options(kind).conf("cluster-enabled yes").start();
    let address = address(&node);
    let stage = Stage::at(vec![node], address);
    assert_missing(&stage, "0-16383", 16_384);
    assert_granted_nowhere(&stage, "r");
}

/// The other node has no slots, or some of its own.
#[each_server]
fn a_seed_that_is_not_in_the_cluster_hides_no_lock(kind: &ServerKind) {
    let mut stage = stage(kind);
    for name in NAMES {
        dlock(&stage, &format!("acquire {name} --ttl 10m"), 0);
    }
    let stray = Server::options(kind).conf("cluster-enabled yes").start();
    let (port, first) = (stray.port(), stage.servers[0].port());
    for slots in [None, Some("0 99")] {
        slots.iter().for_each(|slots| _ = stray.connect().ok(&format!("CLUSTER ADDSLOTSRANGE {slots}")));
        for address in [
            format!("{}?node=127.0.0.1:{port}", address(&stage.servers[0])),
            format!("{}?node=127.0.0.1:{first}", address(&stray)),
            format!("{}?node=127.0.0.1:{port}&node=127.0.0.1:{first}", address(&stage.servers[1])),
        ] {
            stage = Stage::at(stage.servers, address.clone());
            let listed = dlock(&stage, "list --json", 0).stdout;
            assert_eq!(listed.lines().count(), NAMES.len(), "{address}: {listed}");
            let status = json(&stage, "status", slots.map_or(0, |_| 1));
            assert_eq!(status["servers"].as_array().map(Vec::len), Some(3), "{address}: {status}");
            for name in NAMES {
                assert_eq!(json(&stage, &format!("inspect {name}"), 0)["state"], "held", "{address}");
            }
        }
    }
}

/// A failover that is planned, and one after the other master has died.
#[each_server]
fn the_log_follows_a_failover_and_the_dead_master_is_a_row(kind: &ServerKind) {
    let mut nodes = Vec::from(cluster_with(kind, EQUAL_SLOTS, &["cluster-node-timeout 1000"]));
    let at = nodes.iter().position(|node| node.port() == owner(&nodes, "r").port()).expect("the owner");
    let replica = add_replica(kind, &nodes, &nodes[at], &["cluster-node-timeout 1000"]);
    nodes.swap(2, at);
    let address = address(&nodes[0]);
    let stage = Stage::at(nodes, address);
    let log = stage.start(stage.dlock("log --follow --json"));
    let breaks = |node: &Server| {
        let mut conn = node.connect();
        conn.ok("DLOCK.ACQUIRE r t 600000");
        conn.ok("DLOCK.BREAK r");
    };
    let until_shown = |node: &Server| {
        let server = format!("\"server\":\"redis://127.0.0.1:{}\"", node.port());
        until("the entry is shown", || log.stdout().contains(&server));
    };
    breaks(&stage.servers[2]);
    until_shown(&stage.servers[2]);
    let mut conn = replica.connect();
    conn.ok("CLUSTER FAILOVER");
    until("the replica is the master", || conn.ok("INFO replication").text().contains("role:master"));
    until("the others know it", || {
        let port = replica.port().to_string();
        stage
            .connect()
            .ok("CLUSTER SLOTS")
            .items()
            .iter()
            .any(|range| range.items()[2].items()[1].clone().int().to_string() == port)
    });
    breaks(&replica);
    until_shown(&replica);

    stage.servers[2].wait_in_sync(&replica);
    replica.kill9();
    until("its former master has its slots", || {
        let nodes = stage.connect().ok("CLUSTER NODES").text();
        nodes.lines().any(|line| line.contains("master,fail ") && line.split(' ').nth(8).is_none())
            && stage.connect().ok("CLUSTER INFO").text().contains("cluster_state:ok")
    });
    let down = format!("redis://127.0.0.1:{}", replica.port());
    let status = json(&stage, "status", 0);
    assert_eq!(status["replicas"][0]["server"], down.as_str(), "{status}");
    assert!(status["replicas"][0]["unanswered"].is_object(), "{status}");
    let metrics = dlock(&stage, "metrics", 0).stdout;
    assert!(metrics.contains(&format!("dlock_replica_up{{server=\"{down}\"}} 0\n")), "{metrics}");
    let found = json(&stage, "doctor", 1)["findings"].to_string();
    assert!(found.contains("start the node that is down"), "{found}");
}

/// The table of `status` has the slots, and the replicas have metrics.
#[each_server]
fn the_slots_of_masters_and_their_replicas_are_shown(kind: &ServerKind) {
    let nodes = Vec::from(cluster(kind, EQUAL_SLOTS));
    let replica = add_replica(kind, &nodes, &nodes[0], &[]);
    let (port, address) = (nodes[0].port(), address(&nodes[0]));
    let stage = Stage::at(nodes, address);
    let status = json(&stage, "status", 0);
    let row = status["servers"].as_array().expect("rows").iter();
    let row = row.clone().find(|row| row["server"] == format!("redis://127.0.0.1:{port}")).expect("a row");
    assert_eq!(row["slots"][0], "0-5460", "{status}");
    let shown = dlock(&stage, "status", 0).stdout;
    assert!(shown.contains("SLOTS") && shown.contains("5461-10922"), "{shown}");
    let metrics = dlock(&stage, "metrics", 0).stdout;
    let at = replica.port();
    for sample in [
        format!("\ndlock_replica_up{{server=\"redis://127.0.0.1:{at}\"}} 1\n"),
        format!(
            "\ndlock_replica_info{{server=\"redis://127.0.0.1:{at}\",role=\"slave\",master=\"127.0.0.1:{port}\""
        ),
        format!("\ndlock_replica_lag_seconds{{server=\"redis://127.0.0.1:{at}\"}} "),
    ] {
        assert!(metrics.contains(&sample), "{sample}: {metrics}");
    }
}

/// It has no locks, and gets some with its first slot. So its faults count before.
#[each_server]
fn a_node_without_slots_is_a_row(kind: &ServerKind) {
    let stage = stage(kind);
    let added = add_master(kind, &stage.servers, &[]);
    added.connect().ok("CONFIG SET dlock.max-ttl 60000");
    let without = Server::options(kind).conf("cluster-enabled yes").without_module().start();
    let without = meet(&[&stage.servers[0], &stage.servers[1], &stage.servers[2], &added], without);
    let [url, no_module] = [&added, &without].map(|node| format!("redis://127.0.0.1:{}", node.port()));
    let status = json(&stage, "status", 0);
    assert_eq!(status["servers"].as_array().map(Vec::len), Some(3), "{status}");
    let rows = status["replicas"].as_array().expect("rows");
    assert_eq!(rows.len(), 2, "{status}");
    let row = |server: &str| rows.iter().find(|row| row["server"] == server).expect("a row");
    let known = row(&url);
    assert_eq!((&known["role"], &known["master"]), (&"master".into(), &"".into()), "{known}");
    assert_eq!(known["module"], VERSION, "{known}");
    assert!(row(&no_module)["unanswered"].to_string().contains("does not have dlock"), "{status}");
    let shown = dlock(&stage, "status", 0).stdout;
    assert!(shown.contains(&url) && shown.contains(&no_module), "{shown}");
    let found = json(&stage, "doctor", 1)["findings"].to_string();
    for part in [
        format!("dlock.max-ttl differs: 60000 on {url}, "),
        format!("\"server\":\"{no_module}\",\"what\":\"it cannot take over locks: does not have dlock"),
    ] {
        assert!(found.contains(&part), "{part}: {found}");
    }
    let metrics = dlock(&stage, "metrics", 0).stdout;
    for (server, up) in [(&url, 1), (&no_module, 0)] {
        let sample = format!("\ndlock_replica_up{{server=\"{server}\"}} {up}\n");
        assert!(metrics.contains(&sample), "{sample}: {metrics}");
    }
}

/// Two processes could take different ones.
#[each_server]
fn nodes_of_two_clusters_are_named(kind: &ServerKind) {
    let stage = stage(kind);
    let other = cluster(kind, EQUAL_SLOTS);
    let seeds = format!("{}?node=127.0.0.1:{}", address(&stage.servers[0]), other[1].port());
    let stage = Stage::at(stage.servers, seeds);
    let stranger = format!("redis://127.0.0.1:{} is not in the cluster of the others", other[1].port());
    let shown = dlock(&stage, "status", 1).stdout;
    assert!(shown.contains("several clusters") && shown.contains(&stranger), "{shown}");
    let found = json(&stage, "doctor", 1)["findings"].to_string();
    assert!(found.contains(&stranger) && found.contains("the nodes of one cluster"), "{found}");
}

/// No map is no proof that slots have no master.
#[each_server]
fn a_map_that_no_node_shows_says_why(kind: &ServerKind) {
    let mut stage = stage(kind);
    let plain = Server::start(kind);
    let whole = stage.urls().to_owned();
    stage.servers.iter().for_each(|node| _ = node.connect().ok("ACL SETUSER default -cluster|slots"));
    for (address, part, fix) in [
        (whole, "cluster|slots", "the right +cluster|slots"),
        ("redis-cluster://127.0.0.1:1".into(), "redis://127.0.0.1:1", "correct its address"),
        (address(&plain), "is no node of a cluster: write redis://", "write the address in that form"),
    ] {
        stage = Stage::at(stage.servers, address);
        for words in ["status", "list", "log"] {
            let done = dlock(&stage, words, 69);
            let shown = done.stdout + &done.stderr;
            assert!(shown.contains("the map of the cluster is unknown: "), "{words}: {shown}");
            assert!(shown.contains(part) && !shown.contains("no known master"), "{words}: {shown}");
        }
        let metrics = dlock(&stage, "metrics", 69).stdout;
        assert!(metrics.contains("\ndlock_quorum 0\n") && !metrics.contains("_slots{"), "{metrics}");
        let found = json(&stage, "doctor", 69)["findings"].to_string();
        assert!(found.contains(part) && found.contains(fix) && !found.contains("--cluster fix"), "{found}");
    }
}

/// Its login at its master is wrong, because Redis 7.0 would end when it cannot load the locks.
#[each_server]
fn a_replica_without_the_module_is_named(kind: &ServerKind) {
    let stage = stage(kind);
    let login = ["masteruser nobody", "masterauth x"];
    let replica = Server::options(kind).conf("cluster-enabled yes").confs(&login).without_module().start();
    let (mut conn, mut master) = (replica.connect(), stage.connect());
    let id = node_id(&mut master);
    conn.ok(&format!("CLUSTER MEET 127.0.0.1 {}", stage.servers[0].port()));
    until("the replica knows its master", || conn.say(&format!("CLUSTER REPLICATE {id}")) == "OK");
    until("its master knows it", || master.ok("CLUSTER NODES").text().contains(&format!("slave {id}")));
    let status = json(&stage, "status", 0);
    assert!(status["replicas"][0]["unanswered"].to_string().contains("does not have dlock"), "{status}");
    let found = json(&stage, "doctor", 1)["findings"].to_string();
    assert!(found.contains("it cannot take over locks: ") && found.contains("MODULE LOAD"), "{found}");
    assert!(!found.contains("start the node that is down"), "{found}");
}

#[each_server]
fn a_wrong_address_says_what_to_write(kind: &ServerKind) {
    let stage = stage(kind);
    let node = format!("redis://127.0.0.1:{}", stage.servers[0].port());
    let cluster = address(&stage.servers[0]);
    let plain = Server::start(kind);
    let without = Server::options(kind).conf("cluster-enabled yes").without_module().start();
    for (servers, code, part) in [
        (node.clone(), 69, format!("write {cluster}")),
        (format!("{cluster},{node}"), 64, "write only this address".into()),
        (format!("{cluster},{}", address(&stage.servers[1])), 64, "write only this address".into()),
        (address(&plain), 69, format!("is no node of a cluster: write redis://127.0.0.1:{}", plain.port())),
        (address(&without), 69, "does not have dlock: load the module".into()),
        (format!("{cluster}?nodes=1"), 64, "node=host:port".into()),
        (
            cluster.replace("cluster", "sentinel") + "?sentinelServiceName=locks",
            69,
            format!("is no sentinel: write {cluster} for a cluster"),
        ),
        (format!("{cluster}/3"), 64, "only the database 0".into()),
    ] {
        let mut run = stage.dlock("run r -- true");
        run.env("DLOCK_SERVERS", &servers);
        let done = stage.execute(run);
        assert_eq!(done.code, Some(code), "{servers}: {}", done.stderr);
        assert!(
            done.stderr.contains(&part) && done.stderr.lines().count() == 1,
            "{servers}: {}",
            done.stderr
        );
    }
}
