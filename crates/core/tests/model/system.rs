//! The core, driven as the module drives it, and two replicas that only apply the replicated changes.

use std::collections::{BTreeMap, BTreeSet};

use crate::checked;
use dlock_core::codec::Anchor;
use dlock_core::plain::{LogState, Plain};
use dlock_core::{
    Acquired, Binding, CannotJoin, ClientId, Confirmed, Delay, Event, Fence, Fences, Granted, Grants,
    Instant, Joining, Kept, LabelRef, Limits, Lock, LockRequest, Mode, Name, NewPosition, NewWait, Outcome,
    OwnerIdRef, Queued, Rank, RareEffects, Skew, Step, Terms, Ttl, Turn, Wait, WaitKind, WaiterId, Waiting,
};
use dlock_protocol::command::CancelTarget;

mod acquiring;
mod connections;

use super::moves::Move;
use super::reference::{
    Answer, Client, KEYS, Key, KeyEvent, MAX_CONNECTIONS, MAX_HOLDERS, MAX_WAITERS, OWNERS, Party, Request,
    SentGrant, Token, WaitOutcome, client_of_queued_wait,
};

#[derive(Clone, Default)]
pub struct System {
    pub now: u64,
    pub grants_from: u64,
    pub(super) boot: u64,
    pub(super) offset: i64,
    pub fences: Fences,
    pub waiting: Waiting,
    pub locks: BTreeMap<Key, Lock>,
    /// The replicas: one on the same machine, and one on another machine.
    pub near: BTreeMap<Key, Lock>,
    pub far: BTreeMap<Key, Lock>,
    /// The [`LogState`] that the master assumes for its replicas. `None` if the master must log the next
    /// change as an effect (DLOCK._SET with the changed holds), not as the command itself.
    pub(super) assumed_log_state: Option<LogState>,
    /// The [`LogState`] of the near and the far replica.
    pub(super) replica_log_states: [Option<LogState>; 2],
    pub sent_grants: Vec<SentGrant>,
    /// The QUEUE position to which the last grant of each key and token went.
    pub(super) queue_grants: BTreeMap<(Key, Token), WaiterId>,
    /// The waiters that have no answer yet.
    pub unanswered: BTreeSet<WaiterId>,
    /// The clients that have received the grant of a hold.
    pub(super) received: BTreeMap<(Key, Token), BTreeSet<Client>>,
    /// The clients that have received the grant of an exclusive hold.
    pub(super) received_exclusive: BTreeMap<(Key, Token), BTreeSet<Client>>,
    pub(super) greatest_fence: u64,
    /// The EPHEMERAL holds and their connections, as the [`Binding`]s of the core report them.
    pub bonds: BTreeSet<(Client, Key, Token)>,
    pub events: Vec<(Key, KeyEvent)>,
    pub outcomes: Vec<(Client, WaitOutcome)>,
    /// The holds that began with another number of permits than the hold before.
    pub limit_changes: Vec<(Key, Token)>,
    /// The cycle of the last DEADLOCK.
    pub cycle: Vec<Party>,
    /// The situations of [`SOMETIMES`](super::check::SOMETIMES) that occurred in the last operation.
    pub marks: Vec<&'static str>,
    /// The maximum number of waiters that an operation serves.
    pub max_grants_per_turn: usize,
    /// The last operation on these keys stopped at `max_grants_per_turn`. Another operation must serve the
    /// rest.
    pub unserved: BTreeSet<Key>,
}

pub fn name(key: Key) -> Name<'static> {
    // Two databases with one key, and another key.
    [Name::new(0, b"r"), Name::new(1, b"r"), Name::new(0, b"\x00 s")][usize::from(key)].to_owned()
}

fn key_of(name: &Name<'_>) -> Key {
    (0..KEYS).find(|key| self::name(*key) == *name).expect("a key of the model")
}

/// The bytes of a token. The last one is too long to be stored inline.
pub fn token(token: Token) -> Vec<u8> {
    let len = if token == 4 { 40 } else { 3 };
    vec![b'a' + token; len]
}

pub fn token_of(bytes: &[u8]) -> Token {
    bytes[0] - b'a'
}

/// The party that a token in a reported cycle stands for. As in the reference model, an owner is 100 plus its
/// index.
fn party_of(shown: &dlock_core::Token) -> Party {
    let owner = OWNERS.iter().position(|owner| owner.as_bytes() == shown.as_bytes());
    owner.map_or_else(|| token_of(shown.as_bytes()), |owner| 100 + owner as Party)
}

pub fn label(label: u8) -> Vec<u8> {
    vec![b'l'; [0, 5, 255][usize::from(label)]]
}

impl System {
    pub fn new(now: u64, last_fence: u64) -> System {
        let mut system = System { now, boot: 1, max_grants_per_turn: usize::MAX, ..System::default() };
        system.fences.raise(last_fence);
        system
    }

    pub fn instant(&self) -> Instant {
        Instant::from_micros(self.now)
    }

