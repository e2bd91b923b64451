//! Connections to masters: addresses, sockets, and the reading of replies.

mod address;
mod connection;
mod reply;
mod stream;

pub(crate) use address::Address;
pub(crate) use connection::{Command, ConnectError, Connection};
pub(crate) use reply::{Reply, wrong_type};
