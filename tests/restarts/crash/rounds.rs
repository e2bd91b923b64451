//! Rounds of load, a fault at a random moment, and a restart.

use std::io::{self, Write};
use std::sync::atomic::Ordering;

use super::{LONGEST, attempts};
use dlock_testkit::history::{History, Look};
use dlock_testkit::workers::{Clock, Plan, Worker, during, history, look};
use dlock_testkit::{Random, Server, Wire, until};

const WORKERS: usize = 4;

/// Settings of the rounds.
pub struct Rounds {
    /// Name in the printed figures.
    pub name: &'static str,
    /// Leases, in ms.
    pub leases: &'static [u64],
    /// Maximum number of grants in a round.
    pub grants: usize,
    /// If true, the clients release all their holds after a restart, and nothing must be left.
    pub all_is_given_back: bool,
}

impl Rounds {
    /// Rounds of a server that loses no acknowledged command.
    pub fn of_synced(name: &'static str) -> Rounds {
        Rounds { name, leases: &[100, 600_000, 600_000], grants: 300, all_is_given_back: true }
    }

    /// Rounds of a server that may lose holds. No lease is longer than the grace period, because a client may
    /// rely on a lost hold for the length of its lease.
    pub fn with_grace(name: &'static str) -> Rounds {
        Rounds { name, leases: &[60, 250, LONGEST], grants: 300, all_is_given_back: false }
    }

    /// Runs the rounds. `fault` must end the server while the clients work.
    #[track_caller]
    pub fn run(&self, mut server: Server, mut fault: impl FnMut(&Server, &mut Random)) -> Tally {
        let (mut random, clock, plan) = (Random::fresh(), Clock::start(), Plan::new(self.leases));
        let mut workers: Vec<Worker<'_>> =
            (0..WORKERS).map(|n| Worker::new(format!("client{n}"), &plan, clock, random.branch())).collect();
        let rounds = attempts();
        let (mut looks, mut unanswered) = (Vec::new(), 0);
        for _ in 0..rounds {
            let wanted = 1 + random.below(self.grants);
            during(
                &mut workers,
                || server.port(),
                |granted| {
                    let enough = || granted.load(Ordering::Relaxed) >= wanted;
                    until("the clients have made some grants", enough);
                    fault(&server, &mut random);
                },
            );
            unanswered += workers.iter().map(Worker::unanswered).sum::<usize>();
            server.restart();
            looks.append(&mut look(&mut server.connect(), &plan, clock));
            if self.all_is_given_back {
                release_all(&server, &mut workers);
                let mut conn = server.connect();
                // A client measures a short lease from its request, the server from the grant, so the
                // server's ends a moment later. A revived hold with a long lease stays.
                until("no hold without a client is left", || {
                    look(&mut conn, &plan, clock).iter().all(|look| look.holders.is_empty())
                });
            }
        }
        let tally = Tally::of(rounds, unanswered, workers, looks);
        tally.tell(self.name, &server);
        assert!(tally.wrong.is_empty(), "{:#?}", tally.wrong);
        tally
    }
}

fn release_all(server: &Server, workers: &mut [Worker<'_>]) {
    for worker in workers {
        let mut wire = Wire::connect(server.port()).expect("the server answers");
        worker.release_everything(&mut wire).expect("the server accepts the release");
    }
}

/// Results of all rounds.
pub struct Tally {
    rounds: usize,
    unanswered: usize,
    pub grants: usize,
    releases: usize,
    /// Acknowledged holds missing after a restart.
    pub lost: Vec<String>,
    /// Released holds present after a restart.
    pub back: Vec<String>,
    /// Number of GRACE replies.
    pub grace: usize,
    /// Violations: two holders, falling fences, unknown holders.
    wrong: Vec<String>,
}

impl Tally {
    fn of(rounds: usize, unanswered: usize, workers: Vec<Worker<'_>>, looks: Vec<Look>) -> Tally {
        let sum = |count: &dyn Fn(&Worker<'_>) -> usize| workers.iter().map(count).sum();
        let (grants, releases) = (sum(&|worker| worker.granted), sum(&|worker| worker.released));
        let grace = sum(&|worker| worker.errors.get("GRACE").copied().unwrap_or(0));
        let denied: Vec<String> = workers.iter().flat_map(|worker| worker.denied.iter().cloned()).collect();
        let history: History = history(workers, looks);
        Tally {
            rounds,
            unanswered,
            grants,
            releases,
            lost: [history.lost(), denied].concat(),
            back: history.reappeared(),
            grace,
            wrong: [history.exclusion(), history.fences(), history.forged()].concat(),
        }
    }

    #[track_caller]
    pub fn assert_nothing_lost(&self) {
        assert!(self.lost.is_empty(), "{:#?}", self.lost);
        assert!(self.back.is_empty(), "{:#?}", self.back);
    }

    /// Prints the figures past the capture of test output, for long runs.
    fn tell(&self, name: &str, server: &Server) {
        let Tally { rounds, unanswered, grants, releases, grace, .. } = self;
        let (lost, back, wrong) = (self.lost.len(), self.back.len(), self.wrong.len());
        let kind = server.kind();
        let text = format!(
            "{name}, {} {}: {rounds} rounds, {grants} grants and {releases} releases acknowledged, {unanswered} \
             requests unanswered, {grace} answers GRACE; {lost} holds lost, {back} back, {wrong} violations\n",
            kind.name, kind.version
        );
        io::stderr().write_all(text.as_bytes()).expect("stderr can be written");
    }
}
