//! The waits of this client at one master, and the messages of the master about them.

use dlock_protocol::NotifyRef;
use dlock_protocol::event::Ended;
use redis::{PushInfo, PushKind, Value};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::time::{sleep, timeout};

use crate::request::fresh_token;
use crate::sync::Mutex;

/// When all waits are to ask the master at once, each delays its request by a random time. Otherwise the
/// master could answer some of them too late. The longest delay is this time, multiplied by the number of
/// waits.
const SPREAD: Duration = Duration::from_micros(50);

/// The waits at one master. Each has a number as its name.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// Pub/sub channel on which the master publishes the end of each wait. Its name is random, so that no
    /// other client knows it.
    pub(super) channel: Vec<u8>,
    next: AtomicU64,
    /// By the name of the wait. The master's message about a wait contains its name.
    announcements: Mutex<HashMap<Vec<u8>, Arc<Announcement>>>,
    /// By resource.
    shared_checks: Mutex<HashMap<Vec<u8>, Weak<SharedCheck>>>,
}

/// The check that all waits for one resource share. One wait at a time asks whether the queue moves. If the
/// queue does not move, all waits leave it together. Otherwise some could stay while others join the queue of
/// another master. The heads of both queues could then each be granted the lock by some masters, and neither
/// by a majority.
#[derive(Debug, Default)]
pub(crate) struct SharedCheck {
    /// Locked by the wait that asks.
    asking: AsyncMutex<()>,
    /// Notified when the waits are to leave the queue.
    leave: Notify,
}

/// The message about one wait.
#[derive(Debug, Default)]
struct Announcement {
    notify: Notify,
    ended: Mutex<Option<Ended>>,
}

/// A wait, which ends when this value is dropped.
pub(crate) struct Wait {
    waits: Arc<Waits>,
    name: Vec<u8>,
    announcement: Arc<Announcement>,
}

impl Waits {
    pub(crate) fn new() -> Arc<Waits> {
        let channel = [b"dlock:", fresh_token().as_bytes()].concat();
        Arc::new(Waits { channel, ..Waits::default() })
    }

    pub(crate) fn begin(self: &Arc<Self>) -> Wait {
        let name = self.next.fetch_add(1, Ordering::Relaxed).to_string().into_bytes();
        let announcement = Arc::<Announcement>::default();
        self.announcements.lock().insert(name.clone(), announcement.clone());
        Wait { waits: self.clone(), name, announcement }
    }

    /// Returns the shared check of a resource.
    pub(crate) fn shared_check(&self, resource: &[u8]) -> Arc<SharedCheck> {
        let mut all = self.shared_checks.lock();
        if let Some(check) = all.get(resource).and_then(Weak::upgrade) {
            return check;
        }
        // Before the map grows, the checks of waits that have ended are removed.
        if all.len() == all.capacity() {
            all.retain(|_, check| check.strong_count() > 0);
        }
        let check = Arc::<SharedCheck>::default();
        all.insert(resource.to_vec(), Arc::downgrade(&check));
        check
    }

    /// Makes all waits for this resource leave the queue.
    pub(crate) fn leave(&self, resource: &[u8]) {
        let check = self.shared_checks.lock().get(resource).and_then(Weak::upgrade);
        check.iter().for_each(|check| check.leave.notify_waiters());
    }

    pub(crate) fn count(&self) -> u32 {
        self.announcements.lock().len().try_into().unwrap_or(u32::MAX)
    }

    pub(crate) fn on_push(&self, push: &PushInfo) {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::Message | PushKind::Subscribe, [Value::BulkString(channel), ..])
                if *channel != self.channel => {}
            (PushKind::Message, [_, Value::BulkString(message)]) => self.on_message(message),
            // Messages that were published without a subscription are lost, so each wait asks the master.
            (PushKind::Subscribe | PushKind::Disconnection, _) => self.wake_all(),
            _ => {}
        }
    }

    fn on_message(&self, message: &[u8]) {
        let Some((name, ended)) = Ended::read(message) else { return };
        if let Some(announcement) = self.announcements.lock().get(name) {
            *announcement.ended.lock() = ended;
            announcement.notify.notify_one();
        }
    }

    /// Makes every wait ask the master.
    pub(crate) fn wake_all(&self) {
        self.announcements.lock().values().for_each(|announcement| announcement.notify.notify_one());
    }
}

impl SharedCheck {
    /// Returns when this wait is to leave the queue: once `until_stuck` has returned in this wait or in
    /// another one, or once [`Waits::leave`] is called.
    pub(crate) async fn until_must_leave(&self, until_stuck: impl Future<Output = ()>) {
        let own = async {
            let _asking = self.asking.lock().await;
            until_stuck.await;
            self.leave.notify_waiters();
        };
        tokio::select! {
            () = self.leave.notified() => {}
            () = own => {}
        }
    }
}

impl Wait {
    /// Returns the channel and the message by which the master announces the end of the wait.
    pub(crate) fn notify(&self) -> Option<NotifyRef<'_>> {
        NotifyRef::new(&self.waits.channel, &self.name)
    }

    /// Returns when it is time to ask the master again: after `pause`, or earlier if the wait is notified.
    /// Returns the message of the master, if there is one.
    pub(crate) async fn next(&self, pause: Duration) -> Option<Ended> {
        let woken = timeout(pause, self.announcement.notify.notified()).await.is_ok();
        let ended = self.announcement.ended.lock().take();
        if woken && ended.is_none() {
            sleep(rand::random_range(Duration::ZERO..=SPREAD * self.waits.count())).await;
        }
        ended
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.waits.announcements.lock().remove(&self.name);
    }
}
