//! The server with one lock: its hold and its wait queue. It carries out the commands as `docs/commands.md`
//! specifies them, in as little code as possible.

use super::world::{Message, State, Token, What, World};
use smallvec::SmallVec;

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Server {
    pub hold: Option<Hold>,
    pub queue: SmallVec<[Position; 2]>,
    /// The greatest fence that the server has issued. It survives a crash (`dlock.fence-mark`).
    pub greatest_fence: u8,
    /// The rest of the grace period. The server grants nothing meanwhile.
    pub grace_left: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hold {
    pub token: Token,
    pub fence: u8,
    /// The rest of the lease.
    pub left: u8,
}

/// A position in the wait queue.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub token: Token,
    /// The call with the message of this position: the one that the server read last.
    pub call: u8,
    pub left: u8,
}

impl Server {
    pub fn tokens(&self) -> impl Iterator<Item = Token> {
        self.hold.iter().map(|hold| hold.token).chain(self.queue.iter().map(|position| position.token))
    }

    fn hold_of(&mut self, token: Token) -> Option<&mut Hold> {
        self.hold.as_mut().filter(|hold| hold.token == token)
    }

    fn grant(&mut self, token: Token, lease: u8) -> u8 {
        self.greatest_fence += 1;
        self.hold = Some(Hold { token, fence: self.greatest_fence, left: lease });
        self.greatest_fence
    }
}

impl State {
    pub fn carry_out(&mut self, world: &World, Message { token, what }: Message) {
        let what = match what {
            What::Call(call) => self.queue(world, token, call),
            What::Extend => self.extend_lease(world, token),
            _ => return self.release(world, token),
        };
        self.post(Message { token, what });
    }

    fn queue(&mut self, world: &World, token: Token, call: u8) -> What {
        let server = &mut self.server;
        if let Some(hold) = server.hold_of(token) {
            hold.left = hold.left.max(world.ttl);
            return What::Answer { call, fence: Some(hold.fence), ended: hold.fence - 1 };
        }
        if server.hold.is_none() && server.queue.is_empty() && server.grace_left == 0 {
            let fence = server.grant(token, world.ttl);
            return What::Answer { call, fence: Some(fence), ended: fence - 1 };
        }
        let position = Position { token, call, left: world.ms };
        match server.queue.iter_mut().find(|position| position.token == token) {
            Some(same) => *same = position,
            None => server.queue.push(position),
        }
        What::Answer { call, fence: None, ended: server.greatest_fence }
    }

    fn extend_lease(&mut self, world: &World, token: Token) -> What {
        match self.server.hold_of(token) {
            Some(hold) => {
                hold.left = hold.left.max(world.ttl);
                What::ExtendAnswer { is_held: true, ended: hold.fence - 1 }
            }
            None => What::ExtendAnswer { is_held: false, ended: self.server.greatest_fence },
        }
    }

    fn release(&mut self, world: &World, token: Token) {
        self.server.queue.retain(|position| position.token != token);
        if self.server.hold_of(token).is_some() {
            self.end_hold(world);
        }
    }

    pub fn end_hold(&mut self, world: &World) {
        self.server.hold = None;
        self.serve(world);
    }

    /// Grants a free lock to the head of the queue. The lease ends with the position, or with the ttl.
    fn serve(&mut self, world: &World) {
        if self.server.hold.is_some() || self.server.grace_left > 0 || self.server.queue.is_empty() {
            return;
        }
        let Position { token, call, left } = self.server.queue.remove(0);
        let fence = self.server.grant(token, left.min(world.ttl));
        self.post(Message { token, what: What::Granted { call, fence } });
        if world.forgeries > 0
            && let Err(index) = self.published.binary_search(&(token, call))
        {
            self.published.insert(index, (token, call));
        }
    }

    pub fn tick_server(&mut self, world: &World) {
        let server = &mut self.server;
        server.grace_left = server.grace_left.saturating_sub(1);
        server.queue.iter_mut().for_each(|position| position.left -= 1);
        server.queue.retain(|position| position.left > 0);
        server.hold.iter_mut().for_each(|hold| hold.left -= 1);
        server.hold = server.hold.take().filter(|hold| hold.left > 0);
        self.serve(world);
    }

    /// Kills the server and starts it again at once. A server with an append only file knows its hold again.
    pub fn crash(&mut self, world: &World, forgets: bool) {
        self.server.queue.clear();
        self.server.grace_left = world.grace;
        if forgets {
            self.server.hold = None;
        }
    }
}
