//! The one [`Module`] value of this process, and its [`State`]: all data of the module other than the keys.
//! After a restart, the state is rebuilt from the keys as far as possible.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::thread;

use dlock_core::background::Background;
use dlock_core::codec::Origin;
use dlock_core::grace::{Evictions, Grace};
use dlock_core::log::Log;
use dlock_core::mark::{Done, Marking};
use dlock_core::plain::LogState;
use dlock_core::tasks::Task;
use dlock_core::{
    Bytes, EndedHolds, Fences, Grants, Instant, Lock, Name, Step, Terms, WaiterId, Waiting, shrink_if_sparse,
};
use dlock_protocol::error::Error;

use crate::clock;
use crate::config::Config;
use crate::ffi::notices::{self, Timer};
use crate::ffi::{self, Ctx, EventFlags, Handle};
use crate::followers::Followers;
use crate::stats::Stats;

/// An open key of the module. Its value is a lock.
pub type Key<'a> = ffi::Key<'a, Lock>;

/// A larger `Lock` would take at least 80 bytes, the next size class of jemalloc.
const _: () = assert!(size_of::<Lock>() == 64);

pub struct Module {
    /// The module's own context. A context that the server passes is valid only during that call.
    ctx: Ctx<'static>,
    state: RefCell<State>,
}

impl Module {
    pub fn new(ctx: Ctx<'_>) -> Module {
        Module { ctx: ctx.detached(), state: RefCell::default() }
    }

    /// Returns the context to use where the server passes none.
    pub fn ctx(&self) -> Ctx<'static> {
        self.ctx
    }

    /// Borrows the state while `run` executes.
    ///
    /// `run` must not call the server, which may call the module back while the state is borrowed. The
    /// compiler enforces this rule. `run` must be `Send`, but a context, an open key and the module itself
    /// are not. So `run` cannot refer to any of them.
    #[inline]
    pub fn with<R>(&self, run: impl FnOnce(&mut State) -> R + Send) -> R {
        run(&mut self.state.borrow_mut())
    }

    /// Returns whether anything may receive the events of locks: another module, which gets all events, or a
    /// subscriber, if `notify-keyspace-events` contains module events.
    pub fn has_listeners(&self) -> bool {
        self.with(|s| s.followers.other_modules_may_listen())
            || self.ctx.event_flags().contains(EventFlags::MODULE)
    }
}

/// Longest time that the timer is armed for, in ms. Redis 7.0 computes the time of a module's next timer, in
/// us, as an int: above 35 minutes it would be in the past, and the server would never sleep.
const MAX_TIMER_MILLIS: u64 = 30 * 60 * 1000;
const _: () = assert!(MAX_TIMER_MILLIS * 1000 <= i32::MAX as u64);

/// The one timer, armed for the next task of the background job. It follows the wall clock, which can be set,
/// so the timer only starts the job. The job finds the tasks that are due by the server clock
/// ([`crate::clock`]), which ignores changes of the wall clock.
impl Module {
    /// Arms the timer for the next task, unless it is armed for then or sooner.
    #[inline(never)]
    pub fn rearm_timer(&self) {
        let now = clock::now().millis();
        let Some(due) = self.with(|s| s.next_due()) else { return };
        self.arm_timer_in(due.saturating_sub(now).min(MAX_TIMER_MILLIS), now);
    }

    /// Arms the timer to fire in `ms`, unless it is armed for then or sooner. `now` is in ms of the server
    /// clock.
    pub fn arm_timer_in(&self, ms: u64, now: u64) {
        if let Some((later_timer, due)) = self.with(|s| s.timer) {
            if due <= now + ms {
                return;
            }
            notices::disarm(self.ctx, later_timer);
        }
        let timer = notices::arm::<Module>(self.ctx, ms);
        self.with(|s| s.timer = Some((timer, now + ms)));
    }

