//! Everything the module knows besides what the keys hold: rebuilt at load, or let go.

use std::collections::HashMap;

use dlock_core::codec::Origin;
use dlock_core::{ClientId, Deadline, Fences, Instant, Name, Token, WaiterId, Waiting, give_back};

use crate::config::Config;
use crate::deliveries::Deliveries;
use crate::ffi::{Handle, MainThread, notices::Timer};
use crate::grace::Grace;
use crate::info::Stats;
use crate::mark::Mark;
use crate::pending::{self, Bindings, Pending};
use crate::scheduled::Scheduled;
use crate::value::Value;

pub use crate::pending::Task;

pub struct State {
    pub config: Config,
    pub fences: Fences,
    pub mark: Mark,
    pub grace: Grace,
    pub waiting: Waiting,
    /// The locks of each database by when they are due.
    pub dbs: Vec<Scheduled>,
    /// The connections of those who wait.
    pub blocked: HashMap<WaiterId, Handle>,
    pub by_handle: HashMap<Handle, WaiterId>,
    /// What ends with a connection.
    pub ephemerals: HashMap<ClientId, Bindings>,
    /// Grants that are on their way to those who waited.
    pub deliveries: Deliveries,
    /// What the background job has to look at.
    pub pending: Pending,
    /// Whose turn it is in the background: see [`State::next_task`].
    turn: usize,
    /// The armed timer, and the millisecond it is for.
    pub timer: Option<(Timer, u64)>,
    /// Where bytes that come in now come from; None outside of loading.
    pub loading: Option<Origin>,
    /// Whether anybody may follow what is replicated: see [`crate::followers`].
    pub followed: bool,
    /// Whether this is the only module, so that no other listens; None while that is not known.
    pub alone: Option<bool>,
    pub stats: Stats,
    /// For the bytes of effects, so that they are not allocated anew each time.
    pub buffer: Vec<u8>,
    /// What the key held that was deleted last, for the next one: as `buffer`.
    pub spare: Option<Box<Value>>,
}

static STATE: MainThread<State> = MainThread::empty();

/// Sets up the empty state; the config is the defaults.
pub fn start(config: Config) {
    STATE.set(State {
        config,
        fences: Fences::default(),
        mark: Mark::new(),
        grace: Grace::new(),
        waiting: Waiting::default(),
        dbs: Vec::new(),
        blocked: HashMap::new(),
        by_handle: HashMap::new(),
        ephemerals: HashMap::new(),
        deliveries: Deliveries::default(),
        pending: Pending::default(),
        turn: 0,
        timer: None,
        loading: None,
        followed: true,
        alone: None,
        stats: Stats::default(),
        buffer: Vec::new(),
        spare: None,
    });
}

/// The module does not load after all; the server takes it out again.
pub fn end() {
    STATE.unset();
}

/// The state, for a moment. The closure must not call the server, which may call back.
#[inline]
pub fn with<R>(run: impl FnOnce(&mut State) -> R) -> R {
    STATE.with(run)
}

impl State {
    pub fn db(&mut self, db: i32) -> &mut Scheduled {
        let at = usize::try_from(db).unwrap_or(0);
        if at >= self.dbs.len() {
            self.dbs.resize_with(at + 1, Scheduled::default);
        }
        &mut self.dbs[at]
    }

    /// The greatest fence that is accepted from outside.
    pub fn fence_bound(&self, now: Instant) -> u64 {
        now.micros() + self.config.skew_bound() * 1000
    }

    /// The connection of a waiter, which is answered now or gone.
    pub fn unblock(&mut self, id: WaiterId) -> Option<Handle> {
        let handle = self.blocked.remove(&id)?;
        self.by_handle.remove(&handle);
        give_back(&mut self.blocked);
        give_back(&mut self.by_handle);
        Some(handle)
    }

    pub fn bind(&mut self, client: ClientId, name: &Name<'_>, token: Token) {
        self.ephemerals.entry(client).or_default().insert((name.to_owned(), token));
    }

