//! Connections to masters: addresses, sockets, and what a reply says. Knows nothing of locks, members or
//! holds.

mod address;
mod connection;
mod reply;
mod stream;

pub(crate) use address::Address;
pub(crate) use connection::{Command, ConnectError, Connection};
pub(crate) use reply::{Reply, WRONG_TYPE, wrong_type};
