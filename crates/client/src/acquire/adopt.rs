//! Takes over a hold that was acquired elsewhere.

use dlock_protocol::{Mode, Token};
use dlock_quorum::{AttemptOptions, Deadline, FailureReason, Plan};
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::driver::{Acquisition, Unacquired, begin_hold};
use crate::error::{ExtendError, NodeState};
use crate::hold::guard::Guard;
use crate::hold::renewal::Renewal;
use crate::reading::{self, printable};
use crate::request::{self, LockRequest, MAX_HOLDERS};
use crate::service::Service;

/// Asks each master for the fence of the existing hold. Then sends the greatest fence and the new lease to
/// the masters (CONFIRM). If the adoption fails, the hold still belongs to its previous owner, so nothing is
/// released.
pub(crate) async fn adopt(
    service: &Arc<Service>,
    resource: &[u8],
    token: &Token,
    ttl: Duration,
) -> Result<Guard, ExtendError> {
    let (lease, wire_ttl) = service.lease_for(ttl).map_err(ExtendError::Option)?;
    let quorum = service.quorum;
    let acquisition = Acquisition {
        service: service.clone(),
        resource: resource.to_vec(),
        options: dlock_protocol::LockRequest::new(Some(token.clone()), wire_ttl),
        attempt_options: AttemptOptions {
            plan: Plan { quorum, lease, fenced: true, retries: service.retry.times },
            first_pause: service.retry.pause,
            deadline: Deadline::NoWait,
            one_round: true,
            adopts: true,
        },
        at_least: None,
        release_delay: None,
        owner_may_hold: Arc::default(),
        on_position: None,
        on_outage: None,
    };
    match service.background.run_with_timers(acquisition.run()).await {
        Ok(mut new) => {
            // The lease already runs, and renewal begins only after the masters have answered here. So each
            // master gets at most a quarter of the lease.
            let limit = lease.ttl() / 4;
            if let Some(mode) = mode_of_hold(service, &new.request, limit).await {
                new.request = Arc::new(new.request.in_mode(mode));
                // A master that has forgotten the hold gets an ACQUIRE that restores the hold in this mode.
                new.restores = true;
            }
            let renewal = Renewal { renews: true, max_hold: Duration::MAX, notice: None, on_lost: None };
            let share = begin_hold(service, lease, renewal, new);
            // If the user's runtime was blocked for longer than the lease, the hold is already lost.
            if share.0.state().loss.is_some() {
                share.0.end_without_release();
                return Err(ExtendError::Lost(service.empty_report()));
            }
            Ok(Guard::new(share))
        }
        Err(Unacquired { reason, report, .. }) => {
            let not_held = report.0.iter().filter(|master| master.state == NodeState::NotHeld).count();
            Err(match reason {
                _ if !quorum.has_majority_without(not_held) => ExtendError::Lost(report),
                FailureReason::Misuse => ExtendError::Misuse(report),
                _ => ExtendError::Unconfirmed(report),
            })
        }
    }
}

/// Returns the mode of the hold. One master that shows a shared hold is enough for that mode, because a
/// downgrade may not have reached the others. The mode is exclusive only if a majority shows it. `None` means
/// that it is unknown. Each master has at most `limit` to answer.
async fn mode_of_hold(service: &Service, request: &LockRequest, limit: Duration) -> Option<Mode> {
    let (question, token) =
        (&request::inspect(&request.resource, MAX_HOLDERS), &printable(request.token.as_bytes()));
    let calls = service.sites.iter().map(|site| async move {
        let channel = site.channel(&request.resource);
        let answer = channel.ask(question, None, service.limit.min(limit)).await;
        let seen = answer.read(reading::inspection).ok()??;
        seen.holders.iter().any(|holder| holder.token == *token).then_some(seen.mode)
    });
    let modes: Vec<String> =
        service.background.run_with_timers(join_all(calls)).await.into_iter().flatten().collect();
    let count_of = |mode: Mode| modes.iter().filter(|shown| *shown == mode.word()).count();
    if count_of(Mode::Shared) > 0 {
        return Some(Mode::Shared);
    }
    (count_of(Mode::Exclusive) >= service.quorum.majority()).then_some(Mode::Exclusive)
}
