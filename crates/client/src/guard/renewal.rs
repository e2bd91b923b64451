//! Watches over a hold as long as it lives: renews its lease, and tells when it is lost.

use std::sync::Arc;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::clock::{now, sleep_until};
use crate::error::{ExtendError, Lost, Report};
use crate::guard::hold::Hold;
use crate::lease::Instant;

/// How a hold is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keeping {
    /// For how long the lease is renewed; None: not at all.
    pub(crate) renewed_for: Option<Duration>,
    /// How long before its validity ends the hold is lost; None: a tenth of the ttl.
    pub(crate) notice: Option<Duration>,
}

impl Keeping {
    fn lost_at(&self, valid_until: Instant, ttl: Duration) -> Instant {
        valid_until.saturating_sub(self.notice.map_or(ttl / 10, |notice| notice.min(ttl / 2)))
    }
}

/// Keeps `hold` until it ends or is lost.
pub(crate) async fn keep(hold: Arc<Hold>, keeping: Keeping) {
    tokio::select! {
        () = hold.ended.cancelled() => {}
        () = hold.hear_the_rest() => {}
        () = hold.disconnected() => hold.lose(Lost::Disconnected),
        why = renew(&hold, keeping) => hold.lose(why),
    }
}

/// Renews the lease at each third of it. Returns when the hold is lost.
async fn renew(hold: &Hold, keeping: Keeping) -> Lost {
    let renewed_until = keeping.renewed_for.map(|longest| now() + longest);
    let mut tries = Tries::default();
    loop {
        let state = hold.state();
        let ttl = state.lease.ttl();
        let lost_at = keeping.lost_at(state.valid_until, ttl);
        let due = tries.again.unwrap_or_else(|| state.valid_until.saturating_sub(ttl / 3 * 2));
        let due = renewed_until.filter(|end| due < *end).map(|_| due);
        tokio::select! {
            biased;
            () = hold.changed.notified() => tries = Tries::default(),
            () = sleep_until(lost_at) => return match tries.connect_error {
                Some(report) => Lost::NotRenewed(report),
                None if due.is_some_and(|due| due < lost_at) => Lost::NotRenewed(hold.unheard()),
                None => Lost::Ended,
            },
            () = sleep_until(due.unwrap_or(lost_at)), if due.is_some() => {
                // Half of what is left: there may have to be another try.
                let limit = lost_at.saturating_since(now()) / 2;
                let renewed = tokio::select! {
                    biased;
                    renewed = hold.extend(ttl, limit) => renewed,
                    () = sleep_until(lost_at) => continue,
                };
                match renewed {
                    Ok(_) => tries = Tries::default(),
                    Err(ExtendError::Lost(report)) if now() < lost_at => return Lost::TakenAway(report),
                    Err(ExtendError::Lost(report)) => return Lost::NotRenewed(report),
                    Err(ExtendError::Unconfirmed(report) | ExtendError::Misuse(report)) => {
                        tries.failed(report, ttl);
                    }
                    // The ttl was good for the acquisition, or for the extension that set it.
                    Err(ExtendError::Option(_)) => return Lost::Ended,
                }
            }
        }
    }
}

/// The renewals that have failed since the last that did not.
#[derive(Default)]
struct Tries {
    connect_error: Option<Report>,
    backoff: Option<Backoff>,
    again: Option<Instant>,
}

impl Tries {
    fn failed(&mut self, report: Report, ttl: Duration) {
        self.connect_error = Some(report);
        let backoff = self.backoff.get_or_insert_with(|| Backoff::new(ttl / 30, ttl / 10));
        self.again = Some(now() + backoff.next());
    }
}
