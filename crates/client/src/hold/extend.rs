//! Sends the requests of an [`Extension`]: EXTEND to all masters, ACQUIRE to masters that forgot the hold.

use dlock_protocol::{Mode, Ttl};
use dlock_quorum::{Extended, Extension, Instant, Lease, Member, Outgoing, Sends, Vote};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, select_all};
use redis::{Cmd, Pipeline};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::now;
use crate::error::ExtendError;
use crate::request::LockRequest;
use crate::service::{Channels, Service};
use crate::topology::{Channel, LateEffect, Voters};

/// Calls that continue after the outcome of the extension is decided. Dropping this cancels the calls that
/// were not sent yet.
pub(crate) type PendingCalls = BoxFuture<'static, ()>;

/// A call to a master. Returns the answer to an EXTEND. Returns `None` for the ACQUIRE of a [`Restore`], and
/// for a second EXTEND that failed too. An extension has few calls, so polling all of them after each answer
/// costs less than tracking which one is ready.
type Call = BoxFuture<'static, Option<(Member, Vote<()>)>>;

/// The request for a hold that a master has forgotten.
pub(crate) struct Restore {
    pub(crate) request: Arc<LockRequest>,
    pub(crate) mode: Mode,
    pub(crate) ttl: Ttl,
}

impl Restore {
    /// Returns an ACQUIRE that joins the queue, because other clients may already hold the lock at this
    /// master, or wait for it. The next extension finds out whether the master has granted the ACQUIRE. If
    /// not, another ACQUIRE keeps the position in the queue.
    fn command(&self) -> Cmd {
        let mut request = self.request.in_mode(self.mode);
        request.options.ttl = self.ttl;
        request.queue(request.ttl(), None)
    }
}

/// Asks all masters for the lease until the outcome is decided, and waits for each answer at most `limit`.
pub(crate) async fn extend(
    service: &Arc<Service>,
    channels: &Channels,
    command: Pipeline,
    restore: Option<Restore>,
    lease: Lease,
    limit: Duration,
    (mut extension, sends): (Extension, Sends),
) -> (Result<Instant, ExtendError>, PendingCalls) {
    let request = ExtendRequest { channels: channels.clone(), command, voters: Voters::default(), lease };
    let request = Arc::new(request);
    let call = |sent: &Outgoing| request.clone().ask(sent.to, limit).map(Some).boxed();
    let mut calls: Vec<Call> = sends.iter().map(call).collect();
    let mut extended = Extended::Open;
    while extended == Extended::Open && !calls.is_empty() {
        let (answer, _, others) = select_all(calls).await;
        calls = others;
        if let Some((member, vote)) = answer {
            extended = extension.answered(member, vote, now());
        }
    }
    let report = || service.report(channels, extension.votes());
    let extended = match extended {
        Extended::Until(valid_until) => Ok(valid_until),
        Extended::Lost => Err(ExtendError::Lost(report())),
        _ if service.quorum.is_misuse(extension.votes().flatten()) => Err(ExtendError::Misuse(report())),
        Extended::Unconfirmed | Extended::Open => Err(ExtendError::Unconfirmed(report())),
    };
    (extended, finish(request, extension, calls, restore).boxed())
}

/// Waits for the other answers once the outcome is decided. With `restore`, asks masters that have forgotten
/// the hold for it again.
async fn finish(
    request: Arc<ExtendRequest>,
    mut extension: Extension,
    mut calls: Vec<Call>,
    restore: Option<Restore>,
) {
    let must_ask_again = |vote: &Vote<()>| restore.is_some() && matches!(vote, Vote::Failed(_));
    // A master that could not be reached may have restarted without the hold. The client asks it again as
    // soon as it can be reached, and not only for the next extension: if another master restarted before that
    // extension, the hold could lose its majority.
    let again = |to: Member| request.clone().ask_once_reached(to).boxed();
    let unreached = extension.votes().zip(0..).filter(|(vote, _)| vote.is_some_and(must_ask_again));
    calls.extend(unreached.map(|(_, to)| again(Member(to))));
    loop {
        for Outgoing { to, .. } in extension.restore(now()) {
            let channel = request.channel(to);
            // A hold that an operator or another client has ended at this master stays ended.
            if let Some(restore) = restore.as_ref().filter(|_| channel.has_forgotten(request.lease.ttl())) {
                calls.push(restore_hold(channel.clone(), restore.command()).map(|()| None).boxed());
            }
        }
        if calls.is_empty() {
            return;
        }
        let (answer, _, others) = select_all(calls).await;
        calls = others;
        match answer {
            Some((to, vote)) if must_ask_again(&vote) => calls.push(again(to)),
            Some((to, vote)) => _ = extension.answered(to, vote, now()),
            None => {}
        }
    }
}

async fn restore_hold(channel: Arc<Channel>, command: Cmd) {
    // The master may grant the hold at any time from now on.
    channel.assume_queued();
    let vote = channel.ask(&command, Some(LateEffect::Hold), channel.node().limit).await.acquired();
    if matches!(vote, Vote::Granted(_)) {
        channel.note(&vote);
    }
}

/// The EXTEND of one extension, the same for each master.
struct ExtendRequest {
    channels: Channels,
    command: Pipeline,
    voters: Voters,
    lease: Lease,
}

impl ExtendRequest {
    fn channel(&self, of: Member) -> &Arc<Channel> {
        &self.channels[usize::from(of.0)]
    }

    async fn ask(self: Arc<Self>, to: Member, limit: Duration) -> (Member, Vote<()>) {
        let (channel, ttl) = (self.channel(to), self.lease.ttl());
        let limit = limit.min(channel.node().limit).min(ttl);
        let (reply, server) = channel.ask_server(&self.command, Some(LateEffect::Lease(ttl)), limit).await;
        let vote = reply.extended();
        channel.note(&vote);
        match vote {
            // An earlier EXTEND for a shorter lease has no answer. It may still arrive, and shorten the
            // lease.
            Vote::Granted(()) if !channel.lease_is_certain(ttl) => (to, Vote::Unknown),
            vote => (to, self.voters.admit(to, server, vote)),
        }
    }

    /// Waits for the next attempt to connect to a master that could not be reached, then asks the master.
    /// Returns `None` if the attempt or the request fails, so that the caller does not ask a third time.
    async fn ask_once_reached(self: Arc<Self>, to: Member) -> Option<(Member, Vote<()>)> {
        if !self.channel(to).node().wait_until_reached().await {
            return None;
        }
        Some(self.ask(to, Duration::MAX).await).filter(|(_, vote)| !matches!(vote, Vote::Failed(_)))
    }
}
