//! A run: working clients, injected faults, and the observations.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use dlock_client::now;

use crate::contender::{CONTENDERS, Contender, Counts, Stage, TIMEOUT, at};
use crate::foreign_clients::{self, ForeignClient};
use crate::locks::Locks;
use crate::masters::{Fault, Masters};
use crate::record::Record;
use crate::store::Store;
use dlock_testkit::history::{At, Hold};
use dlock_testkit::workers::SetAtTheEnd;
use dlock_testkit::{Random, Server, ServerKind, until_within};

/// The locks of a run.
#[derive(Clone, Copy)]
pub enum LockKind {
    Dlock,
    Unfenced,
    /// Redlock with `SET NX PX`.
    Redlock,
    /// `SET NX PX` in a cluster.
    SetNx,
}

pub struct Run {
    masters: Masters,
    /// A server that gets the clients' writes by `DLOCK.FENCED`.
    store: Server,
    _network: Runtime,
    random: Random,
    locks: LockKind,
    lease: Duration,
}

/// State of the fault injector.
pub struct Injector<'a> {
    masters: &'a mut Masters,
    pub stage: &'a Stage,
    random: &'a mut Random,
    /// The times at which masters were restarted empty while a client kept a hold.
    restarts: Vec<At>,
}

pub struct Outcome {
    pub record: Record,
    counts: Counts,
    /// Number of holds by kind of client.
    acquired: BTreeMap<String, usize>,
    faults: BTreeMap<String, usize>,
    /// Number of times that masters restarted empty while a client relied on a hold.
    restarts_under_holds: usize,
    /// Numbers of pieces of traffic that the proxies have delayed and lost. A piece is the result of one
    /// read.
    pieces: (usize, usize),
}

impl Run {
    pub fn prepare(kind: &ServerKind, locks: LockKind, grace: u64, lease: Duration) -> Run {
        let mut random = Random::fresh();
        let network = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let masters = Masters::start(kind, grace, network.handle(), &mut random);
        let store = Server::start(kind);
        Run { masters, store, _network: network, random, locks, lease }
    }

    /// Runs the clients while `inject` runs.
    pub fn during(&mut self, inject: impl FnOnce(&mut Injector<'_>)) -> Outcome {
        let programs =
            if matches!(self.locks, LockKind::Dlock) { foreign_clients::programs() } else { Vec::new() };
        let stage = Stage::new(Store::new(&self.store), kinds(CONTENDERS, &programs));
        let urls = self.masters.urls();
        let contest = Contest { rust: CONTENDERS, programs, urls, locks: self.locks, lease: self.lease };
        let (masters, random) = (&mut self.masters, &mut self.random);
        let randoms = (0..CONTENDERS).map(|_| random.branch()).collect();
        let (holds, restarts) = contest.during(&stage, randoms, || {
            let mut injector = Injector { masters, stage: &stage, random, restarts: Vec::new() };
            inject(&mut injector);
            injector.restarts
        });
        let relied_on = |time: At| {
            let grants = holds.iter().filter_map(|hold| hold.grant);
            grants.into_iter().any(|grant| grant.at < time && time < grant.until)
        };
        let restarts_under_holds = restarts.into_iter().filter(|time| relied_on(*time)).count();
        let Stage { store, counts, acquired: counts_by_client, .. } = stage;
        let mut acquired = BTreeMap::new();
        for (kind, count) in counts_by_client {
            *acquired.entry(kind).or_default() += count.into_inner();
        }
        let record = Record { holds, writes: store.into_log() };
        let (faults, pieces) = (self.masters.faults.clone(), self.masters.pieces());
        Outcome { record, counts, acquired, faults, restarts_under_holds, pieces }
    }
}

/// Returns the kinds of the clients of a contest.
pub fn kinds(rust: usize, programs: &[String]) -> impl Iterator<Item = String> {
    let rust = (0..rust).map(|_| "Rust".to_string());
    rust.chain(programs.iter().map(|program| foreign_clients::kind(program)))
}

/// The clients that lock during a run.
pub struct Contest {
    /// Number of Rust clients.
    pub rust: usize,
    /// Programs of the other clients.
    pub programs: Vec<String>,
    pub urls: Vec<String>,
    pub locks: LockKind,
    pub lease: Duration,
}

impl Contest {
    /// Runs the clients while `act` runs. Returns their holds and what `act` returns. `randoms` has a
    /// generator for each Rust client.
    pub fn during<T>(&self, stage: &Stage, randoms: Vec<Random>, act: impl FnOnce() -> T) -> (Vec<Hold>, T) {
        let Contest { rust, programs, urls, locks, lease } = self;
        thread::scope(|scope| {
            // Ends the clients after a panic too, or the test would hang.
            let end = SetAtTheEnd(&stage.ended);
            let contenders: Vec<_> = (randoms.into_iter().enumerate())
                .map(|(number, random)| {
                    scope.spawn(move || contend(number, stage, urls, *locks, *lease, random))
                })
                .collect();
            // `inputs` ends the foreign clients when it is dropped, after a panic too.
            let (foreign, inputs): (Vec<_>, Vec<_>) = (programs.iter().enumerate())
                .map(|(place, program)| ForeignClient::start(rust + place, program, urls, *lease, None))
                .unzip();
            let foreign: Vec<_> =
                foreign.into_iter().map(|client| scope.spawn(move || client.follow(stage))).collect();
            let result = act();
            drop((end, inputs));
            let clients = contenders.into_iter().chain(foreign);
            (clients.flat_map(|client| client.join().expect("no panic")).collect(), result)
        })
    }
}

fn contend(
    number: usize,
    stage: &Stage,
    urls: &[String],
    locks: LockKind,
    lease: Duration,
    random: Random,
) -> Vec<Hold> {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let locks = match locks {
            LockKind::Dlock => Locks::dlock(urls, lease, true).await,
            LockKind::Unfenced => Locks::dlock(urls, lease, false).await,
            LockKind::Redlock => Locks::redlock(urls, lease),
            LockKind::SetNx => Locks::set_nx(&urls[0], lease),
        };
        Contender { number, stage, locks, random, holds: Vec::new() }.work().await
    })
}