    /// Notes that the timer has fired.
    pub fn timer_fired(&self) {
        self.with(|s| s.timer = None);
    }

    /// Disarms the timer if it is more than 2 ms overdue, as it is after the wall clock was set back. Returns
    /// whether it was.
    pub fn disarm_overdue_timer(&self) -> bool {
        let now = clock::now().millis();
        let Some((timer, _)) = self.with(|s| s.timer).filter(|(_, due)| due + 2 < now) else {
            return false;
        };
        notices::disarm(self.ctx, timer);
        self.timer_fired();
        true
    }
}

#[derive(Default)]
pub struct State {
    pub config: Config,
    pub fences: Fences,
    pub mark: Mark,
    pub grace: Grace,
    pub evictions: Evictions,
    /// The warnings that apply at present.
    pub warnings: Warnings,
    pub waiting: Waiting,
    /// The connections of the waiters.
    pub connections: Connections,
    /// Set while every waiter has to be refused, with the error: this server has become a replica, or its
    /// cluster is down. The background job refuses the waiters, then clears the field.
    pub refusal_of_all: Option<Error>,
    /// [`crate::effects::open_queued_keys`] continues with the queue that began after this one. The id is
    /// that of the waiter with which this queue began.
    pub last_opened_queue: WaiterId,
    pub background: Background,
    pub messages: Messages,
    /// The armed timer, and the millisecond of the server clock at which it is due.
    pub timer: Option<(Timer, u64)>,
    /// Set while a file or a snapshot is loaded.
    pub loading: Option<Loading>,
    pub followers: Followers,
    /// Position in the replication log that this server reads: its master's stream, or the append only file.
    pub replication_position: Option<LogState>,
    /// Position in the master's stream before the load of a file began. Restored when the load ends.
    pub position_before_load: Option<LogState>,
    pub stats: Stats,
    /// The incidents that DLOCK.LOG shows.
    pub log: Log,
    /// True while GUARD or FENCED runs its command.
    pub guarding: bool,
    /// Buffer for the bytes of an effect (a change of a lock, as replicas and files get it). Reused, which
    /// saves an allocation for each effect.
    pub buffer: Vec<u8>,
    /// The lock of the last deleted key. Reused for the next new key.
    spare: Option<Box<Lock>>,
}

impl State {
    /// Returns the limits that apply to new grants at present.
    pub fn terms(&self) -> Terms {
        Terms {
            grants: Grants::From(self.grace.grants_from()),
            longest_lease: self.config.bounds.longest_lease(),
            max_holders: self.config.max_holders,
            max_grants_per_turn: EndedHolds::SLICE,
        }
    }

    /// Returns the ms until new grants are made, rounded up; 0 outside of a grace period.
    pub fn grace_left(&self, now: Instant) -> u64 {
        self.grace.grants_from().micros().saturating_sub(now.micros()).div_ceil(1000)
    }

    /// Counts the events of a step, and passes its rare effects to the background job: among others, which
    /// holds are bound to which connection.
    pub fn account(&mut self, name: &Name<'_>, step: &mut Step) {
        self.stats.count(&step.events);
        if let Some(rare) = &mut step.rare_effects {
            self.background.account(name, rare);
        }
    }

    /// Schedules a lock by its next deadline, or removes it from the schedule. Returns whether it is due
    /// before the armed timer.
    pub fn schedule(&mut self, lock: &mut Lock, db: i32, key: &[u8]) -> bool {
        let armed = self.timer.map_or(u64::MAX, |(_, due)| due);
        self.background.schedule(lock, db, key, armed)
    }

    /// Returns a lock for a new key.
    pub fn new_lock(&mut self) -> Box<Lock> {
        match self.spare.take() {
            Some(mut spare) => {
                *spare = Lock::default();
                spare
            }
            None => Box::default(),
        }
    }

