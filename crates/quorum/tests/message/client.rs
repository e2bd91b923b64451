//! A client that waits by QUEUE, and holds from the message of the grant on: the rule of
//! `docs/writing-a-client.md`. In a world with a [`Mutation`], it breaks a part of the rule.

use super::world::{Claim, Message, Mutation, State, Token, What, World};
use smallvec::SmallVec;

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client {
    /// The number of the current wait.
    pub wait: u8,
    pub calls: SmallVec<[Call; 3]>,
    /// The rest of `ttl` since the EXTEND was sent; `None` before it is sent.
    extend_left: Option<u8>,
    pub phase: Phase,
}

/// A call of the current wait.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Call {
    /// The rest of `min(ttl, ms)` since the call was sent: the validity by the message of the call.
    pub by_message: u8,
    /// The rest of `ttl` since the call was sent: the validity by an answer to the call.
    by_answer: u8,
    is_null: bool,
    /// All fences up to this one had ended when the server read the call, as far as the answers to this call
    /// show. Only for the properties.
    pub ended: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    #[default]
    Waiting,
    Holding(Holding),
    /// All waits are over.
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holding {
    pub fence: u8,
    /// The rest of the validity. Zero only under [`Mutation::CountsAfterValidity`].
    pub left: u8,
    /// The number of the call whose message or answer granted the hold.
    pub call: u8,
    pub by_message: bool,
    pub is_claimed: bool,
    /// As [`Call::ended`], for EXTEND.
    pub ended: u8,
}

impl Client {
    pub fn token(&self, client: usize) -> Token {
        Token { client: client as u8, wait: self.wait }
    }

    pub fn valid_hold(&self) -> Option<&Holding> {
        match &self.phase {
            Phase::Holding(holding) if holding.left > 0 => Some(holding),
            _ => None,
        }
    }

    /// The number of the last call that was answered null; 0 if there is none.
    pub fn last_null(&self) -> u8 {
        self.calls.iter().rposition(|call| call.is_null).map_or(0, |index| index as u8 + 1)
    }

    pub fn call(&self, number: u8) -> Option<&Call> {
        self.calls.get(usize::from(number).checked_sub(1)?)
    }

    /// Whether the client reads the message with an effect.
    pub fn reads(&self, message: &Message, world: &World) -> bool {
        if message.token.wait != self.wait || self.phase == Phase::Done {
            return false;
        }
        match (message.what, &self.phase) {
            (What::Granted { call, .. }, Phase::Waiting) if world.mutation.is_none() => {
                call >= self.last_null() && self.call(call).is_some_and(|call| call.by_message > 0)
            }
            (What::Granted { .. }, phase) => *phase == Phase::Waiting,
            _ => true,
        }
    }

    /// Advances time by one tick. The client drops a hold when the validity ends, without a RELEASE.
    pub fn age(&mut self, world: &World, waits: u8) {
        for call in &mut self.calls {
            call.by_message = call.by_message.saturating_sub(1);
            call.by_answer = call.by_answer.saturating_sub(1);
        }
        self.extend_left.iter_mut().for_each(|left| *left = left.saturating_sub(1));
        if let Phase::Holding(holding) = &mut self.phase {
            holding.left = holding.left.saturating_sub(1);
            if holding.left == 0 && !world.has(Mutation::CountsAfterValidity) {
                self.next_wait(waits);
            }
        }
    }

    fn next_wait(&mut self, waits: u8) {
        let wait = self.wait + 1;
        let phase = if wait < waits { Phase::Waiting } else { Phase::Done };
        *self = Self { wait, phase, ..Self::default() };
    }

    /// Whether a hold counts that the message of `call` announces, and the rest of its validity.
    fn validity_by_message(&self, world: &World, call: u8) -> Option<u8> {
        let by_message = |number| self.call(number).map(|call| call.by_message);
        match world.mutation {
            Some(Mutation::ValidFromReceipt) => Some(world.ttl),
            Some(Mutation::ValidFromLastCall) => by_message(self.calls.len() as u8),
            Some(Mutation::ValidForTtl) => self.call(call).map(|call| call.by_answer),
            Some(Mutation::OneMessage) => by_message(self.last_null()),
            Some(Mutation::CountsAfterNull) => by_message(call),
            _ if call < self.last_null() => None,
            _ => by_message(call),
        }
    }
}

