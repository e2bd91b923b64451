//! An ACQUIRE in the model. Times are in ms. A `delay`, `label` or `owner` of 0 means a request without it.

use dlock_core::{Mode, Reentry};

use super::{Client, Key, Owner, Token};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    pub client: Client,
    pub key: Key,
    pub token: Token,
    pub mode: Mode,
    pub ttl: u64,
    pub reentry: Reentry,
    pub ephemeral: bool,
    pub delay: u64,
    pub label: u8,
    pub owner: Owner,
}

impl Request {
    /// A request without options, with a lease of a second. `Keep` means neither REENTRANT nor DEPTH.
    pub fn new(client: Client, key: Key, token: Token, mode: Mode) -> Request {
        Request {
            client,
            key,
            token,
            mode,
            ttl: 1000,
            reentry: Reentry::Keep,
            ephemeral: false,
            delay: 0,
            label: 0,
            owner: 0,
        }
    }
}
