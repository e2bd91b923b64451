//! How long a failover keeps clients from a lock: from the kill of a master to the next grant in its slots,
//! beside the time after which a plain SET works there again.

use std::thread;
use std::time::Duration;

use dlock_client::now;
use dlock_testkit::history::At;
use dlock_testkit::{Server, ServerKind, each_server, rounds, until};

use crate::cluster::Cluster;
use crate::contender::{Stage, at};
use crate::failovers::network;
use crate::foreign_clients::{self, ForeignClient};
use crate::messages::rust_client_program;
use crate::store::Store;
use crate::topology::Topology;

const KILLS: usize = 12;
const LEASE: Duration = Duration::from_millis(1_500);
/// All locks are in the slot of this key. No client takes the lock of another one, and each has so many that
/// a hold that its last release has not ended is rarely in the way.
const SLOT: &str = "{ledger}";
const LOCKS_OF_A_CLIENT: usize = 50;
/// No replica is promoted so soon after the kill, in µs. A grant before this time was given before the kill.
const EARLIEST: At = 100_000;

#[each_server(in_turn)]
#[ignore = "prints a table: see docs/speed.md"]
fn the_next_grant_after_a_kill_beside_a_plain_set(kind: &ServerKind) {
    let network = network();
    let mut cluster = Cluster::start_directly(kind, network.handle());
    let mut programs = vec![rust_client_program()];
    programs.extend(foreign_clients::programs_for_failovers());
    let names: Vec<String> = (["Rust".to_string()].into_iter())
        .chain(programs[1..].iter().map(|program| foreign_clients::kind(program)))
        .collect();
    let store = Server::start(kind);
    let stage = Stage::new(Store::new(&store), names.iter().cloned());
    let urls = [cluster.url()];
    let mut kills = Vec::new();
    let holds = thread::scope(|scope| {
        let (clients, inputs): (Vec<_>, Vec<_>) = (programs.iter().enumerate())
            .map(|(number, program)| {
                let locks: Vec<String> =
                    (0..LOCKS_OF_A_CLIENT).map(|lock| format!("{SLOT}:{number}:{lock}")).collect();
                ForeignClient::start_steady(number, program, &urls, LEASE, &locks.join(" "))
            })
            .unzip();
        let stage = &stage;
        let clients: Vec<_> =
            clients.into_iter().map(|client| scope.spawn(move || client.follow(stage))).collect();
        for _ in 0..rounds(KILLS).min(KILLS) {
            stage.until_all_acquire("before a kill");
            let shard = cluster.shard_of(SLOT);
            let kill = at(now());
            let (master, replica) = cluster.kill_master(shard);
            let mut conn = cluster.node(replica).connect();
            until("a plain SET works", || conn.say(&format!("SET {SLOT}:plain x")) == "OK");
            kills.push((kill, at(now()) - kill));
            stage.until_all_acquire("after a kill");
            cluster.restart(master, false);
            cluster.until_whole();
        }
        drop(inputs);
        let clients = clients.into_iter().map(|client| client.join().expect("no panic"));
        clients.collect::<Vec<_>>()
    });
    println!(
        "{}: {} kills; a plain SET works after {} ms",
        kind.name,
        kills.len(),
        median(kills.iter().map(|kill| kill.1)) / 1_000
    );
    for (name, holds) in names.iter().zip(holds) {
        let waits: Vec<At> = (kills.iter())
            .filter_map(|(kill, _)| {
                let grants = holds.iter().filter_map(|hold| hold.grant.map(|grant| grant.at));
                grants.filter(|at| *at > kill + EARLIEST).min().map(|at| at - kill)
            })
            .collect();
        assert_eq!(waits.len(), kills.len(), "each client has acquired after each kill");
        // Each in per cent of the time of the plain SET after the same kill.
        let ratio = median(waits.iter().zip(&kills).map(|(wait, (_, plain))| 100 * wait / plain));
        println!(
            "  {name}: granted after {} ms, {ratio} % of that of the SET",
            median(waits.iter().copied()) / 1_000
        );
    }
}

fn median(values: impl Iterator<Item = At>) -> At {
    let mut values: Vec<At> = values.collect();
    values.sort_unstable();
    values[values.len() / 2]
}
