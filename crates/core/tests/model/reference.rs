//! The reference model: the contract in the simplest form, with one list of holds, one list of waiters, and
//! linear scans. It uses types of the core ([`Mode`], [`Granted`], ...), but no code that decides.

use dlock_core::{End, Granted, Mode, Reentry, Refusal, ReleaseCount};

mod commands;
mod graph;
mod other_moves;
mod queue;
mod queueing;
mod request;
mod restart;

pub use graph::{OWNERS, Owner, Party};
pub use request::Request;
pub use restart::Restart;

pub type Key = u8;
pub type Token = u8;
pub type Client = u64;

pub const KEYS: Key = 3;
pub const TOKENS: Token = 5;
pub const CLIENTS: Client = 7;
/// The maximum number of waiters with QUEUE on the server, and of all waiters on a key.
pub const MAX_WAITERS: (usize, usize) = (6, 4);
/// The maximum number of blocked connections on the server.
pub const MAX_CONNECTIONS: usize = 4;
/// The maximum number of sharers or permit holders of a key.
pub const MAX_HOLDERS: usize = 2;
pub const GREATEST_FENCE: u64 = (1 << 53) - 1;
pub const GREATEST_COUNT: u32 = i32::MAX as u32;

/// The connection that an EPHEMERAL hold is bound to. After a restart it is unknown (`Orphan`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bond {
    None,
    To(Client),
    Orphan,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    pub key: Key,
    pub token: Token,
    pub mode: Mode,
    pub fence: u64,
    /// The ms of the server clock at which the lease expires.
    pub end: u64,
    /// The ms of the grant.
    pub since: u64,
    pub ttl: u64,
    pub count: u32,
    pub bond: Bond,
    pub delay: u64,
    pub label: u8,
    pub owner: Owner,
    /// Set if the lock was granted to a waiter that is not known to have received the grant.
    pub unconfirmed: Option<UnconfirmedGrant>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnconfirmedGrant {
    pub granted: Granted,
    /// The numbers of the waiters that the grant was sent to. A waiter whose reply is lost is removed
    /// from this list.
    pub sent_to: Vec<u64>,
    /// The queued waiter that has not claimed the grant yet: its number, the end of its wait in ms, and its
    /// DELAY. The hold gets the DELAY once a command with the token of the waiter claims the grant.
    pub unclaimed: Option<(u64, u64, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiter {
    pub number: u64,
    pub request: Request,
    /// Whether the waiter is a sharer that waits for its upgrade, ahead of all others.
    pub upgrades: bool,
    /// The ms at which the wait times out.
    pub until: Option<u64>,
    pub by: WaitsBy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitsBy {
    Connection,
    /// A QUEUE position.
    Position,
    /// A connection that waits together with a QUEUE position. The position is the waiter of this number.
    BlockAndQueue(u64),
}

/// The answer to a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitOutcome {
    Granted(u64, Granted),
    TimedOut,
    Cancelled,
    /// The waiter's own token removed it: by RELEASE, or to wait in another mode.
    Left,
    Refused(Refusal),
}

/// Returns the client number under which [`Model::outcomes`] lists the outcome of a QUEUE position of this
/// token. No client of the model has such a number.
pub fn client_of_queued_wait(token: Token) -> Client {
    100 + Client::from(token)
}

/// The immediate answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Nothing,
    Fence(u64),
    Null,
    Waits,
    Queued,
    Deadlock,
    QueueFull,
    Grace,
    Refused(Refusal),
    Number(u64),
    /// CONFIRM was refused because its fence is too far ahead of the clock.
    Ahead,
}

/// A keyspace event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyEvent {
    Acquired,
    Extended,
    Ended(End),
    Downgraded,
    Freed,
}

/// A grant that is under way to a client that waited.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SentGrant {
    /// The number of the waiter.
    pub number: u64,
    pub client: Client,
    pub key: Key,
    pub token: Token,
    pub fence: u64,
    pub granted: Granted,
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    /// The server clock, in microseconds.
    pub now: u64,
    /// The end of the grace period, in microseconds.
    pub grants_from: u64,
    pub last_fence: u64,
    pub last_waiter: u64,
    /// The maximum number of waiters that an operation serves.
    pub max_grants_per_turn: usize,
    /// The number of waiters that the current operation may still serve.
    pub grants_left: usize,
    pub holds: Vec<Hold>,
    pub waiters: Vec<Waiter>,
    /// The lock-delays, each with its key and the ms at which it ends. Until then the key is not granted. A
    /// delay begins when a hold with DELAY expires or loses its connection, and by a RELEASE with DELAY.
    pub delays: Vec<(Key, u64)>,
    pub sent_grants: Vec<SentGrant>,
    /// The connection that is closing.
    pub closed: Option<Client>,
    /// Whether there has been any restart.
    pub restarted: bool,
    /// The events of the last operation.
    pub events: Vec<(Key, KeyEvent)>,
    pub outcomes: Vec<(Client, WaitOutcome)>,
    /// The holds that began with another number of permits than the hold before.
    pub limit_changes: Vec<(Key, Token)>,
    /// If the last operation was refused as a deadlock: the edges of the wait-for graph, with those of the
    /// refused wait.
    pub edges: Vec<(Party, Party)>,
    /// The situations of [`SOMETIMES`](super::check::SOMETIMES) that occurred in the last operation.
    pub marks: Vec<&'static str>,
}

impl Model {
    /// Returns the deadline `ms` from now, rounded up to a whole ms, so that it is never early.
    pub fn in_ms(&self, ms: u64) -> u64 {
        self.now.div_ceil(1000) + ms
    }

    pub fn has_passed(&self, ms: u64) -> bool {
        self.now >= ms * 1000
    }

