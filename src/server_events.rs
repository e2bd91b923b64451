//! The server's events. Handlers only record what happened: a write inside an event may be replicated in the
//! wrong order, or crash the server. The background job writes.

use dlock_core::ClientId;
use dlock_core::codec::Origin;
use dlock_core::deliveries::Deliveries;
use dlock_core::due_locks::DueLocks;
use dlock_protocol::error::Error;

use crate::ffi::{Ctx, Flags, Notice, notices};
use crate::module::{Loading, Module, free_in_background};
use crate::{background, clock, effects, fence_mark, grace, info, log, waiters};

pub fn on_notice(m: &Module, ctx: Ctx<'_>, notice: Notice) {
    match notice {
        Notice::Tick => return on_tick(m, ctx),
        Notice::TurnEnds => return waiters::turn_ends(m),
        Notice::NextTurn => {
            return m.with(|s| {
                s.messages.turn_is_ending = false;
                s.waiting.deliveries.next_turn();
            });
        }
        Notice::ModulesChanged => return m.with(|s| s.followers.is_only_module = None),
        Notice::Forked => return note_possible_follower(m),
        Notice::BecameReplica => return became_replica(m, ctx),
        Notice::Loading { from_master } => return loading(m, from_master),
        Notice::BecameMaster => {
            note_possible_follower(m);
            m.with(|s| s.replication_position = None);
            let why = "this replica became a master and may not have received all that was granted";
            grace::begin_as_master(m, ctx, why);
        }
        Notice::Configured => {
            note_possible_follower(m);
            grace::configured(m, ctx);
            fence_mark::configured(m, ctx);
            info::configured(m, ctx);
            // dlock.max-holders-per-key may admit more holders now.
            m.with(|s| s.serve(None));
        }
        Notice::Flushing(db) => flushing(m, ctx, db),
        Notice::Swapped(first, second) => swapped(m, ctx, first, second),
        Notice::LoadingEnded { complete } => {
            note_possible_follower(m);
            m.with(|s| {
                // After a snapshot from the master, this replica continues at the position in the master's
                // replication stream that the snapshot contains. After a load from a file (DEBUG RELOAD), it
                // continues at its position before the load.
                let loaded = s.replication_position.filter(|_| complete);
                (s.loading, s.replication_position) = (None, s.position_before_load.take().or(loaded));
            });
            grace::loading_ended(m, ctx);
            if complete {
                fence_mark::loaded(m, ctx);
            }
        }
        Notice::ClientGone(id) => {
            let missed_grant = waiters::note_missed_grant(m, ctx, ClientId(id));
            let (had_positions, had_holds) =
                m.with(|s| (s.waiting.client_gone(ClientId(id)), s.background.client_gone(ClientId(id))));
            if !missed_grant && !had_positions && !had_holds {
                return;
            }
        }
    }
    m.rearm_timer();
}

fn on_tick(m: &Module, ctx: Ctx<'_>) {
    // The notices of event-loop turns are needed only while clients wait, or grants are not yet delivered or
    // announced.
    if m.with(|s| s.waiting.clients() == 0 && s.waiting.deliveries.is_empty() && s.messages.unsent.is_empty())
    {
        notices::watch_turns::<Module>(m.ctx(), false);
    }
    // A copy: the server must not be called while the state is borrowed.
    let mut followers = m.with(|s| s.followers);
    followers.update(ctx);
    m.with(|s| s.followers = followers);
    grace::on_tick(m, ctx);
    fence_mark::on_tick(m, ctx);
    if m.with(|s| !s.waiting.is_empty()) {
        if ctx.flags().contains(Flags::CLUSTER) && ctx.cluster_is_down() {
            background::schedule_refusal_of_all_waiters(m, Error::ClusterDown);
        }
        // The server deletes the opened keys if their native TTL has passed, and the next waiters are
        // granted.
        effects::open_queued_keys(m, ctx);
    }
    background::on_tick(m, ctx);
}

/// Records that a new follower (a replica, or an append only file) may exist. After a fork, the child
/// process may be writing the snapshot of a new follower. The follower has read nothing that this server
/// replicated earlier. So the next replicated command must not depend on an earlier one.
fn note_possible_follower(m: &Module) {
    m.with(|s| (s.followers.may_follow, s.followers.readers_state) = (true, None));
}

fn became_replica(m: &Module, ctx: Ctx<'_>) {
    // A replica grants no lock, so it needs no grace period. Its promotion begins a new one.
    m.with(|s| {
        // From now on, this server reads its master's replication stream.
        s.followers.server_may_read = true;
        s.grace.stop();
    });
    drop_master_state(m, ctx);
    background::schedule_refusal_of_all_waiters(m, Error::Demoted);
    note_possible_follower(m);
}

/// Drops the records of deliveries and the tasks, which only a master needs. Unbinds every EPHEMERAL hold
/// from its connection, in memory only. A replica ends no hold when a connection closes, so after a later
/// promotion the server could not tell which connections had closed in the meantime.
fn drop_master_state(m: &Module, ctx: Ctx<'_>) {
    let bound = m.with(|s| {
        s.waiting.deliveries = Deliveries::default();
        s.background.demoted()
    });
    for holds in bound.chunk_by(|(one, _), (other, _)| one == other) {
        effects::orphan(ctx, &holds[0].0, holds.iter().map(|(_, token)| token.clone()));
    }
}

/// Records the beginning of a load: of a file, or (`from_master`) of a snapshot from the master.
fn loading(m: &Module, from_master: bool) {
    let origin = if from_master { Origin::Live } else { Origin::Stored };
    m.with(|s| {
        s.loading = Some(Loading { origin, began: clock::now() });
        s.followers.server_may_read = true;
        s.position_before_load = s.replication_position.take().filter(|_| !from_master);
        s.grace.loading_begins();
    });
}

/// The maximum number of locks and holds that a flush frees inline. If there are more, a background thread
/// frees all of them.
const MAX_FREED_INLINE: usize = 1_000;

fn flushing(m: &Module, ctx: Ctx<'_>, db: Option<i32>) {
    let (unconfirmed, emptied) = m.with(|s| (s.waiting.deliveries.flushed(db), s.background.flushed(db)));
    let [locks, holders] = [DueLocks::locks, DueLocks::holders]
        .map(|count| emptied.iter().map(|db| count(&db.scheduled)).sum::<usize>());
    if locks > 0 {
        log::flushed(m, db, &emptied);
        grace::holds_removed(m, ctx, "locks were flushed");
    }
    if locks + holders > MAX_FREED_INLINE {
        free_in_background((unconfirmed, emptied));
    }
    m.with(|s| s.serve(db));
}

fn swapped(m: &Module, ctx: Ctx<'_>, first: i32, second: i32) {
    if first == second {
        return;
    }
    if m.with(|s| s.background.swapped(&mut s.waiting, first, second)) > 0 {
        grace::holds_removed(m, ctx, "databases with locks were swapped");
    }
    m.with(|s| [first, second].into_iter().for_each(|db| s.serve(Some(db))));
}
