//! The masters of a client: the server of each member, its shared connection, the channel of each hold to it,
//! and the messages that it pushes.

mod channel;
mod member_list;
mod node;
mod waits;
mod watched;

pub(crate) use channel::{Channel, LateEffect};
pub(crate) use member_list::{MemberList, Voters};
pub(crate) use node::{Node, fresh_backoff};
pub(crate) use watched::Watched;
