//! Connections to masters: addresses, sockets, and the reading of replies. This module knows no members and
//! no holds.

mod address;
mod connection;
mod reply;
mod stream;

pub(crate) use address::Address;
pub(crate) use connection::{Command, ConnectError, Connection};
pub(crate) use reply::{Reply, WRONG_TYPE, wrong_type};
