//! The calls of one wait in a queue, and the messages about them: which message is a grant, and how long the
//! hold is valid that it announces.
//!
//! Each call (ACQUIRE with QUEUE) has a message of its own. A server can publish the message of a call only
//! after it has read the call, so the grant is later than the send of that call. `docs/writing-a-client.md`
//! has the rules for every client.

use crate::{Acquired, Fence, Instant, Lease, Refusal, Vote};
use smallvec::SmallVec;
use std::time::Duration;

/// The calls of one wait, numbered from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitCalls {
    lease: Lease,
    /// The calls whose positions may not have ended yet.
    calls: SmallVec<[Call; 4]>,
    /// The number of the last call; 0 before the first.
    last: u32,
    /// The number of the latest call that was answered null; 0 if none was.
    last_null: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Call {
    number: u32,
    /// An instant before the call was first sent.
    sent: Instant,
    /// How long the server keeps the position after this call.
    kept: Duration,
}

/// What the answer to a claim means. A claim is an ACQUIRE of the token of a hold that is known by a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claimed {
    /// The hold has its whole lease, and is valid until this instant.
    Until(Instant),
    /// The hold has ended. The token may have another one, so the client must release it.
    Lost,
    /// The answer decides nothing: the short validity stands, and the client claims again.
    Open,
}

impl Claimed {
    /// Takes the answer to a claim for `lease` that was sent at `sent`, received at `now`.
    ///
    /// A greater fence than that of the hold shows that the hold has ended, for example by BREAK, and that
    /// the token has got another one. After the end of the validity, no answer revives the hold.
    pub fn read(hold: Acquired, lease: Lease, sent: Instant, answer: &Vote, now: Instant) -> Claimed {
        match answer {
            _ if now >= hold.valid_until => Claimed::Lost,
            Vote::Granted(fence) if Some(*fence) == hold.fence => Claimed::Until(lease.valid_until(sent)),
            Vote::Granted(fence) if Some(*fence) > hold.fence => Claimed::Lost,
            Vote::Refused(Refusal::Taken | Refusal::NotHeld) => Claimed::Lost,
            Vote::Granted(_) | Vote::Refused(_) | Vote::Failed(_) | Vote::Unknown => Claimed::Open,
        }
    }
}

impl WaitCalls {
    /// Prepares a wait for a hold with this lease.
    pub fn new(lease: Lease) -> Self {
        WaitCalls { lease, calls: SmallVec::new(), last: 0, last_null: 0 }
    }

    /// Begins a call, after which the server keeps the position for `kept`. Returns the number of the call.
    /// Read `now` before sending anything. A call that is sent again keeps its number and its first send.
    pub fn begin(&mut self, kept: Duration, now: Instant) -> u32 {
        self.calls.retain(|call| now < call.sent + call.kept);
        self.last += 1;
        self.calls.push(Call { number: self.last, sent: now, kept });
        self.last
    }

    /// Takes the answer null to a call: the token does not hold the lock.
    pub fn answered_null(&mut self, call: u32) {
        self.last_null = self.last_null.max(call);
    }

    /// Returns the hold that the answer to `call` grants, with its whole lease.
    pub fn answered_fence(&self, call: u32, fence: Fence) -> Option<Acquired> {
        let sent = self.call(call)?.sent;
        Some(Acquired { fence: Some(fence), valid_until: self.lease.valid_until(sent) })
    }

    /// Takes the message `granted` of a call, received at `now`. Returns the hold, which the client must
    /// claim at once: the claim sets the full lease. `None` means that the message shows no hold, and that
    /// the client asks again at once: nothing of the validity is left, or a later call was answered null.
    /// Either the hold has ended, or the server has read a copy of the call after the later one, and the
    /// token holds the lock.
    ///
    /// The lease that the server has set is at most the position's remaining time, so validity counts from
    /// the send of the call, for the shorter of the lease and the time for which the call keeps the position.
    pub fn announced(&self, call: u32, fence: Fence, now: Instant) -> Option<Acquired> {
        let Call { sent, kept, .. } = self.call(call).filter(|call| call.number >= self.last_null)?;
        let valid_until = self.lease.valid_until_within(sent, kept);
        (now < valid_until).then_some(Acquired { fence: Some(fence), valid_until })
    }

    fn call(&self, number: u32) -> Option<Call> {
        self.calls.iter().find(|call| call.number == number).copied()
    }
}