    pub(super) fn anchor(&self) -> Anchor {
        Anchor { boot: self.boot, offset: self.offset }
    }

    /// Runs an operation on a key, and carries out the resulting [`Step`] as the module does.
    fn turn<T>(&mut self, key: Key, work: impl FnOnce(&mut Turn<'_>) -> T) -> T {
        self.turn_of(None, key, work)
    }

    /// Like [`System::turn`]. `plain` is the command if it may be logged verbatim, instead of as an effect.
    fn turn_of<T>(&mut self, plain: Option<Plain<'_>>, key: Key, work: impl FnOnce(&mut Turn<'_>) -> T) -> T {
        let now = self.instant();
        let name = name(key);
        let mut lock = self.locks.remove(&key).unwrap_or_default();
        let mut step = Step::default();
        let max_holders = MAX_HOLDERS as u32;
        let terms = Terms {
            grants: Grants::From(Instant::from_micros(self.grants_from)),
            longest_lease: Ttl::MAX,
            max_holders,
            max_grants_per_turn: self.max_grants_per_turn,
        };
        let mut turn =
            Turn::new(now, terms, &name, &mut self.fences, &mut self.waiting, &mut lock, &mut step);
        let answer = work(&mut turn);
        turn.finish();
        self.replicate(key, &lock, &step.change, plain);
        if lock.mode() != Some(Mode::Exclusive) {
            self.received_exclusive.retain(|(of, _), _| *of != key);
        }
        if !lock.is_gone() {
            self.locks.insert(key, lock);
        }
        self.carry_out(key, step);
        answer
    }

    fn carry_out(&mut self, key: Key, step: Step) {
        let rare = step.rare_effects.map_or_else(RareEffects::default, |rare| *rare);
        self.unserved.remove(&key);
        self.unserved.extend(rare.unserved.then_some(key));
        for binding in rare.bindings {
            match binding {
                Binding::Begins(client, token) => {
                    self.bonds.insert((client.0, key, token_of(token.as_bytes())));
                }
                Binding::Ends(client, token) => {
                    self.bonds.remove(&(client.0, key, token_of(token.as_bytes())));
                }
            }
        }
        for event in step.events {
            self.events.push((key, key_event(event)));
        }
        let changes = rare.limit_changes.iter().map(|hold| (key, token_of(hold.token().as_bytes())));
        self.limit_changes.extend(changes);
        for (waiter, outcome) in rare.outcomes {
            assert!(self.unanswered.remove(&waiter.id), "a waiter has one outcome: {waiter:?}");
            assert_eq!(key_of(&waiter.name), key);
            let token = token_of(waiter.request.token.as_bytes());
            let client = waiter.client().map_or(client_of_queued_wait(token), |client| client.0);
            let shares_position = matches!(waiter.kind, WaitKind::Beside(..));
            let outcome = match outcome {
                Outcome::Granted(fence, granted) => {
                    assert!(
                        waiter.until.is_none_or(|until| !until.passed(self.instant())),
                        "no waiter is granted after its timeout"
                    );
                    if granted != Granted::Renewal && !shares_position {
                        let place = (waiter.rank, waiter.id);
                        let overtaken = self.waiting.queue(&waiter.name).any(|w| (w.rank, w.id) < place);
                        assert!(!overtaken, "waiters are granted in order: {waiter:?}");
                    }
                    if granted == Granted::New && !shares_position {
                        self.record_grant(key, token, fence);
                    }
                    assert!(
                        granted != Granted::Upgrade || self.now >= self.grants_from,
                        "no upgrade is granted in grace"
                    );
                    let (number, fence) = (waiter.id.0, fence.get());
                    if waiter.client().is_some() {
                        self.record_receipt(key, token, client, waiter.request.mode);
                        self.sent_grants.push(SentGrant { number, client, key, token, fence, granted });
                    } else {
                        self.queue_grants.insert((key, token), waiter.id);
                    }
                    WaitOutcome::Granted(fence, granted)
                }
                Outcome::TimedOut => WaitOutcome::TimedOut,
                Outcome::Cancelled => WaitOutcome::Cancelled,
                Outcome::Left => WaitOutcome::Left,
                Outcome::Refused(refusal) => WaitOutcome::Refused(refusal),
            };
            self.outcomes.push((client, outcome));
        }
    }

    fn record_receipt(&mut self, key: Key, token: Token, client: Client, mode: Mode) {
        self.received.entry((key, token)).or_default().insert(client);
        if mode == Mode::Exclusive {
            self.received_exclusive.entry((key, token)).or_default().insert(client);
        }
    }

    fn record_grant(&mut self, key: Key, token: Token, fence: Fence) {
        assert!(self.now >= self.grants_from, "no lock is granted in grace");
        assert!(fence.get() > self.greatest_fence, "fences rise in the order of grants");
        self.greatest_fence = fence.get();
        self.received.insert((key, token), BTreeSet::new());
        self.received_exclusive.insert((key, token), BTreeSet::new());
    }

