//! Reports of the client about its holds: the `on_lost` hook and the `tracing` events.

use super::*;
use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

#[each_server]
async fn the_loss_hook_is_called_once(kind: &ServerKind) {
    for count in [1, 3] {
        let (_servers, client) = quorum(kind, count).await;
        let reported = Arc::new(Mutex::new(Vec::new()));
        let hook = reported.clone();
        let lock =
            client.lock("r").ttl(LONG).on_lost(move |why| hook.lock().expect("no panic").push(why.clone()));
        let guard = lock.await.expect("the lock is free");
        client.break_holds("r").await;
        until("the hook is called", || !reported.lock().expect("no panic").is_empty());
        let [Lost::TakenAway(_)] = reported.lock().expect("no panic")[..] else { panic!("{reported:?}") };
        assert!(matches!(guard.loss(), Some(Lost::TakenAway(_))));
    }
}

/// When the server reports that the key of a hold has changed, the client checks an exclusive hold, but not a
/// shared one. So only the extension shows the loss.
#[each_server]
async fn an_extension_reports_a_loss_at_once_and_the_lost_hold_is_not_reused(kind: &ServerKind) {
    for count in [1, 3] {
        let (servers, client) = quorum(kind, count).await;
        let reported = Arc::<AtomicU64>::default();
        let hook = reported.clone();
        let lock = || client.lock("r").ttl(LONG).shared().reentrant();
        let first = lock().on_lost(move |_| _ = hook.fetch_add(1, Ordering::Relaxed));
        let guard = first.await.expect("the lock is free");
        until_held_everywhere(&servers, "r");
        servers.iter().for_each(|server| assert_eq!(server.connect().ok("DLOCK.BREAK r"), 1));
        let extended = guard.extend(LONG).await;
        assert!(matches!(extended, Err(ExtendError::Lost(_))), "{extended:?}");
        assert!(matches!(guard.loss(), Some(Lost::TakenAway(_))));
        until("the hook is called", || reported.load(Ordering::Relaxed) == 1);
        let again = lock().await.expect("the lock is free");
        assert_ne!(again.token(), guard.token(), "the two guards have separate holds");
    }
}

#[each_server]
async fn a_released_hold_is_not_reported_as_lost(kind: &ServerKind) {
    let (_servers, client) = quorum(kind, 1).await;
    let lock = client.lock("r").ttl(Duration::from_secs(6)).on_lost(|why| panic!("{why}"));
    let guard = lock.await.expect("the lock is free");
    let (cancellation, end) = (guard.cancellation(), guard.valid_until());
    guard.release().await.expect("the lock is held");
    until("the original lease would have ended", || now() > end);
    assert!(!cancellation.is_cancelled());
    client.lock("r").await.expect("the client still works").release().await.expect("the lock is held");
}

#[each_server]
async fn renewals_and_losses_are_events_in_the_span_of_their_hold(kind: &ServerKind) {
    // A global subscriber, because the renewals run on the threads of the clients.
    static RECORDED: LazyLock<Recorded> = LazyLock::new(|| {
        let recorded = Recorded::default();
        tracing::subscriber::set_global_default(recorded.clone()).expect("no other test sets a subscriber");
        recorded
    });
    LazyLock::force(&RECORDED);
    let (_servers, client) = quorum(kind, 3).await;
    let resource = format!("traced on {}", kind.name);
    let guard = client.lock(&resource).ttl(Duration::from_secs(6)).fenced().await.expect("the lock is free");
    let is_recorded = |what: &str| {
        RECORDED.has(&[&resource, &guard.fence().expect("a fenced hold has a fence").get().to_string(), what])
    };
    until("a renewal is recorded", || is_recorded("renewed"));
    assert!(!is_recorded("lost"));
    client.break_holds(&resource).await;
    until("the loss is recorded", || is_recorded("lost"));
    assert!(
        !RECORDED.has(&[std::str::from_utf8(guard.token().as_bytes()).expect("text")]),
        "tokens are secret"
    );
}

/// Recorded events as text, with the fields of their spans.
#[derive(Clone, Default)]
struct Recorded {
    events: Arc<Mutex<Vec<String>>>,
    spans: Arc<Mutex<HashMap<u64, String>>>,
    last_id: Arc<AtomicU64>,
}

thread_local! {
    static ENTERED: std::cell::RefCell<Vec<u64>> = const { std::cell::RefCell::new(Vec::new()) };
}

impl Recorded {
    fn has(&self, parts: &[&str]) -> bool {
        let events = self.events.lock().expect("no panic");
        events.iter().any(|event| parts.iter().all(|part| event.contains(part)))
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).expect("a string");
    }
}

impl Subscriber for Recorded {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("dlock_client")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let mut text = Text(span.metadata().name().to_string());
        span.record(&mut text);
        self.spans.lock().expect("no panic").insert(id, text.0);
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        for span in ENTERED.with_borrow(|entered| entered.clone()) {
            text.0 += &self.spans.lock().expect("no panic")[&span];
        }
        event.record(&mut text);
        self.events.lock().expect("no panic").push(text.0);
    }

    fn enter(&self, span: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(span.into_u64()));
    }

    fn exit(&self, _: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.pop());
    }
}
