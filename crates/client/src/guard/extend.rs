//! EXTEND everywhere: carries the messages of [`Extension`].

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Cmd;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::now;
use crate::error::ExtendError;
use crate::lease::{Instant, Lease};
use crate::node::Lane;
use crate::quorum::{Extended, Extension, Member, Outgoing, Sends, Vote};
use crate::service::{Lanes, Service};

/// Asks for the lease until it is decided, no answer being waited for longer than `limit`. What is still to be answered
/// then is heard in the background.
pub(crate) async fn extend(
    service: &Arc<Service>,
    lanes: &Lanes,
    command: Cmd,
    lease: Lease,
    limit: Duration,
    (mut extension, sends): (Extension, Sends),
) -> Result<Instant, ExtendError> {
    let command = Arc::new(command);
    let asked = sends.iter().map(|Outgoing { to, .. }| {
        let lane = lanes[usize::from(to.0)].clone();
        Box::pin(ask(*to, lane, command.clone(), lease, limit))
    });
    let mut calls: FuturesUnordered<_> = asked.collect();
    let mut extended = Extended::Open;
    while extended == Extended::Open
        && let Some((member, vote)) = calls.next().await
    {
        extended = extension.answered(member, vote, now());
    }
    service.begin(async move { while calls.next().await.is_some() {} });
    let report = || service.report(lanes, extension.votes());
    match extended {
        Extended::Until(valid_until) => Ok(valid_until),
        Extended::Over => Err(ExtendError::Lost(report())),
        Extended::Kept | Extended::Open => Err(ExtendError::Unconfirmed(report())),
    }
}

async fn ask(
    to: Member,
    lane: Arc<Lane>,
    command: Arc<Cmd>,
    lease: Lease,
    limit: Duration,
) -> (Member, Vote<()>) {
    let limit = limit.min(lane.node.limit).min(lease.ttl());
    let vote = lane.ask(&command, Some(lease.ttl()), limit).await.extended();
    lane.note(&vote);
    match vote {
        Vote::Granted(()) if !lane.is_certain(lease.ttl()) => (to, Vote::Unknown),
        vote => (to, vote),
    }
}
