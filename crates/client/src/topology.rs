//! The members of a client's lock service, each with one vote: a [`Site`] is one server, the master that
//! sentinels name, or a cluster. A [`Node`] is one server process with its connections. The requests of a
//! hold to a member go through a [`Channel`], which follows redirects.

mod channel;
mod cluster;
mod member_list;
mod node;
mod replicas;
mod site;
mod slot;
mod waits;
mod watched;

pub(crate) use channel::{Channel, Home, LateEffect, MAX_DELAYS};
pub(crate) use member_list::{MemberList, Voters};
pub(crate) use node::{Node, Settings, fresh_backoff};
pub(crate) use replicas::replicas_of;
pub(crate) use site::Site;
pub(crate) use waits::Message;
pub(crate) use watched::Watched;
