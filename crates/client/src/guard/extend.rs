//! EXTEND on all masters: carries the messages of [`Extension`].

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use redis::Cmd;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::now;
use crate::error::ExtendError;
use crate::lease::{Instant, Lease};
use crate::node::Channel;
use crate::quorum::{Extended, Extension, Member, Outgoing, Sends, Vote};
use crate::service::{Channels, Service};

/// Calls whose answers no longer decide anything. Dropping this cancels those that have not left yet.
pub(crate) type PendingCalls = FuturesUnordered<BoxFuture<'static, ()>>;

/// Asks for the lease until it is decided; waits for each answer at most `limit`.
pub(crate) async fn extend(
    service: &Arc<Service>,
    channels: &Channels,
    command: Cmd,
    lease: Lease,
    limit: Duration,
    (mut extension, sends): (Extension, Sends),
) -> (Result<Instant, ExtendError>, PendingCalls) {
    let command = Arc::new(command);
    let asked = sends.iter().map(|Outgoing { to, .. }| {
        let channel = channels[usize::from(to.0)].clone();
        Box::pin(ask(*to, channel, command.clone(), lease, limit))
    });
    let mut calls: FuturesUnordered<_> = asked.collect();
    let mut extended = Extended::Open;
    while extended == Extended::Open
        && let Some((member, vote)) = calls.next().await
    {
        extended = extension.answered(member, vote, now());
    }
    let report = || service.report(channels, extension.votes());
    let extended = match extended {
        Extended::Until(valid_until) => Ok(valid_until),
        Extended::Lost => Err(ExtendError::Lost(report())),
        _ if service.quorum.is_misuse(extension.votes().flatten()) => Err(ExtendError::Misuse(report())),
        Extended::Unconfirmed | Extended::Open => Err(ExtendError::Unconfirmed(report())),
    };
    (extended, calls.into_iter().map(|call| call.map(drop).boxed()).collect())
}

async fn ask(
    to: Member,
    channel: Arc<Channel>,
    command: Arc<Cmd>,
    lease: Lease,
    limit: Duration,
) -> (Member, Vote<()>) {
    let limit = limit.min(channel.node.limit).min(lease.ttl());
    let vote = channel.ask(&command, Some(lease.ttl()), limit).await.extended();
    channel.note(&vote);
    match vote {
        Vote::Granted(()) if !channel.is_certain(lease.ttl()) => (to, Vote::Unknown),
        vote => (to, vote),
    }
}
