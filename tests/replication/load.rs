//! Random clients of a group of servers with one master, and checks of their records.

use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use dlock_testkit::history::History;
use dlock_testkit::workers::{Clock, Plan, Worker, during, report_all};
use dlock_testkit::{Random, Server, Value, locks, until};

pub struct Load {
    clock: Clock,
    plan: Plan,
    random: Random,
    /// Records of finished clients.
    history: History,
    /// Extensions that a server refused although the client still relied on the hold.
    denied: Vec<String>,
    /// Number of calls of [`Load::during`]: part of the clients' names, which must be unique.
    generation: usize,
}

impl Load {
    /// A load with short and long leases, waits, and clients that disconnect at random.
    pub fn new(random: &mut Random) -> Load {
        Load::with(random, Plan::new(&[20, 100, 600_000, 600_000, 600_000]))
    }

    /// A load with the leases of this plan.
    pub fn with(random: &mut Random, plan: Plan) -> Load {
        // Five keys for each key of the plan. There are many more keys than clients, so many locks are held
        // at the end.
        let keys =
            plan.keys.iter().flat_map(|(key, modes)| (0..5).map(move |n| (format!("{key}.{n}"), *modes)));
        let plan = Plan {
            keys: keys.collect(),
            options: vec!["", "", "EPHEMERAL", "DEPTH 2"],
            waits: vec!["", "BLOCK 50"],
            hang_up_once_in: 50,
            ..plan
        };
        Load {
            clock: Clock::start(),
            plan,
            random: random.branch(),
            history: History::default(),
            denied: Vec::new(),
            generation: 0,
        }
    }

    /// Replaces the wait options of the plan.
    pub fn with_waits(mut self, waits: Vec<&'static str>) -> Load {
        self.plan.waits = waits;
        self
    }

    /// Runs new clients during `run`, which gets the counter of their grants. The clients end when `run`
    /// returns; their holds stay.
    pub fn during<R>(&mut self, port: impl Fn() -> u16 + Sync, run: impl FnOnce(&AtomicUsize) -> R) -> R {
        self.generation += 1;
        let name = |n| format!("client{}.{n}", self.generation);
        let Load { clock, plan, random, .. } = self;
        let mut workers: Vec<Worker<'_>> =
            (0..6).map(|n| Worker::new(name(n), plan, *clock, random.branch())).collect();
        let result = during(&mut workers, port, run);
        for worker in workers {
            self.denied.extend(worker.denied);
            self.history.holds.extend(worker.holds);
        }
        result
    }

    /// Like [`Load::during`], on `master` at first. `run` gets the clients' port, which it may change.
    pub fn during_switch<R>(
        &mut self,
        master: &Server,
        run: impl FnOnce(&AtomicUsize, &AtomicU16) -> R,
    ) -> R {
        let port = AtomicU16::new(master.port());
        self.during(|| port.load(Ordering::Relaxed), |granted| run(granted, &port))
    }

    /// Waits until all short leases have ended on `master`. From then on its locks do not change.
    #[track_caller]
    pub fn drain(&self, master: &Server) {
        let mut conn = master.connect();
        // The short leases of all plans are at most 300 ms. The lease of `mark` is longer and begins after
        // them, so it ends last.
        until("a new lock is granted", || !matches!(conn.say("DLOCK.ACQUIRE mark t 301"), Value::Error(_)));
        until("the short leases have expired", || conn.ok("EXISTS mark") == 0);
    }

    /// Asserts that the history breaks no promise.
    #[track_caller]
    pub fn assert_sound(&self) {
        let grants = self.history.holds.iter().filter(|hold| hold.grant.is_some()).count();
        assert!(grants > 50, "the clients got only {grants} grants");
        let faults = [self.history.exclusion(), self.history.fences(), self.history.wrong_holders()].concat();
        assert!(faults.is_empty(), "{faults:#?}");
    }

    /// Like [`Load::assert_sound`], and asserts that `master` has each acknowledged hold and no released one.
    #[track_caller]
    pub fn assert_kept(&mut self, master: &Server) {
        self.history.reports.extend(report_all(&mut master.connect(), &self.plan, self.clock));
        self.assert_sound();
        let faults = [self.history.lost(), self.history.reappeared(), self.denied.clone()].concat();
        assert!(faults.is_empty(), "{faults:#?}");
    }

    /// Discards the records of all clients so far. Called after a check of these records.
    #[track_caller]
    pub fn forget(&mut self) {
        self.history = History::default();
        self.denied.clear();
    }
}

/// Asserts that both servers hold the same locks.
#[track_caller]
pub fn assert_equal(master: &Server, replica: &Server) {
    // `locks` also shows each server's last fence, which a start raises, so the two may differ. The fence of
    // this grant is greater than both, and is replicated.
    assert!(master.connect().ok("DLOCK.ACQUIRE compared t 600000").int() > 0);
    replica.wait_in_sync(master);
    let (on_master, on_replica) = (locks(master), locks(replica));
    assert!(on_master.len() > 6, "too few locks are held: {on_master:?}");
    assert_eq!(on_replica, on_master);
}
