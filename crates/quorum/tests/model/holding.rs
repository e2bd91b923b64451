//! Holds of clients: how they begin, are extended and restored, and end by a BREAK of an operator. A world
//! may have a [`Mutation`]: a rule that its clients or masters break.

use super::client::{Holding, Phase};
use super::master::{Hold, Kind, Message};
use super::world::{Mutation, State, World};
use dlock_quorum::{Extended, Extension, Instant, Member, Outgoing, Quorum, Refusal, Request, Vote};

impl State {
    /// Begins a hold. In a world without a clock, no tick would end it. There, the client drops the hold at
    /// once and goes on to its next acquisition, and the masters retain the hold.
    pub fn hold(&mut self, world: &World, client: usize, valid_until: Instant) {
        let validity_left = valid_until.saturating_since(world.now());
        let at_least_left = world.clients[client].at_least;
        self.clients[client].phase =
            Phase::Holding(Holding { validity_left, at_least_left, ..Holding::default() });
        if world.has_at_least() {
            let token = self.token(world, client);
            self.history.acquired(world, token);
        }
        if !world.has_clock() {
            self.clients[client].next_acquisition(world.clients[client]);
        }
    }

    pub fn extend(&mut self, world: &World, client: usize) {
        let Phase::Holding(holding) = &mut self.clients[client].phase else { return };
        let single = Quorum::new(1).unwrap();
        let quorum = if world.has(Mutation::OneVoteExtends) { single } else { world.quorum() };
        let held_until = world.after(holding.validity_left);
        let (extension, _) = Extension::new(quorum, world.lease(), held_until, world.now());
        holding.validity_left = extension.held_until().saturating_since(world.now());
        holding.extension = Some(Box::new(extension));
        holding.extensions_begun += 1;
        let number = holding.extensions_begun;
        let sends = world.quorum().members().map(|to| Outgoing { to, what: Request::Extend });
        self.post(world, client, number, sends);
    }

    pub fn extension_answered(&mut self, world: &World, member: Member, message: Message, mut vote: Vote) {
        let client = usize::from(message.token.client);
        let Phase::Holding(holding) = &mut self.clients[client].phase else { return };
        let Some(extension) = holding.extension.as_mut() else { return };
        let mut restores = Vec::new();
        match message.kind {
            Kind::Extend(number) if number == holding.extensions_begun => {}
            // A master answers a `Restore` only in a world with `counts_restored`.
            Kind::Restore if message.answer.is_some() => {}
            _ => return,
        }
        if world.counts_restored() && vote == Vote::Refused(Refusal::NotHeld) {
            restores.push(Outgoing { to: member, what: Request::Restore });
            // The answer to the restore decides instead.
            vote = Vote::Unknown;
        }
        let member = if world.has(Mutation::OneVoteExtends) { Member(0) } else { member };
        match extension.answered(member, vote.map(|_| ()), world.now()) {
            Extended::Open => {}
            Extended::Unconfirmed if world.counts_restored() => {}
            Extended::Unconfirmed => holding.extension = None,
            Extended::Until(mut valid_until) => {
                if world.has(Mutation::ValidFromRestoration) && message.kind == Kind::Restore {
                    valid_until = world.lease().valid_until(world.now());
                }
                holding.validity_left = valid_until.saturating_since(world.now());
                holding.was_extended = true;
                // Whether this extension began after the break.
                let begun_after = |before_break| before_break < holding.extensions_begun;
                self.history.extended_after_break |= holding.extensions_before_break.is_some_and(begun_after);
                restores.extend(extension.restore(world.now()));
                // A world with `first_client_holds` keeps the extension, because later answers can show more
                // masters that have lost the hold.
                if !world.first_client_holds {
                    holding.extension = None;
                }
            }
            Extended::Lost => self.clients[client].next_acquisition(world.clients[client]),
        }
        if world.first_client_holds && client == 0 {
            // The number is used only for `Request::Extend`.
            self.post(world, client, 0, restores);
        }
    }

    /// Gives the first client a hold on every master.
    pub fn hold_everywhere(&mut self, world: &World) {
        let (token, fence) = (self.token(world, 0), 1);
        for master in &mut self.masters {
            (master.greatest_fence, master.hold) =
                (fence, Some(Hold { token, fence, ticks_left: world.ttl() }));
        }
        self.history.record(fence, 0);
        self.hold(world, 0, world.lease().valid_until(world.now()));
    }

    /// Ends all holds, on behalf of an operator.
    pub fn break_holds(&mut self, world: &World) {
        self.masters.iter_mut().for_each(|master| master.end_hold(world));
        for client in &mut self.clients {
            if let Phase::Holding(holding) = &mut client.phase {
                holding.extensions_before_break = Some(holding.extensions_begun);
            }
        }
    }
}
