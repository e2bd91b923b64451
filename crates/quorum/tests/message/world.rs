//! A world of the model: one server with one lock, its clients, the messages under way, and how often each
//! fault may happen. The checker searches each [`State`] that the world can reach.

use super::client::Client;
use super::server::Server;
use smallvec::SmallVec;

/// The clients, and the faults that may happen. Times are in ticks.
#[derive(Debug, Clone)]
pub struct World {
    pub clients: Vec<Behaviour>,
    pub ttl: u8,
    /// The `ms` of QUEUE.
    pub ms: u8,
    /// How many messages may be delivered twice: a request that its carrier sends again, an answer, or the
    /// message of a grant.
    pub duplicates: u8,
    /// How many times the server may crash. It restarts at once, with or without its hold, and without its
    /// wait queue.
    pub crashes: u8,
    /// The grace period after a crash.
    pub grace: u8,
    /// How many times an operator may end the hold.
    pub breaks: u8,
    /// How many messages a stranger may publish. The stranger reads the channel, so it knows the messages
    /// that were published before. All messages are grants here: the message of another end shows
    /// no secret, so the stranger cannot make a grant of it.
    pub forgeries: u8,
    /// The rule that clients break, if any.
    pub mutation: Option<Mutation>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Behaviour {
    /// The number of waits, one after the other. Each has a token of its own.
    pub waits: u8,
    /// The greatest number of QUEUE calls of a wait, the claim by QUEUE included.
    pub calls: u8,
    pub claim: Claim,
    /// Whether the client may end a wait, and a hold before its validity ends.
    pub releases: bool,
}

/// The request by which a client claims the grant that a message announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The same ACQUIRE .. QUEUE.
    Queue,
    Extend,
}

/// A rule that clients break. The checker must find the violation of a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// Validity is `now + ttl` at the receipt of the message.
    ValidFromReceipt,
    /// Validity counts from the last call that was sent.
    ValidFromLastCall,
    /// Validity counts for `ttl`, although the lease of the grant ends with the position.
    ValidForTtl,
    /// The calls of a wait have the same message. Validity counts from the last call that was answered null.
    OneMessage,
    /// The message has no secret.
    NoSecret,
    /// All waits of a client have the same secret.
    SecretOfClient,
    /// The calls of a wait have the same secret.
    SecretOfWait,
    /// A message counts although a later call was answered null.
    CountsAfterNull,
    /// The claim counts whatever its fence is.
    FenceNotCompared,
    /// The answer to a claim counts although the validity of the hold has ended.
    CountsAfterValidity,
}

/// A state of a world. The fields `.._left` have the numbers of events that may still happen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State {
    pub server: Server,
    pub clients: SmallVec<[Client; 3]>,
    /// The messages under way, sorted and without duplicates. They arrive in any order. A message that is
    /// lost stays here.
    pub wire: SmallVec<[Message; 8]>,
    pub duplicates_left: u8,
    pub crashes_left: u8,
    pub breaks_left: u8,
    pub forgeries_left: u8,
    /// The calls whose messages were published. Only in a world with forgeries.
    pub published: SmallVec<[(Token, u8); 4]>,
}

/// The client and the number of its wait. Real tokens are 20 random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    pub client: u8,
    pub wait: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    pub token: Token,
    pub what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// ACQUIRE .. QUEUE, with the number of the call in the wait.
    Call(u8),
    Extend,
    Release,
    /// The answer to a call. `fence` is null for a token in the queue.
    Answer {
        call: u8,
        fence: Option<u8>,
        ended: u8,
    },
    ExtendAnswer {
        is_held: bool,
        ended: u8,
    },
    /// The published message of a call.
    Granted {
        call: u8,
        fence: u8,
    },
}

impl World {
    pub fn has(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    pub fn start(&self) -> State {
        State {
            server: Server::default(),
            clients: self.clients.iter().map(|_| Client::default()).collect(),
            wire: SmallVec::new(),
            duplicates_left: self.duplicates,
            crashes_left: self.crashes,
            breaks_left: self.breaks,
            forgeries_left: self.forgeries,
            published: SmallVec::new(),
        }
    }

    /// Whether the stranger can publish the message of this call.
    pub fn can_forge(&self, state: &State, token: Token, call: u8) -> bool {
        let has_seen = |is_same: &dyn Fn(&(Token, u8)) -> bool| state.published.iter().any(is_same);
        match self.mutation {
            Some(Mutation::NoSecret) => true,
            Some(Mutation::SecretOfClient) => has_seen(&|(seen, _)| seen.client == token.client),
            Some(Mutation::SecretOfWait) => has_seen(&|(seen, _)| *seen == token),
            _ => has_seen(&|seen| *seen == (token, call)),
        }
    }

    /// Returns the smaller of the two states that differ only in the numbering of two clients with the same
    /// behaviour. A mutated world has few states, and keeps the numbering, so that its steps can be read.
    pub fn normal_form(&self, state: State) -> State {
        if self.mutation.is_some() || self.clients.len() != 2 || self.clients[0] != self.clients[1] {
            return state;
        }
        let mut renumbered = state.clone();
        renumbered.exchange_clients();
        renumbered.min(state)
    }
}

impl State {
    pub fn post(&mut self, message: Message) {
        if let Err(index) = self.wire.binary_search(&message) {
            self.wire.insert(index, message);
        }
    }

    fn exchange_clients(&mut self) {
        let exchange = |token: &mut Token| token.client = 1 - token.client;
        self.clients.swap(0, 1);
        self.server.hold.iter_mut().for_each(|hold| exchange(&mut hold.token));
        self.server.queue.iter_mut().for_each(|position| exchange(&mut position.token));
        self.wire.iter_mut().for_each(|message| exchange(&mut message.token));
        self.wire.sort_unstable();
        self.published.iter_mut().for_each(|(token, _)| exchange(token));
        self.published.sort_unstable();
    }

    /// Removes messages that can have no effect any more.
    pub fn remove_messages_without_effect(&mut self, world: &World) {
        let State { server, clients, wire, .. } = self;
        let mut active: SmallVec<[Token; 4]> = server.tokens().collect();
        let calls = wire.iter().filter(|message| matches!(message.what, What::Call(_)));
        active.extend(calls.map(|message| message.token));
        wire.retain(|message| {
            let client = &clients[usize::from(message.token.client)];
            match message.what {
                What::Call(_) => true,
                What::Release => active.contains(&message.token),
                What::Extend => active.contains(&message.token) || client.reads(message, world),
                _ => client.reads(message, world),
            }
        });
    }
}