impl State {
    /// Sends the next QUEUE call: the client asks again, or claims its hold.
    pub fn call(&mut self, world: &World, client: usize) {
        let (by_message, by_answer) = (world.ttl.min(world.ms), world.ttl);
        let calls = &mut self.clients[client].calls;
        calls.push(Call { by_message, by_answer, ..Call::default() });
        let what = What::Call(calls.len() as u8);
        let token = self.clients[client].token(client);
        self.post(Message { token, what });
    }

    pub fn may_call(&self, world: &World, client: usize) -> bool {
        let (behaviour, state) = (world.clients[client], &self.clients[client]);
        let is_allowed = match &state.phase {
            Phase::Waiting => true,
            // Claims once.
            Phase::Holding(holding) => {
                behaviour.claim == Claim::Queue && usize::from(holding.call) == state.calls.len()
            }
            Phase::Done => false,
        };
        is_allowed && state.calls.len() < usize::from(behaviour.calls)
    }

    pub fn extend(&mut self, world: &World, client: usize) {
        self.clients[client].extend_left = Some(world.ttl);
        let token = self.clients[client].token(client);
        self.post(Message { token, what: What::Extend });
    }

    pub fn may_extend(&self, world: &World, client: usize) -> bool {
        let state = &self.clients[client];
        let extends = world.clients[client].claim == Claim::Extend && state.extend_left.is_none();
        extends && matches!(state.phase, Phase::Holding(_))
    }

    /// Ends the wait or the hold.
    pub fn release_by(&mut self, world: &World, client: usize) {
        let token = self.clients[client].token(client);
        self.post(Message { token, what: What::Release });
        self.clients[client].next_wait(world.clients[client].waits);
    }

    pub fn receive(&mut self, world: &World, Message { token, what }: Message) {
        let client = usize::from(token.client);
        if self.clients[client].token(client) != token {
            return;
        }
        match what {
            What::Granted { call, fence } => self.message_received(world, client, call, fence),
            What::Answer { call, fence, ended } => self.call_answered(world, client, call, fence, ended),
            What::ExtendAnswer { is_held, ended } => self.extend_answered(world, client, is_held, ended),
            What::Call(_) | What::Extend | What::Release => {}
        }
    }

    pub fn message_received(&mut self, world: &World, client: usize, call: u8, fence: u8) {
        let state = &mut self.clients[client];
        let validity = state.validity_by_message(world, call).filter(|left| *left > 0);
        if let (Phase::Waiting, Some(left)) = (&state.phase, validity) {
            let (by_message, is_claimed) = (true, false);
            state.phase = Phase::Holding(Holding { fence, left, call, by_message, is_claimed, ended: 0 });
        }
    }

    fn call_answered(&mut self, world: &World, client: usize, number: u8, fence: Option<u8>, ended: u8) {
        let state = &mut self.clients[client];
        let last_null = state.last_null();
        let Some(call) = state.calls.get_mut(usize::from(number) - 1) else { return };
        call.is_null |= fence.is_none();
        call.ended = call.ended.max(ended);
        let by_answer = call.by_answer;
        match (&mut state.phase, fence) {
            (Phase::Waiting, Some(fence)) if by_answer > 0 && number >= last_null => {
                let (left, call, by_message, is_claimed) = (by_answer, number, false, true);
                state.phase = Phase::Holding(Holding { fence, left, call, by_message, is_claimed, ended: 0 });
            }
            (Phase::Holding(holding), Some(fence))
                if fence == holding.fence || world.has(Mutation::FenceNotCompared) =>
            {
                holding.left = holding.left.max(by_answer);
                holding.is_claimed |= number > holding.call;
            }
            // The answer to a later call, or a later fence of the token: the hold has ended.
            (Phase::Holding(holding), _)
                if number > holding.call || fence.is_some_and(|fence| fence > holding.fence) =>
            {
                self.release_by(world, client);
            }
            _ => {}
        }
    }

    fn extend_answered(&mut self, world: &World, client: usize, is_held: bool, ended: u8) {
        let state = &mut self.clients[client];
        let Phase::Holding(holding) = &mut state.phase else { return };
        holding.ended = holding.ended.max(ended);
        if is_held {
            holding.left = holding.left.max(state.extend_left.unwrap_or(0));
            holding.is_claimed = true;
        } else {
            self.release_by(world, client);
        }
    }
}
