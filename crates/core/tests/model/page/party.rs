//! Whose tokens are.

use super::{Hold, Request, Token};

/// 0: none. The second is within the first.
pub type Owner = u8;

/// Who gives everything back at once: a token without an owner, or an owner.
pub type Party = u8;

pub const OWNERS: [&str; 4] = ["", "o", "o/p", "q"];

impl Hold {
    pub fn party(&self) -> Party {
        party(self.token, self.owner)
    }
}

impl Request {
    pub fn party(&self) -> Party {
        party(self.token, self.owner)
    }
}

fn party(token: Token, owner: Owner) -> Party {
    if owner == 0 { token } else { 100 + owner }
}

pub fn is_within(one: Party, other: Party) -> bool {
    one == other || (one, other) == (102, 101)
}