    pub fn make(&mut self, next_move: Move) -> Answer {
        self.events.clear();
        self.outcomes.clear();
        self.limit_changes.clear();
        self.cycle.clear();
        self.marks.clear();
        match next_move {
            Move::Acquire(request, block) => return self.acquire(&request, block, None),
            Move::Queue(request, ms, block) => return self.acquire(&request, block, Some(ms)),
            Move::Release(key, who, counts, ms) => {
                let (plain, delay) = (Some(Plain::Release), Delay::from_millis(ms).expect("in range"));
                let ended =
                    self.turn_of(plain, key, |turn| turn.release(checked(&token(who)), counts, delay));
                return Answer::Number(ended.into());
            }
            Move::Extend(key, who, ms) => {
                return Answer::Number(
                    self.turn(key, |turn| turn.extend(checked(&token(who)), ttl(ms))).into(),
                );
            }
            Move::Confirm(key, who, fence, ms, max_ahead) => {
                let fence = Fence::from_outside(fence).expect("a possible fence");
                let skew = Skew::from_millis(max_ahead as u32);
                return match self.turn(key, |turn| turn.confirm(checked(&token(who)), fence, ttl(ms), skew)) {
                    Confirmed::Fence(fence) => Answer::Fence(fence.get()),
                    Confirmed::NotHeld => Answer::Null,
                    Confirmed::Ahead(_) => Answer::Ahead,
                };
            }
            Move::Break(key) => return Answer::Number(self.turn(key, |turn| turn.break_all()) as u64),
            Move::CancelToken(key, who) => {
                let who = token(who);
                return Answer::Number(
                    self.turn(key, |turn| turn.cancel(CancelTarget::Token(checked(&who)))) as u64,
                );
            }
            Move::CancelClient(key, client) => {
                return Answer::Number(
                    self.turn(key, |turn| turn.cancel(CancelTarget::Client(client))) as u64
                );
            }
            Move::ClientGone(client) => self.client_gone(client),
            Move::Delete(key) => {
                for replica in [&mut self.near, &mut self.far] {
                    replica.remove(&key);
                }
                // Like the module, unbinds the stored holds of the removed key from their connections, and
                // forgets the unconfirmed grants of the key.
                let bound = self.bound_holds();
                self.bonds.retain(|bond| bond.1 != key || !bound.contains(bond));
                self.waiting.deliveries.forget(&name(key));
                match self.locks.remove(&key) {
                    Some(_) => self.turn(key, |turn| turn.vanished()),
                    None => self.turn(key, |turn| turn.advance()),
                }
            }
            Move::TimeOut(client) => {
                let now = self.instant();
                let waiter = self.waiting.of_client(ClientId(client));
                let waiter = waiter.filter(|w| w.until.is_some_and(|until| until.passed(now)));
                if let Some((key, id)) = waiter.map(|w| (key_of(&w.name), w.id)) {
                    self.turn(key, |turn| turn.dismiss(&[id], Outcome::TimedOut));
                }
            }
            Move::TimeOutToken(key, who) => {
                let now = self.instant();
                let queued = self.waiting.queued_waiter_of(&token(who), &name(key));
                let timed_out = queued.filter(|w| w.until.is_some_and(|until| until.passed(now)));
                if let Some(id) = timed_out.map(|w| w.id) {
                    self.turn(key, |turn| turn.dismiss(&[id], Outcome::TimedOut));
                }
            }
            Move::RightsLost(key, who) => {
                self.turn(key, |turn| turn.advance());
                let id = self.queue_grants.get(&(key, who)).copied().unwrap_or(WaiterId(0));
                self.turn(key, |turn| turn.undelivered(&token(who), id));
            }
            Move::RunJob(key) => self.turn(key, |turn| turn.advance()),
            Move::Delivered(nth) => {
                self.waiting.deliveries.handed_over(WaiterId(self.sent_grants.remove(nth).number));
                self.waiting.deliveries.next_turn();
            }
            Move::Undelivered(nth) => self.undelivered(nth),
            Move::Advance(us) => self.now += us,
            Move::Grace(ms) => {
                let ends = self.instant().after_millis(ms).millis() * 1000;
                self.grants_from = self.grants_from.max(ends);
            }
            Move::Demote => self.demote(),
            Move::Resync { child } => self.resync(child),
            Move::Restart(restart) => self.restart(restart),
        }
        Answer::Nothing
    }
}

fn ttl(ms: u64) -> Ttl {
    Ttl::from_millis(ms).expect("a possible ttl")
}

fn key_event(event: Event) -> KeyEvent {
    match event {
        Event::Acquired => KeyEvent::Acquired,
        Event::Extended => KeyEvent::Extended,
        Event::Ended(why, _) => KeyEvent::Ended(why),
        Event::Downgraded => KeyEvent::Downgraded,
        Event::Freed => KeyEvent::Freed,
        Event::AllEnded(_) => unreachable!("the model has too few holders for this event"),
    }
}
