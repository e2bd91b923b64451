//! RELEASE on all masters that may have the hold.

use dlock_quorum::{Member, Refusal, Vote};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use redis::Cmd;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

use crate::error::ReleaseError;
use crate::service::{Channels, Service};

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
        command: Cmd,
        lease: Duration,
    ) -> Releases {
        let command = Arc::new(command);
        let calls = FuturesUnordered::new();
        let mut votes = Vec::with_capacity(channels.len());
        for (channel, member) in channels.iter().zip(service.quorum.members()) {
            votes.push(channel.may_hold().then_some(Vote::Unknown));
            if channel.may_hold() {
                let (channel, command) = (channel.clone(), command.clone());
                // Spawned on the client's thread, because the user's runtime may end before the release.
                let releases = channel.node.releases.clone();
                let call = service.spawn_cleanup(
                    releases.track_future(async move { (member, channel.release(command, lease).await) }),
                );
                calls.push(call.map(move |ended| ended.unwrap_or((member, Vote::Unknown))).boxed());
            }
        }
        Releases { service: service.clone(), channels: channels.clone(), calls, votes }
    }

    /// Waits until a majority has confirmed the release or no longer can, at most for the time limit of one
    /// answer.
    pub(crate) async fn wait_for_majority(mut self) -> Result<(), ReleaseError> {
        let (quorum, limit) = (self.service.quorum, self.service.nodes[0].limit);
        // In the background, the releases are repeated for longer than this limit.
        let decided = timeout(limit, async {
            while self.released() < quorum.majority() && quorum.has_majority_without(self.not_held()) {
                let Some((member, vote)) = self.calls.next().await else { return };
                self.votes[usize::from(member.0)] = Some(vote);
            }
        })
        .await;
        if self.released() >= quorum.majority() {
            return Ok(());
        }
        // If the wait ended early, a master without an answer is not silent: it may still answer.
        let time_is_up = decided.is_err() || self.calls.is_empty();
        let is_reported = |vote: &&Vote<()>| time_is_up || **vote != Vote::Unknown;
        let votes = self.votes.iter().map(|vote| vote.as_ref().filter(is_reported));
        let report = self.service.report(&self.channels, votes);
        if !quorum.has_majority_without(self.not_held()) {
            return Err(ReleaseError::NotHeld(report));
        }
        Err(ReleaseError::Unconfirmed(report))
    }

    fn released(&self) -> usize {
        self.votes.iter().filter(|vote| **vote == Some(Vote::Granted(()))).count()
    }

    /// The number of masters without the hold, including those that cannot have it.
    fn not_held(&self) -> usize {
        self.votes.iter().filter(|vote| matches!(vote, None | Some(Vote::Refused(Refusal::NotHeld)))).count()
    }
}
