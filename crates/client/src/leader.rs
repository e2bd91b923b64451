//! The election of a leader: the holder of a lock leads, and the fence is the number of its term.

use std::time::Duration;
use tokio::time::sleep;

use crate::acquire::Acquire;
use crate::client::{Client, no_quorum};
use crate::clock::now;
use crate::error::{AcquireError, NoQuorum, NodeState, ReleaseError};
use crate::hold::guard::Guard;
use crate::holder::Holder;
use crate::wait::{Backoff, Wait};

/// First and longest pause before a campaign continues after an outage.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Pause between two inspections of the election.
const OBSERVE_PAUSE: Duration = Duration::from_secs(1);

/// Elects one of many processes, as `dlock elect` does: the one that holds the lock of this name.
///
/// ```no_run
/// # async fn example(client: dlock_client::Client) -> Result<(), dlock_client::AcquireError> {
/// let leader = dlock_client::Leader::new(&client, "scheduler").options(|lock| lock.label("host-7"));
/// leader.lead(|term| async move { println!("this process leads, with the fence {:?}", term.fence()) }).await
/// # }
/// ```
pub struct Leader {
    client: Client,
    election: Vec<u8>,
    /// The options of the lock. Its resource is not used.
    lock: Acquire,
}

impl Leader {
    /// Returns a candidate. Sends nothing yet.
    pub fn new(client: &Client, election: impl AsRef<[u8]>) -> Leader {
        Leader { client: client.clone(), election: election.as_ref().to_vec(), lock: client.lock("") }
    }

    /// Sets the options of the lock: `.options(|lock| lock.ttl(..).label(..))`. It cannot be shared or have
    /// permits, with which several processes would lead at once. [`wait`](Acquire::wait) limits each
    /// campaign.
    pub fn options(mut self, options: impl FnOnce(Acquire) -> Acquire) -> Self {
        self.lock = options(self.lock);
        self
    }

    /// Waits until this process leads, through outages of the servers, and returns the term: lead until
    /// [`Guard::lost`] returns, and resign by [`Guard::release`]. Fails at the end of the wait, and if a
    /// later campaign would fail, too: an option is out of range, the servers cannot take part.
    pub async fn campaign(&self) -> Result<Guard, AcquireError> {
        if !self.lock.is_exclusive() {
            let why = "a leader holds its lock alone: several processes would lead at once";
            return Err(AcquireError::Option(why.into()));
        }
        let deadline = self.lock.deadline();
        let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let mut lock = self.lock.for_resource(self.election.clone());
            if let Some(end) = deadline.instant() {
                lock = lock.wait(Wait::For(end.saturating_since(now())));
            }
            let why = match lock.acquire().await {
                Ok(term) => return Ok(term),
                Err(why) => why,
            };
            if deadline.has_passed(now()) || !self.may_pass(&why) {
                return Err(why);
            }
            sleep(deadline.limit_pause(pauses.next(), now()).unwrap_or_default()).await;
        }
    }

    /// Campaigns, calls `work` with the term, resigns, and returns the result. If the term is lost, drops the
    /// future of `work`, campaigns again, and calls `work` again. Work that blocks or runs in another task
    /// must watch the term itself: see [`Guard::cancellation`]. The guard of the work shares the hold: while
    /// a task keeps it, this process leads.
    pub async fn lead<F: Future>(&self, work: impl Fn(Guard) -> F) -> Result<F::Output, AcquireError> {
        loop {
            let term = self.campaign().await?;
            let done = tokio::select! {
                done = work(term.share()) => done,
                _ = term.lost() => continue,
            };
            // The term may have been lost while the work ended, or unnoticed.
            let is_lost = term.loss().is_some();
            if !matches!(term.release().await, Err(ReleaseError::NotHeld(_))) && !is_lost {
                return Ok(done);
            }
        }
    }

    /// Returns the present leader, which a majority of the servers has. `None` if there is none.
    pub async fn current(&self) -> Result<Option<Holder>, NoQuorum> {
        let seen = self.client.inspect(&self.election).await;
        let majority = self.client.service.quorum.majority();
        if seen.iter().filter(|seen| seen.answer.found().is_some()).count() < majority {
            return Err(no_quorum(seen));
        }
        let locks = || seen.iter().filter_map(|seen| seen.answer.found()?.as_ref());
        let servers_with = |token: &str| {
            locks().filter(|lock| lock.holders.iter().any(|holder| holder.token == token)).count()
        };
        Ok(Holder::of(&seen).filter(|leader| servers_with(&leader.token) >= majority))
    }

    /// Returns an observer of the leaders. Sends nothing yet.
    pub fn observe(&self) -> Leaders<'_> {
        Leaders { leader: self, last: None, looked: false }
    }

    /// Returns whether a later campaign may succeed.
    fn may_pass(&self, why: &AcquireError) -> bool {
        match why {
            // An operator can end a wait, which is then `Taken`.
            AcquireError::Taken { .. } | AcquireError::QueueFull { .. } | AcquireError::TooLate { .. } => {
                true
            }
            AcquireError::QuorumImpossible { .. } => {
                let service = &self.client.service;
                let unusable = service.sites.iter().filter(|site| {
                    let why = site.home(&self.election).node().connect_error();
                    matches!(why, Some(NodeState::Failed(_)))
                });
                service.quorum.has_majority_without(unusable.count())
            }
            _ => false,
        }
    }
}

/// The leaders one after the other: see [`Leader::observe`].
pub struct Leaders<'a> {
    leader: &'a Leader,
    /// The token of the last leader. `None` before the first answer.
    last: Option<Option<String>>,
    looked: bool,
}

impl Leaders<'_> {
    /// Returns the present leader at the first call, and then the next one, or `None` for a time without one.
    /// Inspects the election once a second, so it may miss a short term. After an error, the next call
    /// inspects it again.
    pub async fn next(&mut self) -> Result<Option<Holder>, NoQuorum> {
        loop {
            if std::mem::replace(&mut self.looked, true) {
                sleep(OBSERVE_PAUSE).await;
            }
            let leader = self.leader.current().await?;
            let token = leader.as_ref().map(|leader| leader.token.clone());
            if self.last.as_ref() != Some(&token) {
                self.last = Some(token);
                return Ok(leader);
            }
        }
    }
}
