//! Takes over a hold that was acquired elsewhere.

use dlock_protocol::Token;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::deadline::Deadline;
use crate::acquire::hold::hold;
use crate::acquire::round::{Round, Start};
use crate::error::ExtendError;
use crate::guard::Guard;
use crate::guard::renewal::Renewal;
use crate::quorum::{Plan, Refusal, Vote};
use crate::request::LockRequest;
use crate::service::Service;

/// A round in which each master is asked for the fence of the hold instead of a hold, and which takes nothing
/// back: until it succeeds, the hold is somebody else's.
pub(crate) async fn adopt(
    service: &Arc<Service>,
    resource: &[u8],
    token: &Token,
    ttl: Duration,
) -> Result<Guard, ExtendError> {
    let (lease, counted) = service.lease_for(ttl).map_err(ExtendError::Option)?;
    let asked = dlock_protocol::LockRequest::new(token.clone(), counted);
    let request = LockRequest { resource: resource.to_vec(), asked };
    let channels = service.channels();
    channels.iter().for_each(|channel| channel.assume_held());
    let (quorum, retries) = (service.quorum, service.retry.times);
    let plan = Plan { quorum, lease, fenced: true, retries };
    let round = Round::begin(service, plan, request, channels, &[], Start::Adopting, Deadline::NoWait);
    match service.background.carry_out(round.run()).await {
        Ok(new) => {
            let renewal = Renewal { limit: Some(Duration::MAX), notice: None, on_lost: None };
            Ok(Guard::new(hold(service, lease, renewal, new)))
        }
        Err(failed) => {
            let votes = || failed.votes.iter().flatten();
            let not_held = votes().filter(|vote| **vote == Vote::Refused(Refusal::NotHeld)).count();
            Err(match failed.report {
                report if quorum.is_lost(not_held) => ExtendError::Lost(report),
                report if quorum.is_misuse(votes()) => ExtendError::Misuse(report),
                report => ExtendError::Unconfirmed(report),
            })
        }
    }
}
