//! Whoever waited hears of it.

use dlock_core::tasks::Task;
use dlock_core::{Instant, Notify, Outcome, Owner, Queued, Waiter};
use dlock_protocol::command::table;
use dlock_protocol::notify::Ended;

use crate::ffi::user;
use crate::module::Module;
use crate::{log, timer, waiters};

/// Tells whoever waited what has become of it: a connection by its reply, a token whose own the position was
/// by the notification it asked for.
pub fn answer(m: &Module, waiter: Waiter, outcome: Outcome, now: Instant) {
    let Owner::Token(queued) = &waiter.owner else { return waiters::answer(m, waiter, outcome, now) };
    log::waited(m, &waiter, &outcome, now);
    m.with(|s| s.stats.answered(&outcome, now.millis_since(waiter.since)));
    let ended = match outcome {
        // Nobody delivers it, so the rights are looked at here that it takes to be told of it.
        Outcome::Granted(..) if !may_be_told(&waiter, queued) => {
            let Waiter { id, name, request, .. } = waiter.clone();
            m.with(|s| s.background.note(Task::Undelivered(name, request.token, id)));
            timer::rearm(m);
            Ended::Refused
        }
        Outcome::Granted(..) => Ended::Granted,
        Outcome::TimedOut => Ended::TimedOut,
        Outcome::Cancelled => Ended::Cancelled,
        Outcome::Refused(_) => Ended::Refused,
        Outcome::Left => return,
    };
    publish(m, queued, ended);
}

/// Publishes the end of a queued wait, where that was asked for by a user who may still publish there.
pub fn publish(m: &Module, queued: &Queued, ended: Ended) {
    if let Some(notify) = queued.notify.as_ref().filter(|_| may_publish(queued)) {
        m.ctx().publish(notify.channel(), &notify.published(ended), queued.sharded);
    }
}

/// Whether the user in whose name it waited may still do what its ACQUIRE did.
fn may_be_told(waiter: &Waiter, queued: &Queued) -> bool {
    let command = [table::ACQUIRE.name.as_bytes(), &waiter.name.key, waiter.request.token.as_bytes(), b"1"];
    queued.user.as_ref().is_none_or(|name| user::may_run(name, &command)) && may_publish(queued)
}

fn may_publish(queued: &Queued) -> bool {
    let channel = queued.notify.as_ref().map(Notify::channel);
    queued.user.as_ref().zip(channel).is_none_or(|(name, channel)| user::may_publish(name, channel))
}
