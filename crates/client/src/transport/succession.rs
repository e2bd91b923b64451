//! Notices that a master has a successor while it still works. In a planned failover, the sentinels name the
//! promoted replica at once, and make the former master a replica about ten seconds later. Until then, it
//! grants locks beside its successor.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::address::Address;
use super::connection::{field, is_replica};
use super::sentinel::{MasterLocator, Session, ask};

/// A sentinel publishes the first as soon as it names a replica that it has promoted, the other one when the
/// failover is over, or when another sentinel has told it.
const CHANNELS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// How long a sentinel is not asked without a message. The answer also shows that the sentinel still works.
const PAUSE: Duration = Duration::from_secs(5);

impl MasterLocator {
    /// Waits until a sentinel names a successor of the master `present`, and makes this sentinel the first to
    /// be asked.
    ///
    /// A successor is a master that was promoted from a replica of `present`, as the replication ids of both
    /// show. So no sentinel leads the client back to a former master, however little it knows.
    pub(crate) async fn until_succeeded(&self, present: &Address, limit: Duration) {
        loop {
            let sentinels = self.sentinels.lock().clone();
            for sentinel in &sentinels {
                if let Some(named) = self.until_another(sentinel, present, limit).await
                    && succeeds(&named, present, limit).await
                {
                    self.ask_first(sentinel);
                    return;
                }
            }
            sleep(PAUSE).await;
        }
    }

    /// Subscribes at the sentinel, and returns the master that it names once this is another one. `None`
    /// means that the sentinel does not answer.
    async fn until_another(&self, sentinel: &Address, present: &Address, limit: Duration) -> Option<Address> {
        let told = Arc::new(Notify::new());
        let telling = told.clone();
        let on_push = Some(Box::new(move || telling.notify_one()) as _);
        let mut session = timeout(limit, Session::open(sentinel, on_push)).await.ok()?.ok()?;
        let mut subscribe = redis::pipe();
        for channel in CHANNELS {
            subscribe.cmd("SUBSCRIBE").arg(channel);
        }
        // Without the right to a channel, only the questions show another master.
        timeout(limit, session.ask(&subscribe)).await.ok()?.ok()?;
        loop {
            // Asked after the subscription: an earlier message is lost.
            let (host, port) = timeout(limit, self.locate(sentinel, &mut session)).await.ok()?.ok()?;
            let named = self.master.at(&host, port);
            if named.name != present.name {
                return Some(named);
            }
            let _ = timeout(PAUSE, told.notified()).await;
        }
    }
}

/// Returns true if `named` is a master that was promoted from a replica of `present`.
async fn succeeds(named: &Address, present: &Address, limit: Duration) -> bool {
    let (Some(named), Some(present)) = (replication(named, limit).await, replication(present, limit).await)
    else {
        return false;
    };
    let followed = field(&named, "master_replid2:");
    !is_replica(&named) && followed.is_some() && followed == field(&present, "master_replid:")
}

/// Asks a server about its replication.
async fn replication(server: &Address, limit: Duration) -> Option<String> {
    let mut question = redis::cmd("INFO");
    question.arg("replication");
    let info = timeout(limit, ask(server, &question)).await.ok()?.ok()?;
    redis::from_redis_value(info).ok()
}