    /// Keeps the lock of a deleted key for [`State::new_lock`], unless one is kept already.
    pub fn keep_spare(&mut self, spare: Option<Box<Lock>>) {
        if self.spare.is_none() {
            self.spare = spare;
        }
    }

    pub fn next_task(&mut self, now: Instant) -> Option<Task> {
        self.background.next_task(&mut self.waiting, &mut self.grace, now)
    }

    /// Returns the millisecond at which the background job has its next task. `None` means that it has none.
    pub fn next_due(&self) -> Option<u64> {
        self.background.next_due(&self.waiting, &self.grace)
    }

    /// Gives the background job the task to serve the wait queues of a database. `None` means all databases.
    pub fn serve(&mut self, db: Option<i32>) {
        // Queues are in the order of the waiters that began them. No waiter has the id 0, so the task covers
        // all.
        self.background.add_task(Task::ServeQueues(WaiterId(0), db));
    }
}

/// Drops a large value on a thread of its own, or at once if no thread can be started.
pub fn free_in_background(value: impl Send + 'static) {
    let _ = thread::Builder::new().name("dlock-free".into()).spawn(move || drop(value));
}

/// The messages to the channels of queue positions (NOTIFY).
#[derive(Default)]
pub struct Messages {
    /// The messages of this turn of the event loop, in the order of the grants.
    pub unsent: Vec<Message>,
    /// Whether the notice [`Notice::TurnEnds`](crate::ffi::Notice) of this turn has been handled.
    pub turn_is_ending: bool,
}

/// A message to publish.
pub struct Message {
    pub channel: Bytes,
    pub is_sharded: bool,
    pub text: Vec<u8>,
}

/// A load in progress.
#[derive(Clone, Copy)]
pub struct Loading {
    pub origin: Origin,
    pub began: Instant,
}

/// Maps each blocked waiter to its connection, and each connection to its waiter.
#[derive(Default)]
pub struct Connections {
    by_waiter: HashMap<WaiterId, Handle>,
    waiters: HashMap<Handle, WaiterId>,
}

impl Connections {
    pub fn block(&mut self, waiter: WaiterId, handle: Handle) {
        self.by_waiter.insert(waiter, handle);
        self.waiters.insert(handle, waiter);
    }

    pub fn waiter(&self, handle: Handle) -> Option<WaiterId> {
        self.waiters.get(&handle).copied()
    }

    /// Removes the connection of a waiter that is answered or gone.
    pub fn unblock(&mut self, waiter: WaiterId) -> Option<Handle> {
        let handle = self.by_waiter.remove(&waiter)?;
        self.waiters.remove(&handle);
        shrink_if_sparse(&mut self.by_waiter);
        shrink_if_sparse(&mut self.waiters);
        Some(handle)
    }
}

/// The fence mark as the event loop sees it: its file, and the thread that writes it.
#[derive(Default)]
pub struct Mark {
    pub marking: Marking,
    pub file: PathBuf,
    /// Receives the outcome of the write in progress. `None` means that none is in progress.
    pub thread: Option<Receiver<Outcome>>,
}

/// Outcome of one write of the fence mark.
pub type Outcome = Result<Done, String>;

bitflags::bitflags! {
    /// Warnings to the operator: see [`crate::info`].
    #[derive(Clone, Copy, Default, PartialEq, Eq)]
    pub struct Warnings: u8 {
        const EVICTION = 1;
        const EVENTS = 2;
        const GRACE = 4;
        const MARK = 8;
    }
}

impl Warnings {
    pub fn count(self) -> u64 {
        self.bits().count_ones().into()
    }

    /// Returns the names of the options to check, separated by commas.
    pub fn words(self) -> String {
        let word = |warning| match warning {
            Warnings::EVICTION => "maxmemory-policy",
            Warnings::EVENTS => "notify-keyspace-events",
            Warnings::GRACE => "restart-grace",
            _ => "fence-mark",
        };
        self.iter().map(word).collect::<Vec<_>>().join(",")
    }
}
