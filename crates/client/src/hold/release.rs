//! RELEASE on all masters that may have the hold.

use dlock_quorum::{Member, Refusal, Vote};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

use crate::error::ReleaseError;
use crate::request::Release;
use crate::service::{Channels, Service};
use crate::topology::MAX_DELAYS;

/// The RELEASE requests for one hold. They continue in the background if this is dropped.
pub(crate) struct Releases {
    service: Arc<Service>,
    channels: Channels,
    calls: FuturesUnordered<BoxFuture<'static, (Member, Vote<()>)>>,
    /// Answers by master. `None` stands for a master that cannot have the hold, and so gets no RELEASE.
    votes: Vec<Option<Vote<()>>>,
}

impl Releases {
    /// Sends RELEASE to every master that may have the hold, or may still grant it. Repeats an unconfirmed
    /// RELEASE for the length of `lease`: a hold that is left on one master delays the clients that wait
    /// there.
    pub(crate) fn new(
        service: &Arc<Service>,
        channels: &Channels,
        release: Release,
        lease: Duration,
    ) -> Releases {
        let calls = FuturesUnordered::new();
        let mut votes = Vec::with_capacity(channels.len());
        for (channel, member) in channels.iter().zip(service.quorum.members()) {
            votes.push(channel.may_hold().then_some(Vote::Unknown));
            if channel.may_hold() {
                let (channel, release) = (channel.clone(), release.clone());
                // Spawned on the client's thread, because the user's runtime may end before the release.
                let releases = channel.node().releases.clone();
                let call = service.spawn_cleanup(
                    releases.track_future(async move { (member, channel.release(release, lease).await) }),
                );
                calls.push(call.map(move |ended| ended.unwrap_or((member, Vote::Unknown))).boxed());
            }
        }
        Releases { service: service.clone(), channels: channels.clone(), calls, votes }
    }

    /// Waits until a majority has confirmed the release or no longer can, or until no master that has yet to
    /// answer has answered anything for the time limit of one answer.
    pub(crate) async fn wait_for_majority(mut self) -> Result<(), ReleaseError> {
        let (quorum, limit) = (self.service.quorum, self.service.limit);
        // In the background, the releases are repeated for longer than this limit.
        let (mut time_is_up, mut delays) = (false, 0);
        while self.released() < quorum.majority() && quorum.has_majority_without(self.not_held()) {
            match timeout(limit, self.calls.next()).await {
                Ok(Some((member, vote))) => self.votes[usize::from(member.0)] = Some(vote),
                Ok(None) => break,
                Err(_) if self.is_answering(limit) => {}
                Err(_) if delays < MAX_DELAYS && self.service.background.was_busy(limit).await => delays += 1,
                Err(_) => {
                    time_is_up = true;
                    break;
                }
            }
        }
        if self.released() >= quorum.majority() {
            return Ok(());
        }
        // If the wait ended early, a master without an answer is not silent: it may still answer.
        let time_is_up = time_is_up || self.calls.is_empty();
        let is_reported = |vote: &&Vote<()>| time_is_up || **vote != Vote::Unknown;
        let votes = self.votes.iter().map(|vote| vote.as_ref().filter(is_reported));
        let report = self.service.report(&self.channels, votes);
        if !quorum.has_majority_without(self.not_held()) {
            return Err(ReleaseError::NotHeld(report));
        }
        Err(ReleaseError::Unconfirmed(report))
    }

    /// Returns true if a master that has yet to answer the RELEASE answers other requests: the RELEASE gets
    /// its turn.
    fn is_answering(&self, limit: Duration) -> bool {
        let outstanding =
            self.channels.iter().zip(&self.votes).filter(|(_, vote)| **vote == Some(Vote::Unknown));
        outstanding.map(|(channel, _)| channel).any(|channel| channel.has_answered_within(limit))
    }

    fn released(&self) -> usize {
        self.votes.iter().filter(|vote| **vote == Some(Vote::Granted(()))).count()
    }

    /// The number of masters without the hold, including those that cannot have it.
    fn not_held(&self) -> usize {
        self.votes.iter().filter(|vote| matches!(vote, None | Some(Vote::Refused(Refusal::NotHeld)))).count()
    }
}
