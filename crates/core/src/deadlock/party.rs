//! Who waits for whom: tokens, and owners with all their tokens.

use std::iter;

use dlock_protocol::{LockRequest, OwnerId, Token};

use crate::queue::{Waiter, Waiting};

/// Whoever gives back all it holds at once, when it has all it waits for.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Party {
    /// A token without an owner.
    Token(Token),
    /// It also waits for what those within it wait for.
    Owner(OwnerId),
}

impl Party {
    pub fn new(token: &Token, owner: Option<&OwnerId>) -> Party {
        owner.map_or_else(|| Party::Token(token.clone()), |owner| Party::Owner(owner.clone()))
    }

    pub fn of(request: &LockRequest) -> Party {
        Party::new(&request.token, request.owner.as_ref())
    }

    /// What is shown of it.
    pub fn shown(&self) -> &Token {
        match self {
            Party::Token(token) => token,
            Party::Owner(owner) => owner.as_token(),
        }
    }

    /// Whether it is this one, or within it.
    pub(super) fn is_within(&self, other: &Party) -> bool {
        match (self, other) {
            (Party::Owner(owner), Party::Owner(other)) => owner.is_within(other),
            _ => self == other,
        }
    }

    pub(super) fn around(&self) -> impl Iterator<Item = Party> + use<'_> {
        let owner = if let Party::Owner(owner) = self { Some(owner) } else { None };
        owner.into_iter().flat_map(OwnerId::around).map(Party::Owner)
    }

    /// What it waits for, and what those within it do.
    pub(super) fn waits<'a>(&self, waiting: &'a Waiting) -> Box<dyn Iterator<Item = &'a Waiter> + 'a> {
        match self {
            Party::Token(_) => self.own_waits(waiting),
            Party::Owner(owner) => Box::new(self.own_waits(waiting).chain(waiting.inside_owner(owner))),
        }
    }

    /// What it waits for, and what it is within does.
    pub(super) fn waits_or_around<'a>(&'a self, waiting: &'a Waiting) -> impl Iterator<Item = &'a Waiter> {
        self.around().chain(iter::once(self.clone())).flat_map(|party| party.own_waits(waiting))
    }

    fn own_waits<'a>(&self, waiting: &'a Waiting) -> Box<dyn Iterator<Item = &'a Waiter> + 'a> {
        match self {
            Party::Token(token) => {
                Box::new(waiting.of_token(token.as_bytes()).filter(|waiter| waiter.request.owner.is_none()))
            }
            Party::Owner(owner) => Box::new(waiting.of_owner(owner)),
        }
    }
}
