//! The masters of a client (the members of its quorum, or its only server): which server is behind each
//! address, the connections to these servers, the channel that each hold has to each master, and the messages
//! that masters push.

mod channel;
mod member_list;
mod node;
mod waits;
mod watched;

pub(crate) use channel::{Channel, LateEffect};
pub(crate) use member_list::{MemberList, Voters};
pub(crate) use node::{Node, fresh_backoff};
pub(crate) use watched::Watched;
