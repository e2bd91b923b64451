//! Holds of clients: their beginning, extensions, restorations and breaks.

use super::client::Phase;
use super::master::{Ask, Hold, Message};
use super::world::{Broken, State, World};
use dlock_quorum::Instant;
use dlock_quorum::{Extended, Extension, Member, Outgoing, Quorum, Refusal, Request, Vote};

impl State {
    /// Begins a hold. Without a clock, the client begins its next round at once: holds at the masters may end
    /// at any time.
    pub fn hold(&mut self, world: &World, client: usize, valid_until: Instant) {
        let left = valid_until.saturating_since(world.now());
        self.clients[client].phase =
            Phase::Holding { left, extension: None, extensions: 0, extended: false, broken_at: None };
        if !world.has_clock() {
            self.clients[client].next_round(world.clients[client]);
        }
    }

    pub fn extend(&mut self, world: &World, client: usize) {
        let Phase::Holding { left, extension, extensions, .. } = &mut self.clients[client].phase else {
            return;
        };
        let single = Quorum::new(1).unwrap();
        let quorum = if world.is(Broken::ExtendedByOne) { single } else { world.quorum() };
        let (new, _) = Extension::new(quorum, world.lease(), world.after(*left), world.now());
        *left = new.held_until().saturating_since(world.now());
        *extension = Some(Box::new(new));
        *extensions += 1;
        let serial = *extensions;
        let sends = world.quorum().members().map(|to| Outgoing { to, what: Request::Extend });
        self.post(world, client, serial, sends);
    }

    pub fn extension_answered(&mut self, world: &World, member: Member, message: Message, mut vote: Vote) {
        let client = usize::from(message.token.client);
        let Phase::Holding { left, extension, extensions, extended, broken_at } =
            &mut self.clients[client].phase
        else {
            return;
        };
        let Some(running) = extension.as_mut() else { return };
        let mut restored = Vec::new();
        match message.what {
            Ask::Extend(serial) if serial == *extensions => {}
            // The answer to a restoration counts only under broken rules.
            Ask::Restore if message.answer.is_some() => {}
            _ => return,
        }
        if world.counts_restored() && vote == Vote::Refused(Refusal::NotHeld) {
            restored.push(Outgoing { to: member, what: Request::Restore });
            vote = Vote::Unknown;
        }
        let member = if world.is(Broken::ExtendedByOne) { Member(0) } else { member };
        match running.answered(member, vote.map(|_| ()), world.now()) {
            Extended::Open => {}
            Extended::Unconfirmed if world.counts_restored() => {}
            Extended::Unconfirmed => *extension = None,
            Extended::Until(mut later) => {
                if world.is(Broken::ValidFromRestoration) && message.what == Ask::Restore {
                    later = world.lease().valid_until(world.now());
                }
                *left = later.saturating_since(world.now());
                *extended = true;
                self.history.revived |= broken_at.is_some_and(|at| at < *extensions);
                restored.extend(running.restore(world.now()));
                // The extension stays: its later answers show which other masters have lost the hold.
                if !world.held {
                    *extension = None;
                }
            }
            Extended::Lost => self.clients[client].next_round(world.clients[client]),
        }
        if world.held && client == 0 {
            self.post(world, client, 0, restored);
        }
    }

    /// Gives the first client a hold on every master.
    pub fn hold_everywhere(&mut self, world: &World) {
        let (token, fence) = (self.token(world, 0), 1);
        for master in &mut self.masters {
            (master.last, master.hold) = (fence, Some(Hold { token, fence, left: world.ttl() }));
        }
        self.history.completed(fence, 0);
        self.hold(world, 0, world.lease().valid_until(world.now()));
    }

    /// An operator ends all holds.
    pub fn break_holds(&mut self, world: &World) {
        self.masters.iter_mut().for_each(|master| master.end_hold(world));
        for client in &mut self.clients {
            if let Phase::Holding { extensions, broken_at, .. } = &mut client.phase {
                *broken_at = Some(*extensions);
            }
        }
    }
}
