//! One acquisition with one token: the line, the asking, the second phase.
//!
//! Redlock (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>) is the asking. The second
//! phase is a majority register for the fence, as the write phase of Attiya, Bar-Noy and Dolev's registers: F is the greatest
//! number that the counted masters granted, CONFIRM raises the holds to F, and a majority that says "F" meets
//! every later majority, whose numbers are therefore greater. The rules here are those that a model checker left
//! standing; `tests/model.rs` keeps the ones it refuted.

use super::seat::Seat;
use super::{Fence, Member, Outgoing, Quorum, Refusal, Request, Sends, Vote, to_all};
use crate::lease::{Instant, Lease};
use smallvec::SmallVec;

/// What to acquire for, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Plan {
    /// The masters.
    pub quorum: Quorum,
    /// The lease that is asked of each.
    pub lease: Lease,
    /// Whether the hold needs a fence that rises over the whole quorum: one round trip more.
    pub fenced: bool,
    /// How often those that did not grant may be asked again, with what was granted meanwhile being kept.
    pub retries: u8,
}

/// An acquisition under way. It must be given a token that nobody used before: under an old one, a RELEASE that is
/// still under way would end the new hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Acquisition {
    pub(super) plan: Plan,
    pub(super) stage: Stage,
    /// The instant that validity counts from: before the first send, or before the send of the second phase.
    pub(super) since: Instant,
    pub(super) waited: bool,
    pub(super) seats: SmallVec<[Seat; 5]>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Stage {
    /// In line at the first of these masters, which are left to try.
    InLine(SmallVec<[Member; 5]>),
    Asking,
    /// In the second phase, by [`Request::Confirm`]'s fence and number.
    Confirming(Fence, u8),
    Over,
}

/// What follows from an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// To be sent now.
    pub sends: Sends,
    /// How it stands.
    pub verdict: Verdict,
}

/// How an acquisition stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Answers are outstanding that can still decide it.
    Open,
    /// The answers that can still come are too few. After a short random pause call [`Acquisition::ask_again`].
    TryAgain,
    /// Held.
    Won(Won),
    /// Not held; the sends are the clean-up.
    Lost(Loss),
}

/// A hold that was won.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Won {
    /// The hold's fence: of the whole quorum if one was asked for, of the one server if there is only one; else none.
    pub fence: Option<Fence>,
    /// The end of its validity.
    pub valid_until: Instant,
}

/// Why there is no hold. The votes say more, master by master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Enough masters could vote, and too many refused.
    Taken,
    /// Too many masters are down, silent, in grace or off the clock: nobody can get it at present.
    Impossible,
    /// A majority granted, but too late: nothing of the lease is left, or it ran out before it was confirmed.
    TooLate,
}

impl Acquisition {
    /// Asks all masters at once. `now` is read before anything is sent.
    pub fn at_once(plan: Plan, now: Instant) -> (Self, Sends) {
        (Self::new(plan, Stage::Asking, now), to_all(plan.quorum, Request::Acquire))
    }

    /// Waits in line at the first master of `order` that is reachable, and asks the others when it is granted there.
    /// `order` must be the same for all clients, so that they meet in one line; a master that it leaves out is only asked.
    ///
    /// A grant that was waited for began at a time unknown, so it is always confirmed, which sets the lease anew.
    pub fn in_line(plan: Plan, order: &[Member], now: Instant) -> (Self, Sends) {
        let Some(&first) = order.first() else { return Self::at_once(plan, now) };
        let mut new = Self::new(plan, Stage::InLine(SmallVec::from_slice(order)), now);
        new.waited = true;
        (new, SmallVec::from_slice(&[Outgoing { to: first, what: Request::Wait }]))
    }

    /// Asks all masters at once but for `line`, in whose line the same client waits under another token: what that master
    /// says is known.
    pub fn beside_line(plan: Plan, line: Member, now: Instant) -> (Self, Sends) {
        let (mut new, mut sends) = Self::at_once(plan, now);
        if let Some(seat) = new.seats.get_mut(usize::from(line.0)) {
            seat.vote = Some(Vote::Refused(Refusal::Taken));
        }
        sends.retain(|send| send.to != line);
        (new, sends)
    }

    fn new(plan: Plan, stage: Stage, since: Instant) -> Self {
        let seats = plan.quorum.members().map(|_| Seat::default()).collect();
        Self { plan, stage, since, waited: false, seats }
    }

    /// Takes the answer of `member` to `what` (one of the requests that were sent, with its fence), seen at `now`.
    pub fn answered(&mut self, member: Member, what: Request, vote: Vote, now: Instant) -> Progress {
        let Some(seat) = self.seats.get_mut(usize::from(member.0)) else { return self.open(Sends::new()) };
        match what {
            Request::Acquire | Request::Wait => seat.record(vote),
            Request::Confirm { fence, phase } if self.stage == Stage::Confirming(fence, phase) => {
                seat.confirmed(vote, fence);
            }
            // An answer to an earlier phase says nothing about the lease that this one sets anew.
            Request::Confirm { .. } | Request::Extend | Request::Leave | Request::Release => {}
        }
        match &self.stage {
            Stage::InLine(line) if line.first() == Some(&member) => self.moved_in_line(member, now),
            Stage::InLine(_) | Stage::Over => self.open(Sends::new()),
            Stage::Asking => self.count_grants(now),
            &Stage::Confirming(fence, phase) => self.count_confirmed(fence, phase, member, now),
        }
    }

