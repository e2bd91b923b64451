//! The renewal task of a hold: renews the lease, and reports a loss.

use std::sync::Arc;
use std::time::Duration;

use dlock_quorum::Instant;
use tracing::{debug, warn};

use crate::clock::{now, sleep_until};
use crate::error::{ExtendError, Lost, Report};
use crate::hold::Hold;
use crate::wait::Backoff;

/// The time of a renewal is rounded down to a multiple of `ttl / RENEWAL_INSTANTS`. All holds that are
/// renewed at one instant share the writes and reads of the connection, and wake its thread once. Renewed one
/// by one, ten thousand holds take several times the processor time.
const RENEWAL_INSTANTS: u32 = 128;

/// Settings of a renewal.
pub(crate) struct Renewal {
    /// Whether the lease is renewed.
    pub(crate) renews: bool,
    /// How long after the acquisition the hold is declared lost, whatever is left of its lease.
    pub(crate) max_hold: Duration,
    /// How long before the end of its validity the hold is declared lost. `None` means a tenth of the ttl.
    pub(crate) notice: Option<Duration>,
    pub(crate) on_lost: Option<OnLost>,
}

/// Called when a hold is lost.
pub(crate) type OnLost = Arc<dyn Fn(&Lost) + Send + Sync>;

impl Renewal {
    /// Returns when a hold with this validity is declared lost.
    fn lost_at(&self, valid_until: Instant, ttl: Duration) -> Instant {
        valid_until.saturating_sub(self.notice.map_or(ttl / 10, |notice| notice.min(ttl / 2)))
    }
}

/// Renews the hold until it ends or is lost. `is_unclaimed` means that the hold is known by a message only,
/// so its first renewal is due at once.
pub(crate) async fn renew(hold: Arc<Hold>, renewal: Renewal, is_unclaimed: bool) {
    // The short validity of an unclaimed hold; `None` once the hold is claimed.
    let mut unclaimed = is_unclaimed.then(|| hold.state().valid_until.saturating_since(now()));
    let why = tokio::select! {
        biased;
        () = hold.ended.cancelled() => None,
        // Keeps polling the calls that remain after a majority has decided a request. Never returns.
        () = hold.drive_pending() => None,
        // An extension or a change of mode may find the loss first.
        why = hold.lost() => Some(why),
        () = hold.disconnected() => Some(Lost::Disconnected),
        report = hold.taken_away() => Some(Lost::TakenAway(report)),
        why = renew_lease(&hold, &renewal, &mut unclaimed) => Some(why),
    };
    // From here on, no task polls these calls, and `flush` must not wait for them.
    *hold.pending.lock() = None;
    let Some(why) = why else { return };
    hold.lose(why);
    if unclaimed.is_some() {
        hold.release_unclaimed();
    }
    // `lose` does not replace an earlier reason.
    if let Some(why) = hold.state().loss {
        warn!(%why, "lost");
        renewal.on_lost.iter().for_each(|on_lost| on_lost(&why));
    }
}

/// Renews the lease after each third of it, unless renewal is off. An unclaimed hold is claimed at once, also
/// without renewal, which sets its whole lease. Returns when the hold is lost.
async fn renew_lease(hold: &Hold, renewal: &Renewal, unclaimed: &mut Option<Duration>) -> Lost {
    let ends_at = now() + renewal.max_hold;
    let mut failures = Failures::default();
    loop {
        let state = hold.state();
        let ttl = state.lease.ttl().min(unclaimed.unwrap_or(Duration::MAX));
        let lost_at = match *unclaimed {
            // The requested notice may be longer than this validity.
            Some(validity) => state.valid_until.saturating_sub(validity / 4),
            None => renewal.lost_at(state.valid_until, ttl),
        };
        let max_hold_ends_first = ends_at <= lost_at;
        let lost_at = lost_at.min(ends_at);
        let third_ends_at = state.valid_until.saturating_sub(ttl / 3 * 2).round_down(ttl / RENEWAL_INSTANTS);
        // `None` without renewal.
        let due = match unclaimed {
            Some(_) => Some(failures.retry_at.unwrap_or_else(now)),
            None => renewal.renews.then(|| failures.retry_at.unwrap_or(third_ends_at)),
        };
        tokio::select! {
            biased;
            () = hold.changed.notified() => {
                failures = Failures::default();
                continue;
            }
            () = hold.sleep_until(due.unwrap_or(lost_at).min(lost_at)) => {}
        }
        if now() >= lost_at {
            return match failures.last {
                _ if max_hold_ends_first => Lost::Ended,
                Some(report) => Lost::NotRenewed(report),
                // A renewal was due, but did not end in time.
                None if due.is_some_and(|due| due < lost_at) => Lost::NotRenewed(hold.service.empty_report()),
                None => Lost::Ended,
            };
        }
        if due.is_none_or(|due| now() < due) {
            continue;
        }
        // Half of the time left, so that another try is possible.
        let limit = lost_at.saturating_since(now()) / 2;
        let renewed = tokio::select! {
            biased;
            renewed = hold.renew_or_claim(unclaimed.is_some(), limit) => renewed,
            () = sleep_until(lost_at) => continue,
        };
        match renewed {
            Ok(_) => {
                debug!(?ttl, "renewed");
                (failures, *unclaimed) = (Failures::default(), None);
            }
            Err(ExtendError::Lost(_)) => return hold.lost().await,
            Err(ExtendError::Unconfirmed(report) | ExtendError::Misuse(report)) => {
                warn!(%report, "not renewed");
                failures.note(report, ttl);
            }
            // Not reached: the call that set this lease has checked the ttl.
            Err(ExtendError::Option(_)) => return Lost::Ended,
        }
    }
}

/// The failed renewals since the last successful one.
#[derive(Default)]
struct Failures {
    last: Option<Report>,
    backoff: Option<Backoff>,
    retry_at: Option<Instant>,
}

impl Failures {
    fn note(&mut self, report: Report, ttl: Duration) {
        self.last = Some(report);
        let backoff = self.backoff.get_or_insert_with(|| Backoff::new(ttl / 30, ttl / 10));
        self.retry_at = Some(now() + backoff.next());
    }
}
