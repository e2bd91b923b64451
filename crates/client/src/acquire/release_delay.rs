//! Whether the servers accept the delay of a release (`at_least`): an older server knows no delay, and
//! no server one that is longer than its `dlock.max-ttl`.

use dlock_quorum::{Failure, Refusal, Vote};
use futures_util::future::join_all;
use std::time::Duration;

use crate::clock::now;
use crate::error::AcquireError;
use crate::reading::printable;
use crate::request::{Release, fresh_token};
use crate::service::Service;
use crate::topology::Site;

/// Asks before an acquisition. The error is that of a server that refuses the delay. A server without
/// an answer is skipped: [`confirm`] asks it again.
pub(crate) async fn check(service: &Service, resource: &[u8], delay: Duration) -> Result<(), String> {
    let votes = ask_all(service, resource, delay).await;
    refusal(service, resource, &votes).map_or(Ok(()), Err)
}

/// Returns no error if a majority of the servers has accepted the delay. Asks them once the lock is
/// granted if too few have: those that were down or silent before.
pub(crate) async fn confirm(service: &Service, resource: &[u8], delay: Duration) -> Result<(), AcquireError> {
    let majority = service.quorum.majority();
    let has_accepted = |site: &&Site| site.channel(resource).node().allows_delay(shown(delay));
    if service.sites.iter().filter(has_accepted).count() >= majority {
        return Ok(());
    }
    let votes = ask_all(service, resource, delay).await;
    if votes.iter().filter(|vote| **vote == Vote::Granted(())).count() >= majority {
        return Ok(());
    }
    Err(match refusal(service, resource, &votes) {
        Some(why) => AcquireError::Option(why),
        None => AcquireError::QuorumImpossible {
            resource: printable(resource),
            report: service.report(&service.channels(resource), votes.iter().map(Some)),
        },
    })
}

async fn ask_all(service: &Service, resource: &[u8], delay: Duration) -> Vec<Vote<()>> {
    join_all(service.sites.iter().map(|site| ask(service, site, resource, shown(delay)))).await
}

/// Asks a server by a RELEASE of an unused token, once for each connection.
async fn ask(service: &Service, site: &Site, resource: &[u8], delay: Duration) -> Vote<()> {
    let channel = site.channel(resource);
    if channel.node().allows_delay(delay) {
        return Vote::Granted(());
    }
    let begun = now();
    let probe = Release::new(resource.to_vec(), fresh_token());
    let probe = Release { closed_until: Some(begun + delay), ..probe };
    match channel.ask(&probe.command(begun), None, service.limit).await.released() {
        Vote::Refused(Refusal::NotHeld) => {
            channel.connection().iter().for_each(|connection| connection.note_delay(delay));
            Vote::Granted(())
        }
        vote => vote,
    }
}

/// Returns the delay to ask about: a RELEASE without a delay would prove nothing.
fn shown(delay: Duration) -> Duration {
    delay.max(Duration::from_millis(1))
}

/// Returns the error of the first server that refuses the delay.
fn refusal(service: &Service, resource: &[u8], votes: &[Vote<()>]) -> Option<String> {
    service.sites.iter().zip(votes).find_map(|(site, vote)| match vote {
        Vote::Failed(Failure::Misuse(why)) => Some(format!(
            "a delay after the release requires dlock 0.1.0 or later on every server, and is at most its \
             dlock.max-ttl: {} answers: {}",
            site.channel(resource).node().server_name(),
            why.text
        )),
        _ => None,
    })
}