    pub fn has_timed_out(&self, waiter: &Waiter) -> bool {
        waiter.until.is_some_and(|until| self.has_passed(until))
    }

    /// The holds of a key that have not expired.
    pub fn holds_of(&self, key: Key) -> impl Iterator<Item = &Hold> {
        self.holds.iter().filter(move |hold| hold.key == key && !self.has_passed(hold.end))
    }

    pub fn hold(&self, key: Key, token: Token) -> Option<&Hold> {
        self.holds_of(key).find(|hold| hold.token == token)
    }

    fn hold_mut(&mut self, key: Key, token: Token) -> Option<&mut Hold> {
        self.holds.iter_mut().find(|hold| hold.key == key && hold.token == token)
    }

    pub fn delayed(&self, key: Key) -> bool {
        self.delays.iter().any(|(of, until)| *of == key && !self.has_passed(*until))
    }

    pub fn in_grace(&self) -> bool {
        self.now < self.grants_from
    }

    /// The queue of a key, head first.
    pub fn queue(&self, key: Key) -> Vec<Waiter> {
        let here = |w: &&Waiter| w.request.key == key && !matches!(w.by, WaitsBy::BlockAndQueue(_));
        let of_key = self.waiters.iter().filter(here);
        let (mut first, rest): (Vec<_>, Vec<_>) = of_key.cloned().partition(|waiter| waiter.upgrades);
        first.extend(rest);
        first
    }

    fn exists(&self, key: Key) -> bool {
        self.holds.iter().any(|hold| hold.key == key) || self.delays.iter().any(|(of, _)| *of == key)
    }

    /// Runs an operation on a key: ends expired holds, serves the queue, does the work, and serves the queue
    /// again. Records an event if the key was freed.
    fn turn<T>(&mut self, key: Key, work: impl FnOnce(&mut Model) -> T) -> T {
        self.grants_left = self.max_grants_per_turn;
        let existed = self.exists(key);
        self.advance(key);
        let answer = work(self);
        self.serve(key);
        if existed && !self.exists(key) {
            self.events.push((key, KeyEvent::Freed));
        }
        answer
    }

    pub fn advance(&mut self, key: Key) {
        let now = self.now;
        self.end_holds(End::Expired, |hold| hold.key == key && hold.end * 1000 <= now);
        self.delays.retain(|(of, until)| *of != key || *until * 1000 > now);
        self.serve(key);
    }

    fn end_holds(&mut self, why: End, which: impl Fn(&Hold) -> bool) -> usize {
        let (gone, kept): (Vec<_>, Vec<_>) = self.holds.drain(..).partition(|hold| which(hold));
        self.holds = kept;
        for hold in &gone {
            self.events.push((hold.key, KeyEvent::Ended(why)));
            if why == End::Expired && hold.unconfirmed.as_ref().is_some_and(|grant| grant.unclaimed.is_some())
            {
                self.marks.push("a grant expires unclaimed");
            }
            let from = if why == End::Expired { hold.end } else { self.in_ms(0) };
            if hold.delay > 0 && matches!(why, End::Expired | End::Disconnected) {
                self.delays.push((hold.key, from + hold.delay));
            }
            self.marks.push(match why {
                End::Expired => "a lease ends",
                End::Released => "a release",
                End::Broken => "a break",
                End::Disconnected => "a holder's connection closes",
            });
        }
        gone.len()
    }

    fn grant(&mut self, request: &Request) -> Result<u64, Refusal> {
        // A fence is the time in µs, rounded down to a whole ms, but at least the last fence + 1.
        let fence = (self.now / 1000 * 1000).max(self.last_fence + 1);
        if fence > GREATEST_FENCE {
            self.marks.push("no fence is left");
            return Err(Refusal::FencesUsedUp);
        }
        self.last_fence = fence;
        let count = if let Reentry::AtLeast(n) = request.reentry { n.get() } else { 1 };
        let bond = if request.ephemeral { Bond::To(request.client) } else { Bond::None };
        let Request { key, token, mode, ttl, delay, label, owner, .. } = *request;
        if let Mode::Permits(_) = mode {
            // The key has the number of permits of the last grant.
            let others = self.holds.iter_mut().filter(|hold| hold.key == key && hold.mode != mode);
            if others.map(|hold| hold.mode = mode).count() > 0 {
                self.limit_changes.push((key, token));
                self.marks.push("a grant changes the number of permits");
            }
        }
        let (end, since) = (self.in_ms(ttl), self.now / 1000);
        self.holds.push(Hold {
            key,
            token,
            mode,
            fence,
            end,
            since,
            ttl,
            count,
            bond,
            delay,
            label,
            owner,
            unconfirmed: None,
        });
        self.events.push((key, KeyEvent::Acquired));
        Ok(fence)
    }

    /// ACQUIRE by a token that already holds the key.
    fn reacquire(&mut self, request: &Request) -> Result<u64, Refusal> {
        let end = self.in_ms(request.ttl);
        let hold = self.hold_mut(request.key, request.token).expect("a hold");
        hold.count = match request.reentry {
            Reentry::Keep => hold.count,
            Reentry::AtLeast(n) => hold.count.max(n.get()),
            Reentry::OneMore if hold.count == GREATEST_COUNT => return Err(Refusal::CountFull),
            Reentry::OneMore => hold.count + 1,
        };
        if request.ephemeral {
            hold.bond = Bond::To(request.client);
        }
        if request.delay > 0 {
            hold.delay = request.delay;
        }
        if request.label > 0 {
            hold.label = request.label;
        }
        if request.owner > 0 {
            hold.owner = request.owner;
        }
        let fence = hold.fence;
        if end > hold.end {
            (hold.end, hold.ttl) = (end, request.ttl);
            self.events.push((request.key, KeyEvent::Extended));
        }
        Ok(fence)
    }
}
