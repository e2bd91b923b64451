//! The waits of this client at one master, and what the master publishes about them.

use dlock_protocol::NotifyRef;
use dlock_protocol::notify::Ended;
use redis::{PushInfo, PushKind, Value};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Mutex as Turn, Notify};
use tokio::time::{sleep, timeout};

use crate::request::fresh_token;
use crate::sync::Mutex;

/// When all waits ask at once, they spread over this long for each of them: their answers must not be late.
const SPREAD: Duration = Duration::from_micros(50);

/// The waits at one master. Each has a number, by which the master tells what has become of it.
#[derive(Debug)]
pub(crate) struct Waits {
    /// Nobody else knows its name.
    channel: Vec<u8>,
    next: AtomicU64,
    all: Mutex<HashMap<u64, Arc<Heard>>>,
    /// By resource.
    lookouts: Mutex<HashMap<Vec<u8>, Weak<Lookout>>>,
}

/// Of all that wait for one resource there, one at a time looks whether its queue moves. They leave it
/// together: the heads of two queues keep each other from a majority.
#[derive(Debug)]
pub(crate) struct Lookout {
    waits: Arc<Waits>,
    resource: Vec<u8>,
    turn: Turn<()>,
    leave: Notify,
}

/// What was heard of a wait.
#[derive(Debug, Default)]
struct Heard {
    notify: Notify,
    ended: Mutex<Option<Ended>>,
}

/// A wait; it has ended when this is dropped.
pub(crate) struct Wait {
    waits: Arc<Waits>,
    number: u64,
    message: Vec<u8>,
    heard: Arc<Heard>,
}

impl Waits {
    pub(crate) fn new() -> Arc<Waits> {
        let channel = [b"dlock:", fresh_token().as_bytes()].concat();
        Arc::new(Waits {
            channel,
            next: AtomicU64::new(0),
            all: Mutex::default(),
            lookouts: Mutex::default(),
        })
    }

    pub(crate) fn channel(&self) -> &[u8] {
        &self.channel
    }

    pub(crate) fn begin(self: &Arc<Self>) -> Wait {
        let (number, heard) = (self.next.fetch_add(1, Ordering::Relaxed), Arc::<Heard>::default());
        self.all.lock().insert(number, heard.clone());
        Wait { waits: self.clone(), number, message: number.to_string().into(), heard }
    }

    /// The lookout of a resource, which all its waits share.
    pub(crate) fn lookout(self: &Arc<Self>, resource: &[u8]) -> Arc<Lookout> {
        let mut all = self.lookouts.lock();
        if let Some(lookout) = all.get(resource).and_then(Weak::upgrade) {
            return lookout;
        }
        let (waits, turn, leave) = (self.clone(), Turn::default(), Notify::new());
        let lookout = Arc::new(Lookout { waits, resource: resource.to_vec(), turn, leave });
        all.insert(resource.to_vec(), Arc::downgrade(&lookout));
        lookout
    }

    /// Lets all waits for this resource leave the queue.
    pub(crate) fn leave(&self, resource: &[u8]) {
        let lookout = self.lookouts.lock().get(resource).and_then(Weak::upgrade);
        lookout.iter().for_each(|lookout| lookout.leave.notify_waiters());
    }

    pub(crate) fn count(&self) -> u32 {
        self.all.lock().len().try_into().unwrap_or(u32::MAX)
    }

    pub(crate) fn pushed(&self, push: &PushInfo) {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::Message | PushKind::Subscribe, [Value::BulkString(channel), ..])
                if *channel != self.channel => {}
            (PushKind::Message, [_, Value::BulkString(message)]) => self.published(message),
            // What was published in between is lost.
            (PushKind::Subscribe | PushKind::Disconnection, _) => self.wake_all(),
            _ => {}
        }
    }

    fn published(&self, message: &[u8]) {
        let Some((number, ended)) = Ended::read(message) else { return };
        let number = str::from_utf8(number).ok().and_then(|number| number.parse().ok());
        if let Some(heard) = number.and_then(|number: u64| self.all.lock().get(&number).cloned()) {
            *heard.ended.lock() = Some(ended);
            heard.notify.notify_one();
        }
    }

    /// Lets every wait ask the master.
    pub(crate) fn wake_all(&self) {
        self.all.lock().values().for_each(|heard| heard.notify.notify_one());
    }
}

impl Lookout {
    /// Returns when `look` has, of whoever's turn it is, or when the queue is to be left.
    pub(crate) async fn until(&self, look: impl Future<Output = ()>) {
        let own = async {
            let _turn = self.turn.lock().await;
            look.await;
            self.leave.notify_waiters();
        };
        tokio::select! {
            () = self.leave.notified() => {}
            () = own => {}
        }
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        let mut all = self.waits.lookouts.lock();
        // Another one may have begun meanwhile.
        if all.get(&self.resource).is_some_and(|lookout| lookout.strong_count() == 0) {
            all.remove(&self.resource);
        }
    }
}

impl Wait {
    /// How the master is to tell the end of it.
    pub(crate) fn notify(&self) -> Option<NotifyRef<'_>> {
        NotifyRef::new(&self.waits.channel, &self.message)
    }

    /// Returns when it is time to ask the master, after `pause` at the latest; with what it has published, if
    /// it has.
    pub(crate) async fn next(&self, pause: Duration) -> Option<Ended> {
        let woken = timeout(pause, self.heard.notify.notified()).await.is_ok();
        let ended = self.heard.ended.lock().take();
        if woken && ended.is_none() {
            sleep(rand::random_range(Duration::ZERO..=SPREAD * self.waits.count())).await;
        }
        ended
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.waits.all.lock().remove(&self.number);
    }
}
