//! The masters of a client: which server each member is, the connection to that server, the channel that each
//! hold has to a master, and the messages that masters push.

mod channel;
mod member_list;
mod node;
mod waits;
mod watched;

pub(crate) use channel::{Channel, LateEffect};
pub(crate) use member_list::{MemberList, Voters};
pub(crate) use node::{Node, fresh_backoff};
pub(crate) use watched::Watched;