    /// Asks those that did not grant once more. The instant of the first send stays: a late answer to it may be
    /// what makes the majority.
    pub fn ask_again(&mut self) -> Sends {
        if self.stage != Stage::Asking || self.plan.retries == 0 {
            return Sends::new();
        }
        self.plan.retries -= 1;
        let mut sends = Sends::new();
        for (seat, to) in self.seats.iter_mut().zip(self.plan.quorum.members()) {
            if seat.may_be_asked_again(self.waited) {
                seat.vote = None;
                sends.push(Outgoing { to, what: Request::Acquire });
            }
        }
        sends
    }

    /// Why it is not held, for whoever does not ask again after [`Verdict::TryAgain`].
    pub fn why_not(&self) -> Loss {
        self.loss(Loss::Taken)
    }

    /// Ends it without a hold: the clean-up to send. Nothing if it is over already.
    pub fn give_up(&mut self) -> Sends {
        match self.stage {
            Stage::Over => Sends::new(),
            _ => {
                self.stage = Stage::Over;
                to_all(self.plan.quorum, Request::Release)
            }
        }
    }

    /// What each master said last; None where no answer came yet.
    pub fn votes(&self) -> impl Iterator<Item = Option<&Vote>> {
        self.seats.iter().map(Seat::last_word)
    }

    /// The masters whose numbers are too far ahead of the others' clocks: their clocks want looking at.
    pub fn ahead(&self) -> impl Iterator<Item = Member> {
        self.plan.quorum.members().zip(&self.seats).filter(|(_, seat)| seat.ahead).map(|(member, _)| member)
    }

    pub(super) fn open(&self, sends: Sends) -> Progress {
        Progress { sends, verdict: Verdict::Open }
    }

    fn moved_in_line(&mut self, member: Member, now: Instant) -> Progress {
        let leave = match &self.seats[usize::from(member.0)].vote {
            None => return self.open(Sends::new()),
            Some(Vote::Granted(_)) => return self.ask_the_others(now),
            Some(Vote::Refused(Refusal::Grace(_)) | Vote::Failed(_)) => None,
            Some(Vote::Unknown) => Some(Outgoing { to: member, what: Request::Leave }),
            Some(Vote::Refused(_)) => return self.lose(Loss::Taken),
        };
        let Stage::InLine(line) = &mut self.stage else { return self.open(Sends::new()) };
        line.remove(0);
        match line.first() {
            None => self.lose(Loss::Impossible),
            Some(&to) => self.open(leave.into_iter().chain([Outgoing { to, what: Request::Wait }]).collect()),
        }
    }

    fn ask_the_others(&mut self, now: Instant) -> Progress {
        self.stage = Stage::Asking;
        let mut sends = Sends::new();
        for (seat, to) in self.seats.iter_mut().zip(self.plan.quorum.members()) {
            if seat.fence().is_none() {
                seat.vote = None;
                sends.push(Outgoing { to, what: Request::Acquire });
            }
        }
        let mut progress = self.count_grants(now);
        sends.append(&mut progress.sends);
        Progress { sends, ..progress }
    }

    fn count_grants(&mut self, now: Instant) -> Progress {
        let majority = self.plan.quorum.majority();
        let granted = self.count(|seat| seat.fence().is_some());
        if granted >= majority {
            let fence = self.seats.iter().filter_map(Seat::fence).max();
            return match fence {
                Some(fence) if self.needs_confirm() => self.confirm(fence, 0, now),
                fence => self.win(fence.filter(|_| self.plan.quorum.majority() == 1), now),
            };
        }
        let hoped_for = granted + self.count(|seat| seat.vote.is_none());
        if hoped_for >= majority {
            return self.open(Sends::new());
        }
        let again = self.count(|seat| seat.may_be_asked_again(self.waited));
        if self.plan.retries > 0 && hoped_for + again >= majority {
            return Progress { sends: Sends::new(), verdict: Verdict::TryAgain };
        }
        self.lose(self.why_not())
    }

    /// On a single server the grant's own number rises already; a grant that was waited for has to be confirmed there too.
    fn needs_confirm(&self) -> bool {
        self.waited || (self.plan.fenced && self.plan.quorum.majority() > 1)
    }

    pub(super) fn win(&mut self, fence: Option<Fence>, now: Instant) -> Progress {
        let valid_until = self.plan.lease.valid_until(self.since);
        if now >= valid_until {
            return self.lose(Loss::TooLate);
        }
        self.stage = Stage::Over;
        Progress { sends: Sends::new(), verdict: Verdict::Won(Won { fence, valid_until }) }
    }

    pub(super) fn lose(&mut self, loss: Loss) -> Progress {
        Progress { sends: self.give_up(), verdict: Verdict::Lost(loss) }
    }

    pub(super) fn loss(&self, if_possible: Loss) -> Loss {
        let unavailable = self.count(Seat::is_unavailable);
        if self.plan.quorum.possible_without(unavailable) { if_possible } else { Loss::Impossible }
    }

    pub(super) fn count(&self, which: impl Fn(&Seat) -> bool) -> usize {
        self.seats.iter().filter(|seat| which(seat)).count()
    }
}
