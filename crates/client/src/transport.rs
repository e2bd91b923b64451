//! Connections to masters: addresses, sockets, and the reading of replies.

mod address;
mod connection;
mod reply;
mod sentinel;
mod stream;
mod succession;

pub(crate) use address::{Address, ClusterAddress, SiteAddress};
pub(crate) use connection::{Asking, Command, ConnectError, Connection, Expected, OfMaster};
pub(crate) use reply::{Redirect, Reply, wrong_type};
pub(crate) use sentinel::MasterLocator;
