//! Rounds of load, a fault at a random moment, and a restart.

use std::io::{self, Write};
use std::sync::atomic::Ordering;

use super::{GRACE_MS, attempts};
use dlock_testkit::history::Report;
use dlock_testkit::workers::{Clock, Plan, Worker, during, history, report_all};
use dlock_testkit::{Random, Server, Wire, until};

const WORKERS: usize = 4;

/// Settings of the rounds.
pub struct Rounds {
    /// Name in the printed figures.
    pub name: &'static str,
    /// Leases, in ms. Each ACQUIRE draws one of them.
    pub leases: &'static [u64],
    /// Maximum number of grants in a round.
    pub grants: usize,
    /// If true, the clients release all their holds after each restart, and then no hold may be left.
    pub releases_all: bool,
}

impl Rounds {
    /// Rounds of a server that loses no acknowledged command.
    pub fn lossless(name: &'static str) -> Rounds {
        Rounds { name, leases: &[100, 600_000, 600_000], grants: 300, releases_all: true }
    }

    /// Rounds of a server that may lose holds. No lease is longer than the grace period, because a client may
    /// rely on a lost hold for the length of its lease.
    pub fn with_grace(name: &'static str) -> Rounds {
        Rounds { name, leases: &[60, 250, GRACE_MS], grants: 300, releases_all: false }
    }

    /// Runs the rounds. `fault` must end the server while the clients work.
    #[track_caller]
    pub fn run(&self, mut server: Server, mut fault: impl FnMut(&Server, &mut Random)) -> Tally {
        let (mut random, clock, plan) = (Random::fresh(), Clock::start(), Plan::new(self.leases));
        let mut workers: Vec<Worker<'_>> =
            (0..WORKERS).map(|n| Worker::new(format!("client{n}"), &plan, clock, random.branch())).collect();
        let rounds = attempts();
        let (mut reports, mut unanswered) = (Vec::new(), 0);
        for _ in 0..rounds {
            let wanted = 1 + random.below(self.grants);
            during(
                &mut workers,
                || server.port(),
                |granted| {
                    until("some locks are granted", || granted.load(Ordering::Relaxed) >= wanted);
                    fault(&server, &mut random);
                },
            );
            unanswered += workers.iter().map(Worker::unanswered).sum::<usize>();
            server.restart();
            reports.append(&mut report_all(&mut server.connect(), &plan, clock));
            if self.releases_all {
                for worker in &mut workers {
                    let mut wire = Wire::connect(server.port()).expect("the server answers");
                    worker.release_everything(&mut wire).expect("the server accepts the release");
                }
                let mut conn = server.connect();
                // A client does not release a hold after its lease has ended. The same lease ends a moment
                // later at the server, which counts from the grant, so the test waits. The wait fails if a
                // released hold came back with a long lease.
                until("the server has no hold any more", || {
                    report_all(&mut conn, &plan, clock).iter().all(|report| report.holders.is_empty())
                });
            }
        }
        let tally = Tally::of(rounds, unanswered, workers, reports);
        tally.print(self.name, &server);
        assert!(tally.violations.is_empty(), "{:#?}", tally.violations);
        tally
    }
}

/// Results of all rounds.
pub struct Tally {
    rounds: usize,
    /// Number of unanswered requests after which the server may have a hold.
    unanswered: usize,
    pub grants: usize,
    releases: usize,
    /// Acknowledged holds that were missing after a restart, or that the server refused to extend.
    pub lost: Vec<String>,
    /// Released holds present after a restart.
    pub reappeared: Vec<String>,
    /// Number of GRACE replies.
    pub grace: usize,
    /// Outcomes that neither kind of [`Rounds`] allows: two holders at once, a falling fence, a holder that
    /// never asked for the lock.
    violations: Vec<String>,
}

impl Tally {
    fn of(rounds: usize, unanswered: usize, workers: Vec<Worker<'_>>, reports: Vec<Report>) -> Tally {
        let sum = |count: &dyn Fn(&Worker<'_>) -> usize| workers.iter().map(count).sum();
        let (grants, releases) = (sum(&|worker| worker.granted), sum(&|worker| worker.released));
        let grace = sum(&|worker| worker.errors.get("GRACE").copied().unwrap_or(0));
        let denied: Vec<String> = workers.iter().flat_map(|worker| worker.denied.iter().cloned()).collect();
        let history = history(workers, reports);
        Tally {
            rounds,
            unanswered,
            grants,
            releases,
            lost: [history.lost(), denied].concat(),
            reappeared: history.reappeared(),
            grace,
            violations: [history.exclusion(), history.fences(), history.wrong_holders()].concat(),
        }
    }

    #[track_caller]
    pub fn assert_nothing_lost(&self) {
        assert!(self.lost.is_empty(), "{:#?}", self.lost);
        assert!(self.reappeared.is_empty(), "{:#?}", self.reappeared);
    }

    /// Prints the figures to stderr, because the output of a passing test is not shown.
    fn print(&self, name: &str, server: &Server) {
        let Tally { rounds, unanswered, grants, releases, grace, .. } = self;
        let (lost, back, violations) = (self.lost.len(), self.reappeared.len(), self.violations.len());
        let kind = server.kind();
        let text = format!(
            "{name}, {} {}: {rounds} rounds, {grants} grants and {releases} releases acknowledged, {unanswered} \
             requests unanswered, {grace} replies GRACE; {lost} holds lost, {back} back, {violations} violations\n",
            kind.name, kind.version
        );
        io::stderr().write_all(text.as_bytes()).expect("stderr can be written");
    }
}