impl Injector<'_> {
    /// Injects faults, each kind equally often.
    pub fn inject(&mut self, rounds: usize) {
        // Each round takes a random entry. `None` restarts three to five masters.
        let mut deck = Vec::new();
        for _ in 0..rounds {
            if deck.is_empty() {
                deck = Fault::ALL.into_iter().map(Some).chain([None]).collect();
            }
            match deck.swap_remove(self.random.below(deck.len())) {
                Some(fault) => self.round(fault),
                None => {
                    let count = 3 + self.random.below(3);
                    self.restart_under_a_hold(count);
                    self.masters.wait_out_grace();
                }
            }
        }
    }

    /// Injects a fault in one of the five masters, or faults in two of them. Heals the masters once every
    /// client has acquired a lock.
    fn round(&mut self, fault: Fault) {
        let place = self.random.below(5);
        let mut injected = vec![(place, fault)];
        if self.random.once_in(2) {
            injected.push(((place + 1 + self.random.below(4)) % 5, *self.random.of(&Fault::ALL)));
        }
        let before = self.masters.pieces();
        for (place, fault) in &injected {
            self.masters.inject(*place, *fault, self.random);
        }
        self.stage.until_all_acquire(&format!("{injected:?}"));
        let is_injected = |fault| injected.iter().any(|(_, other)| *other == fault);
        until_within(TIMEOUT, "the injected faults Slow and Lossy have affected messages", || {
            let now = self.masters.pieces();
            let has_delayed = now.0 > before.0 || !is_injected(Fault::Slow);
            has_delayed && (now.1 > before.1 || !is_injected(Fault::Lossy))
        });
        for (place, fault) in injected {
            self.masters.heal(place, fault);
        }
        self.masters.wait_out_grace();
    }

    /// Kills masters while a client keeps a hold, and restarts them empty. Returns when another client has
    /// acquired a lock.
    pub fn restart_under_a_hold(&mut self, count: usize) {
        self.stage.keep_holds.store(true, Relaxed);
        let held = || self.stage.keeping.load(Relaxed) > 0;
        until_within(TIMEOUT, "a client keeps a hold", held);
        self.restarts.push(at(now()));
        self.masters.restart_empty(count, self.random);
        self.stage.until_more_are_granted(1);
        self.stage.keep_holds.store(false, Relaxed);
    }

    /// Continues a short run until the store has refused a stale write, and a client has dropped an
    /// acquisition in progress.
    pub fn until_write_refused_and_acquisition_dropped(&self) {
        let Counts { refused, dropped, .. } = &self.stage.counts;
        until_within(TIMEOUT, "a stale write was refused, and an acquisition dropped", || {
            refused.load(Relaxed) > 0 && dropped.load(Relaxed) > 0
        });
    }
}

impl Outcome {
    pub fn show(&self, server: &str, rounds: usize, violations: usize) {
        let Outcome { record, counts, acquired, faults, restarts_under_holds, pieces } = self;
        println!(
            "{server}: {rounds} rounds, {} acquisitions, {} writes",
            record.holds.len(),
            record.writes.len()
        );
        println!("  held by clients of each kind: {acquired:?}");
        println!("  faults: {faults:?}, restarts under a hold: {restarts_under_holds}");
        println!("  pieces late: {}, lost: {}", pieces.0, pieces.1);
        println!("  clients: {counts:?}");
        println!("  violations: {violations}");
    }

    /// Asserts that every kind of event happened, because an uneventful run proves nothing.
    pub fn assert_all_faults_took_effect(&self) {
        for fault in Fault::ALL {
            assert!(self.faults.contains_key(&format!("{fault:?}")), "{fault:?} was never injected");
        }
        assert!(self.restarts_under_holds > 0, "no masters restarted while a client relied on a hold");
        assert!(self.pieces.0 > 0 && self.pieces.1 > 0, "the proxies delayed no piece or lost none");
    }
}