    pub fn unbind(&mut self, client: ClientId, name: &Name<'_>, token: &Token) {
        if let Some(holds) = self.ephemerals.get_mut(&client) {
            holds.remove(&(name.to_owned(), token.clone()));
            if holds.is_empty() {
                self.ephemerals.remove(&client);
                give_back(&mut self.ephemerals);
            }
        }
    }

    /// About how many bytes it takes that a hold is bound to a connection, which mostly binds this one alone: an entry
    /// in a table that is half full at times, a leaf of a tree with room for eleven, and the name once more.
    pub fn binding_size(key: usize) -> usize {
        2 * size_of::<(ClientId, Bindings)>() + 11 * size_of::<(Name<'static>, Token)>() + key
    }

    /// The next thing to do in the background at `now`, if any. What was noted, waits that are over and leases that are
    /// over take turns, so that however many there are of one, the others come as well.
    pub fn next_task(&mut self, now: Instant) -> Option<Task> {
        const KINDS: [fn(&mut State, Instant) -> Option<Task>; 3] =
            [|s, now| s.pending.next(now.millis()), State::next_timed_out, State::next_lease];
        if self.grace.is_over(now) {
            return Some(Task::GraceOver);
        }
        KINDS.iter().find_map(|_| {
            self.turn = (self.turn + 1) % KINDS.len();
            KINDS[self.turn](self, now)
        })
    }

    fn next_timed_out(&mut self, now: Instant) -> Option<Task> {
        let id = self.waiting.timed_out(now)?;
        self.waiting.get(id).map(|waiter| Task::TimedOut(waiter.name.clone(), id))
    }

    fn next_lease(&mut self, now: Instant) -> Option<Task> {
        // The earliest of all databases: many that are due in one may not hold up another's.
        let firsts = self.dbs.iter().enumerate().filter_map(|(db, shelf)| Some((db, shelf.first()?)));
        let (db, (_, slot)) =
            firsts.min_by_key(|(_, (due, _))| *due).filter(|(_, (due, _))| due.passed(now))?;
        let key = self.dbs[db].key(slot)?;
        Some(Task::Due(Name::new(db as i32, key).to_owned(), slot))
    }

    /// A task that cannot be carried out yet is the next one again. What is found by its time is found again.
    pub fn put_back(&mut self, task: Task) {
        if !matches!(task, Task::TimedOut(..) | Task::Due(..)) {
            self.pending.put_back(task);
        }
    }

    /// Looks at this again at `at`, which is no earlier than for what was put off before.
    pub fn put_off(&mut self, task: Task, at: Deadline) {
        match task {
            // What is due stands where it is found by its time.
            Task::Due(name, slot) => self.db(name.db).put_off(slot, at),
            // The other resources of the connection need not wait.
            Task::Disconnected(client, mut holds) => {
                let elsewhere = pending::split_off_other_resources(&mut holds);
                self.pending.put_off(Task::Disconnected(client, holds), at.millis());
                if !elsewhere.is_empty() {
                    self.pending.push_back(Task::Disconnected(client, elsewhere));
                }
            }
            task => self.pending.put_off(task, at.millis()),
        }
    }

    /// This server is a master no more: what it had to do as one is its new master's business. Answers which holds
    /// were bound to a connection.
    pub fn demoted(&mut self) -> Vec<(Name<'static>, Token)> {
        self.deliveries = Deliveries::default();
        let closed = std::mem::take(&mut self.pending).into_tasks().filter_map(|task| match task {
            Task::Disconnected(_, holds) => Some(holds),
            _ => None,
        });
        let closed = closed.flatten();
        closed.chain(std::mem::take(&mut self.ephemerals).into_values().flatten()).collect()
    }

    /// The millisecond at which there will be something to do in the background; None for never.
    pub fn next_due(&self) -> Option<u64> {
        let locks = self.dbs.iter().filter_map(|db| db.first()).map(|(due, _)| due);
        let first = locks.chain(self.waiting.next_timeout()).min().map(|due| due.millis());
        first.into_iter().chain(self.pending.due()).chain(self.grace.due()).min()
    }
}
