//! The moves of random runs, and the dispatch of a move to the model.

use std::num::NonZeroU32;

use dlock_core::{Mode, Reentry, ReleaseCount};
use proptest::prelude::*;
use proptest::sample::select;

use super::reference::{
    Answer, CLIENTS, Client, GREATEST_COUNT, GREATEST_FENCE, KEYS, Key, Model, Owner, Request, Restart,
    TOKENS, Token, Waiter, WaitsBy,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Move {
    /// ACQUIRE, with BLOCK for this many ms (0: no timeout).
    Acquire(Request, Option<u64>),
    /// ACQUIRE with QUEUE for the first number of ms, and with BLOCK for the second one.
    Queue(Request, u64, Option<u64>),
    /// RELEASE with a DELAY of this many ms.
    Release(Key, Token, ReleaseCount, u64),
    Extend(Key, Token, u64),
    /// CONFIRM with a fence, a ttl, and the ms by which the fence may be ahead of the clock.
    Confirm(Key, Token, u64, u64, u64),
    Break(Key),
    CancelToken(Key, Token),
    CancelClient(Key, Client),
    ClientGone(Client),
    Delete(Key),
    /// The background job ends the wait of a client, or of a QUEUE position, if it has timed out.
    TimeOut(Client),
    TimeOutToken(Key, Token),
    /// A queued token was granted the lock, but its ACL user has meanwhile lost the right to the key.
    RightsLost(Key, Token),
    /// The background job processes a key.
    RunJob(Key),
    /// The nth grant that was sent to a waiter and has not arrived yet now arrives, or is lost.
    Delivered(usize),
    Undelivered(usize),
    /// The clock advances by this many µs.
    Advance(u64),
    /// A grace period of this many ms begins.
    Grace(u64),
    Demote,
    /// The far replica (on another machine) resyncs from a snapshot. `child`: a child process writes the
    /// snapshot. Such a snapshot lacks the time and the fence that a replica needs to apply an ACQUIRE that
    /// is replicated verbatim.
    Resync {
        child: bool,
    },
    Restart(Restart),
}

impl Model {
    /// Returns whether the move is possible. A blocked client sends no command before it has its reply. A
    /// request must name the owner of its token.
    pub fn can_make(&self, step: &Move) -> bool {
        match step {
            Move::Acquire(request, _) | Move::Queue(request, ..) => {
                let is_own = |client: Client| client == request.client;
                let blocked = |w: &Waiter| w.by != WaitsBy::Position && is_own(w.request.client);
                request.owner == owner_of(request.token, self.restarted)
                    && !self.waiters.iter().any(blocked)
                    && !self.sent_grants.iter().any(|grant| is_own(grant.client))
            }
            Move::Delivered(nth) | Move::Undelivered(nth) => *nth < self.sent_grants.len(),
            _ => true,
        }
    }

    pub fn make(&mut self, step: &Move) -> Answer {
        self.events.clear();
        self.outcomes.clear();
        self.limit_changes.clear();
        self.marks.clear();
        self.edges.clear();
        match *step {
            Move::Acquire(request, block) => return self.acquire(request, block),
            Move::Queue(request, ms, block) => return self.acquire_with_queue(request, ms, block),
            Move::Release(key, token, counts, delay) => {
                return Answer::Number(self.release(key, token, counts, delay));
            }
            Move::Extend(key, token, ttl) => return Answer::Number(self.extend(key, token, ttl)),
            Move::Confirm(key, token, fence, ttl, bound) => {
                return self.confirm(key, token, fence, ttl, bound);
            }
            Move::Break(key) => return Answer::Number(self.break_all(key)),
            Move::CancelToken(key, token) => {
                return Answer::Number(self.cancel_token(key, token));
            }
            Move::CancelClient(key, client) => {
                return Answer::Number(self.cancel_client(key, client));
            }
            Move::ClientGone(client) => self.client_gone(client),
            Move::Delete(key) => self.delete(key),
            Move::TimeOut(client) => self.time_out(client),
            Move::TimeOutToken(key, token) => self.time_out_token(key, token),
            Move::RightsLost(key, token) => self.rights_lost(key, token),
            Move::RunJob(key) => self.run_job(key),
            Move::Delivered(nth) => {
                let grant = self.sent_grants.remove(nth);
                self.delivered(&grant);
            }
            Move::Undelivered(nth) => {
                let grant = self.sent_grants.remove(nth);
                self.undelivered(&grant);
            }
            Move::Advance(us) => self.now += us,
            Move::Grace(ms) => self.begin_grace(ms),
            Move::Demote => self.demote(),
            // The reference model does not contain the far replica.
            Move::Resync { .. } => {}
            Move::Restart(restart) => self.restart(restart),
        }
        Answer::Nothing
    }
}

/// The owner of a token (0: no owner). After a restart, no request names an owner, because the server has
/// lost the owners of its holds.
fn owner_of(token: Token, restarted: bool) -> Owner {
    if restarted { 0 } else { [0, 0, 1, 1, 2][usize::from(token)] }
}

pub fn moves(model: &Model) -> BoxedStrategy<Move> {
    let key = || prop_oneof![3 => Just(0), 2 => 1..KEYS];
    let token = || 0..TOKENS;
    let ttl = || select(vec![1, 3, 10, 50, 50, 1000]);
    let fences: Vec<u64> = model.holds.iter().map(|hold| hold.fence).chain([model.now, 1]).collect();
    let fence = (select(fences), select(vec![-1, 0, 1, 2, 700, 5000]))
        .prop_map(|(fence, more): (u64, i64)| fence.saturating_add_signed(more).clamp(1, GREATEST_FENCE));
    let counts = prop_oneof![
        3 => Just(ReleaseCount::One),
        2 => Just(ReleaseCount::All),
        1 => (0..4u32).prop_map(ReleaseCount::Above),
    ];
    let restart = (any::<bool>(), select(vec![0, 1, 7, 200]), select(vec![-60_000, -3, 0, 2, 60_000]))
        .prop_map(|(same_boot, down, jump)| Move::Restart(Restart { same_boot, down, jump }));
    let any_move = prop_oneof![
        18 => acquire(model.restarted),
        10 => queue(model.restarted),
        2 => (key(), token()).prop_map(|(k, t)| Move::TimeOutToken(k, t)),
        1 => (key(), token()).prop_map(|(k, t)| Move::RightsLost(k, t)),
        9 => (key(), token(), counts, select(vec![0, 0, 0, 2, 30]))
            .prop_map(|(k, t, n, ms)| Move::Release(k, t, n, ms)),
        2 => (key(), token(), ttl()).prop_map(|(k, t, ms)| Move::Extend(k, t, ms)),
        3 => (key(), token(), fence, ttl(), select(vec![0, 10_000, u32::MAX.into()]))
            .prop_map(|(k, t, f, ms, bound)| Move::Confirm(k, t, f, ms, bound)),
        1 => key().prop_map(Move::Break),
        1 => (key(), token()).prop_map(|(k, t)| Move::CancelToken(k, t)),
        1 => (key(), 0..CLIENTS).prop_map(|(k, c)| Move::CancelClient(k, c)),
        2 => (0..CLIENTS).prop_map(Move::ClientGone),
        1 => key().prop_map(Move::Delete),
        3 => (0..CLIENTS).prop_map(Move::TimeOut),
        2 => key().prop_map(Move::RunJob),
        7 => select(vec![1, 400, 1000, 1000, 2000, 5000, 20_000, 200_000]).prop_map(Move::Advance),
        1 => any::<bool>().prop_map(|child| Move::Resync { child }),
        1 => prop_oneof![2 => Just(Move::Demote), 2 => restart, 1 => select(vec![1, 5, 30]).prop_map(Move::Grace)],
    ];
    match model.sent_grants.len() {
        0 => any_move.boxed(),
        count => prop_oneof![
            6 => any_move,
            1 => (0..count).prop_map(Move::Delivered),
            1 => (0..count).prop_map(Move::Undelivered),
        ]
        .boxed(),
    }
}

/// Runs of ACQUIREs that wait without a timeout, and of some RELEASEs. Many of the waits close a cycle, or
/// nearly do.
pub fn waits() -> impl Strategy<Value = Vec<Move>> {
    let two = Mode::Permits(NonZeroU32::new(2).expect("above 0"));
    let mode = select(vec![Mode::Exclusive, Mode::Exclusive, Mode::Shared, Mode::Shared, two]);
    let greatest_depth = Reentry::AtLeast(NonZeroU32::new(GREATEST_COUNT).expect("above 0"));
    let reentry = select(vec![Reentry::Keep, Reentry::Keep, Reentry::OneMore, greatest_depth]);
    let who = (0..CLIENTS, 0..KEYS, 0..TOKENS);
    let wait = (who, mode, reentry).prop_map(|((client, key, token), mode, reentry)| {
        Move::Acquire(Request { reentry, ..Request::new(client, key, token, mode) }, Some(0))
    });
    let release =
        (0..KEYS, 0..TOKENS).prop_map(|(key, token)| Move::Release(key, token, ReleaseCount::All, 0));
    let owners = prop::array::uniform5(select(vec![0, 0, 0, 1, 2, 3]));
    let moves =
        prop::collection::vec(prop_oneof![12 => wait, 1 => release, 2 => Just(Move::Delivered(0))], 6..30);
    (owners, moves).prop_map(|(owners, mut moves)| {
        for step in &mut moves {
            if let Move::Acquire(request, _) = step {
                request.owner = owners[usize::from(request.token)];
            }
        }
        moves
    })
}

fn queue(restarted: bool) -> impl Strategy<Value = Move> {
    (acquire(restarted), select(vec![1, 5, 30, 500, 500])).prop_map(|(step, ms)| match step {
        Move::Acquire(request, block) => Move::Queue(request, ms, block.filter(|block| *block < 100)),
        other => other,
    })
}

fn acquire(restarted: bool) -> impl Strategy<Value = Move> {
    let number = |n: u32| NonZeroU32::new(n).expect("above 0");
    let mode = prop_oneof![
        4 => Just(Mode::Exclusive),
        4 => Just(Mode::Shared),
        2 => Just(Mode::Permits(number(2))),
        1 => select(vec![1, 3]).prop_map(move |n| Mode::Permits(number(n))),
    ];
    let reentry = prop_oneof![
        6 => Just(Reentry::Keep),
        2 => Just(Reentry::OneMore),
        1 => select(vec![1, 3, GREATEST_COUNT]).prop_map(move |n| Reentry::AtLeast(number(n))),
    ];
    let block = prop_oneof![2 => Just(None), 5 => select(vec![0, 1, 5, 30, 500]).prop_map(Some)];
    let who = (0..CLIENTS, prop_oneof![3 => Just(0), 2 => 1..KEYS], 0..TOKENS);
    let rest = (select(vec![1, 3, 10, 50, 50, 1000]), prop::bool::weighted(0.2));
    let extras = (select(vec![0, 0, 0, 0, 2, 30]), select(vec![0, 0, 0, 1, 2]));
    (who, mode, reentry, block, rest, extras).prop_map(move |(who, mode, reentry, block, rest, extras)| {
        let ((client, key, token), (ttl, ephemeral), (delay, label)) = (who, rest, extras);
        let owner = owner_of(token, restarted);
        let request = Request { client, key, token, mode, ttl, reentry, ephemeral, delay, label, owner };
        Move::Acquire(request, block)
    })
}
