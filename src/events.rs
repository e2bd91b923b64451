//! What happens to the server around the locks. Everything here takes note; what has to be written is written
//! by the background job, for inside these events a write may reach nobody, or the wrong replica, or end the
//! server.

use dlock_core::ClientId;
use dlock_core::codec::Origin;
use dlock_core::deliveries::Deliveries;
use dlock_core::scheduled::Scheduled;
use dlock_protocol::error::Error;

use crate::ffi::{Ctx, Flags, Notice, notices};
use crate::module::{Loading, Module, free_elsewhere};
use crate::{clock, deadlines, effects, followers, grace, log, mark, timer, waiters, warnings};

pub fn on_notice(m: &Module, ctx: Ctx<'_>, notice: Notice) {
    match notice {
        Notice::Tick => {
            if m.with(|s| s.waiting.clients() == 0 && s.waiting.deliveries.is_empty()) {
                notices::watch_turns::<Module>(m.ctx(), false);
            }
            followers::look(m, ctx);
            grace::is_serving(m, ctx);
            mark::keep(m, ctx);
            if m.with(|s| !s.waiting.is_empty()) {
                if ctx.flags().contains(Flags::CLUSTER) && ctx.cluster_is_down() {
                    deadlines::end_waits(m, Error::ClusterDown);
                }
                effects::open_queued_keys(m, ctx);
            }
            return deadlines::on_tick(m, ctx);
        }
        Notice::BecameMaster => {
            may_be_followed(m);
            m.with(|s| s.read = None);
            grace::begin(
                m,
                ctx,
                "this replica became a master and may not have received all that was granted",
            );
        }
        Notice::BecameReplica => {
            m.with(|s| s.followers.may_read = true);
            grace::demoted(m);
            unbind(m, ctx);
            deadlines::end_waits(m, Error::Demoted);
            return may_be_followed(m);
        }
        Notice::Forked => return may_be_followed(m),
        Notice::Configured => {
            may_be_followed(m);
            grace::configured(m, ctx);
            mark::configured(m, ctx);
            warnings::configured(m, ctx);
            // More may hold a lock now (dlock.max-holders-per-key).
            m.with(|s| s.serve(None));
        }
        Notice::ModulesChanged => return m.with(|s| s.followers.alone = None),
        Notice::Flushing(db) => flushing(m, ctx, db),
        Notice::Swapped(first, second) => swapped(m, ctx, first, second),
        Notice::Loading { live } => {
            let origin = if live { Origin::Live } else { Origin::Stored };
            m.with(|s| {
                s.loading = Some(Loading { origin, began: clock::now() });
                s.followers.may_read = true;
                s.read_before = s.read.take().filter(|_| !live);
                s.background.loading_begins();
            });
            return m.with(|s| s.grace.loading_begins());
        }
        Notice::LoadingFailed => {
            may_be_followed(m);
            m.with(|s| {
                (s.loading, s.read) = (None, s.read_before.take());
                s.background.loading_ended();
            });
            grace::loading_ended(m, ctx);
        }
        Notice::LoadingEnded => {
            may_be_followed(m);
            m.with(|s| {
                (s.loading, s.read) = (None, s.read_before.take().or(s.read));
                s.background.loading_ended();
            });
            grace::loading_ended(m, ctx);
            mark::loaded(m, ctx);
        }
        Notice::NextTurn => return m.with(|s| s.waiting.deliveries.next_turn()),
        Notice::ClientGone(id) => {
            let unread = waiters::unread(m, ctx, ClientId(id));
            let bound = m.with(|s| {
                let positions = s.waiting.client_gone(ClientId(id));
                s.background.client_gone(ClientId(id)) || positions
            });
            if !bound && !unread {
                return;
            }
        }
    }
    timer::rearm(m);
}

/// Who begins to follow here knows of nothing that was logged before.
fn may_be_followed(m: &Module) {
    m.with(|s| (s.followers.may_follow, s.followers.known) = (true, None));
}

/// A replica ends no hold with its connection, and will know of none when it is a master again: meanwhile the
/// hold was another's to keep.
fn unbind(m: &Module, ctx: Ctx<'_>) {
    let bound = m.with(|s| {
        s.waiting.deliveries = Deliveries::default();
        s.background.demoted()
    });
    for holds in bound.chunk_by(|(one, _), (other, _)| one == other) {
        effects::orphan(ctx, &holds[0].0, holds.iter().map(|(_, token)| token.clone()));
    }
}

/// What is known of so many locks and holds is let go on the spot; of more on a thread of its own.
const FREE_ON_THE_SPOT: usize = 1_000;

fn flushing(m: &Module, ctx: Ctx<'_>, db: Option<i32>) {
    let (doubts, emptied) = m.with(|s| (s.waiting.deliveries.flushed(db), s.background.flushed(db)));
    let [held, holders] = [Scheduled::held, Scheduled::holders]
        .map(|count| emptied.iter().map(|db| count(&db.scheduled)).sum::<usize>());
    if held > 0 {
        log::flushed(m, db, &emptied);
        grace::forgot(m, ctx, "locks were flushed");
    }
    if held + holders > FREE_ON_THE_SPOT {
        free_elsewhere((doubts, emptied));
    }
    m.with(|s| s.serve(db));
}

fn swapped(m: &Module, ctx: Ctx<'_>, first: i32, second: i32) {
    if first == second {
        return;
    }
    if m.with(|s| s.background.swapped(&mut s.waiting, first, second)) > 0 {
        grace::forgot(m, ctx, "databases with locks were swapped");
    }
    m.with(|s| [first, second].into_iter().for_each(|db| s.serve(Some(db))));
}
