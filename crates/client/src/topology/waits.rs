//! The waits of this client at one master, and the messages of the master about them.

use dlock_protocol::NotifyRef;
use dlock_protocol::event::{Ended, Published};
use redis::{PushInfo, PushKind, Value};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
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

/// How many calls of a wait, the latest ones, can still be announced. A wait repeats its call after a third
/// of the time for which the call keeps the position, so earlier calls no longer count.
const CALLS_KEPT: usize = 6;

/// The random characters of an id, of 6 bits each: no client can guess an id before it is published.
const ID_LEN: usize = 11;

/// The waits at one master. Each of their calls has a message of its own.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// Pub/sub channel on which the master publishes the end of each wait. Its name is random, so that no
    /// other client knows it.
    pub(super) channel: Vec<u8>,
    /// The number of waits.
    count: AtomicU32,
    /// By the id of a call. The first message of a call removes its entry, because a second one can only be a
    /// copy.
    announcements: Mutex<HashMap<Vec<u8>, CallOfWait>>,
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

/// A call, and its wait.
#[derive(Debug)]
struct CallOfWait {
    number: u32,
    /// Only the message of a grant shows it, so a grant without it is forged.
    secret: Vec<u8>,
    announcement: Arc<Announcement>,
}

/// The messages about one wait.
#[derive(Debug, Default)]
struct Announcement {
    messages: Mutex<Vec<Message>>,
    /// Notified when a message arrives.
    arrived: Notify,
    /// Notified when the wait must ask the master, because messages may have been lost.
    woken: Notify,
}

/// A message of the master: the number of its call, and the end of the wait. `None` means an end that this
/// client does not know, or a grant without a fence, as older servers publish it.
pub(crate) type Message = (u32, Option<Ended>);

/// A wait, which ends when this value is dropped.
pub(crate) struct Wait {
    waits: Arc<Waits>,
    /// The ids of the latest calls.
    ids: Mutex<VecDeque<Vec<u8>>>,
    announcement: Arc<Announcement>,
}

impl Waits {
    pub(crate) fn new() -> Arc<Waits> {
        let channel = [b"dlock:", fresh_token().as_bytes()].concat();
        Arc::new(Waits { channel, ..Waits::default() })
    }

    pub(crate) fn begin(self: &Arc<Self>) -> Wait {
        self.count.fetch_add(1, Ordering::Relaxed);
        Wait { waits: self.clone(), ids: Mutex::default(), announcement: Arc::default() }
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
        self.count.load(Ordering::Relaxed)
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
        let Some(Published { id, ended, secret }) = Published::read(message) else { return };
        if let Some(CallOfWait { number, secret: own, announcement }) = self.announcements.lock().remove(id) {
            let is_forged = matches!(ended, Some(Ended::Granted(_))) && secret != own;
            announcement.messages.lock().push((number, ended.filter(|_| !is_forged)));
            announcement.arrived.notify_one();
        }
    }

    /// Makes every wait ask the master.
    pub(crate) fn wake_all(&self) {
        self.announcements.lock().values().for_each(|call| call.announcement.woken.notify_one());
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
    /// Returns the message by which the master announces the end of the wait after this call: an id, and a
    /// secret, which the master shows only in the message of a grant. A client that does not know it cannot
    /// publish a grant, even with the right to the channel. Both are new for each call, because the first
    /// message that is published shows them.
    pub(crate) fn begin_call(&self, number: u32) -> Vec<u8> {
        let random = fresh_token();
        let (id, secret) = random.as_bytes().split_at(ID_LEN);
        let id = [id, b".", number.to_string().as_bytes()].concat();
        let message = [&id, secret].join(&b' ');
        let secret = secret.to_vec();
        let mut announcements = self.waits.announcements.lock();
        let announcement = self.announcement.clone();
        announcements.insert(id.clone(), CallOfWait { number, secret, announcement });
        let mut ids = self.ids.lock();
        ids.push_back(id);
        if ids.len() > CALLS_KEPT
            && let Some(oldest) = ids.pop_front()
        {
            announcements.remove(&oldest);
        }
        message
    }

    /// Returns the channel of the waits with a message.
    pub(crate) fn notify<'a>(&'a self, message: &'a [u8]) -> Option<NotifyRef<'a>> {
        NotifyRef::new(&self.waits.channel, message)
    }

    /// Waits for the next message of the master.
    pub(crate) async fn next_message(&self) -> Message {
        loop {
            let arrived = self.announcement.arrived.notified();
            {
                let mut messages = self.announcement.messages.lock();
                if !messages.is_empty() {
                    return messages.remove(0);
                }
            }
            arrived.await;
        }
    }

    /// Returns the next message of the master, or `None` when it is time to ask the master again: after
    /// `pause`, or earlier if messages may have been lost.
    pub(crate) async fn next(&self, pause: Duration) -> Option<Message> {
        let until_due = async {
            if timeout(pause, self.announcement.woken.notified()).await.is_ok() {
                sleep(rand::random_range(Duration::ZERO..=SPREAD * self.waits.count())).await;
            }
        };
        tokio::select! {
            biased;
            message = self.next_message() => Some(message),
            () = until_due => None,
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.waits.count.fetch_sub(1, Ordering::Relaxed);
        let mut announcements = self.waits.announcements.lock();
        self.ids.lock().iter().for_each(|id| _ = announcements.remove(id));
    }
}
