//! The one value of this process that everything is handed: what the module knows besides what the keys hold.
//! All of it is rebuilt at load, or let go.

use std::cell::RefCell;
use std::thread;

use dlock_core::background::Background;
use dlock_core::codec::{Known, Origin};
use dlock_core::grace::{Evictions, Grace};
use dlock_core::log::Log;
use dlock_core::tasks::Task;
use dlock_core::{Departed, Fences, Instant, Name, Step, Terms, WaiterId, Waiting};
use dlock_protocol::error::Error;

use crate::config::Config;
use crate::ffi::{Ctx, notices::Timer};
use crate::stats::Stats;
use crate::value::Value;

mod connections;
mod followers;
mod mark;
mod warnings;

pub use connections::Connections;
pub use followers::{Followers, Place};
pub use mark::{Mark, Outcome};
pub use warnings::Warnings;

pub struct Module {
    /// A context that outlives the calls of the server.
    ctx: Ctx<'static>,
    state: RefCell<State>,
}

impl Module {
    pub fn new(ctx: Ctx<'_>) -> Module {
        Module { ctx: ctx.detached(), state: RefCell::default() }
    }

    /// For what comes when there is no other context.
    pub fn ctx(&self) -> Ctx<'static> {
        self.ctx
    }

    /// The state, for a moment. Nothing in here can call the server, which may come back into the module and
    /// would find it taken: whatever leads there (a context, an open key, the module itself) is not `Send`,
    /// and so cannot be named in the closure.
    #[inline]
    pub fn with<R>(&self, run: impl FnOnce(&mut State) -> R + Send) -> R {
        run(&mut self.state.borrow_mut())
    }
}

/// A load that runs.
#[derive(Clone, Copy)]
pub struct Loading {
    /// Where the bytes come from.
    pub origin: Origin,
    pub began: Instant,
}

#[derive(Default)]
pub struct State {
    pub config: Config,
    pub fences: Fences,
    pub mark: Mark,
    pub grace: Grace,
    pub evictions: Evictions,
    /// What has been warned of.
    pub warnings: Warnings,
    pub waiting: Waiting,
    /// The connections of those who wait.
    pub connections: Connections,
    /// Why every wait has to end here: this server has become a replica, or its cluster is down. The
    /// background job ends them and clears it.
    pub waits_end: Option<Error>,
    /// The queue whose key was opened last to end a native TTL that has passed.
    pub opened: WaiterId,
    pub background: Background,
    /// The armed timer, and the millisecond it is for.
    pub timer: Option<(Timer, u64)>,
    pub loading: Option<Loading>,
    pub followers: Followers,
    /// What is known by the log that is read here.
    pub read: Option<Known>,
    /// While a file is loaded, of the master's log before.
    pub read_before: Option<Known>,
    pub stats: Stats,
    /// What went wrong lately.
    pub log: Log,
    /// A guarded command runs.
    pub guarding: bool,
    /// For the bytes of effects, so that they are not allocated anew each time.
    pub buffer: Vec<u8>,
    /// What the key held that was deleted last, for the next one: as `buffer`.
    pub spare: Option<Box<Value>>,
}

impl State {
    /// On which terms this server grants now.
    pub fn terms(&self) -> Terms {
        Terms {
            grants_from: self.grace.grants_from(),
            longest_lease: self.config.bounds.longest_lease(),
            most_holders: self.config.max_holders,
            most_served: Departed::SLICE,
        }
    }

    /// The ms until new grants are made, rounded up.
    pub fn grace_left(&self, now: Instant) -> u64 {
        let ends = self.grace.grants_from();
        ends.micros().saturating_sub(now.micros()).div_ceil(1000)
    }

    /// Counts what happened, and keeps the books of the connections that holds are bound to.
    pub fn account(&mut self, name: &Name<'_>, step: &mut Step) {
        self.stats.count(&step.events);
        if let Some(rest) = &mut step.rest {
            self.background.account(name, rest);
        }
    }

    /// Puts a lock into the schedule by what it holds. `true` where it is due before the armed timer.
    pub fn schedule(&mut self, value: &mut Value, db: i32, key: &[u8]) -> bool {
        let armed = self.timer.map_or(u64::MAX, |(_, for_ms)| for_ms);
        self.background.schedule(&mut value.lock, db, key, armed)
    }

    /// Keeps what a deleted key held, unless there is one already.
    pub fn keep(&mut self, spare: Option<Box<Value>>) {
        if self.spare.is_none() {
            self.spare = spare;
        }
    }

    pub fn next_task(&mut self, now: Instant) -> Option<Task> {
        self.background.next_task(&mut self.waiting, &mut self.grace, now)
    }

    /// The millisecond at which there will be something to do in the background; None for never.
    pub fn next_due(&self) -> Option<u64> {
        self.background.next_due(&self.waiting, &self.grace)
    }

    /// The wait queues of a database, or of all, may have to be served.
    pub fn serve(&mut self, db: Option<i32>) {
        self.background.note(Task::ServeBehind(WaiterId(0), db));
    }
}

/// Frees what takes a while on a thread of its own, or on the spot where none can be started.
pub fn free_elsewhere(much: impl Send + 'static) {
    let _ = thread::Builder::new().name("dlock-free".into()).spawn(move || drop(much));
}
