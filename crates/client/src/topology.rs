//! The masters of a client: the members of its quorum, or its only server. This module connects to them,
//! records which server is behind each address, and reads the messages that they push. The requests of a hold
//! to a master go through a [`Channel`].

mod channel;
mod member_list;
mod node;
mod waits;
mod watched;

pub(crate) use channel::{Channel, LateEffect, MAX_DELAYS};
pub(crate) use member_list::{MemberList, Voters};
pub(crate) use node::{Node, fresh_backoff};
pub(crate) use waits::Message;
pub(crate) use watched::Watched;
