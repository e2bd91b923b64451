//! What happens to the server around the locks. Everything here takes note; what has to be written is written by the
//! background job, for inside these events a write may reach nobody, or the wrong replica, or end the server.

use dlock_core::codec::Origin;
use dlock_core::{ClientId, Name, give_back};

use crate::ffi::{Ctx, Key, notices, notices::Notice};
use crate::pending::rename_all;
use crate::scheduled::Scheduled;
use crate::state::{Task, with};
use crate::{deadlines, followers, grace, mark, waiters};

pub fn on_notice(ctx: Ctx<'_>, notice: Notice) {
    match notice {
        Notice::Tick => {
            if with(|s| s.waiting.is_empty() && s.deliveries.is_empty()) {
                notices::watch_turns(false);
            }
            followers::look(ctx);
            grace::is_serving(ctx);
            mark::keep(ctx);
            return deadlines::on_tick(ctx);
        }
        Notice::BecameMaster => {
            followers::may_begin();
            grace::begin(ctx, "this replica became a master and may not have received all that was granted");
        }
        // The server itself ends the waiting of every blocked client.
        Notice::BecameReplica => {
            grace::demoted();
            unbind(ctx);
            return followers::may_begin();
        }
        Notice::Forked => {
            followers::may_begin();
            return grace::forked(ctx);
        }
        Notice::Configured => {
            followers::may_begin();
            grace::configured(ctx);
            mark::configured(ctx);
        }
        Notice::ModulesChanged => return followers::modules_changed(),
        Notice::Flushing(db) => flushing(ctx, db),
        Notice::Swapped(first, second) => swapped(ctx, first, second),
        Notice::Loading { live } => {
            let origin = if live { Origin::Live } else { Origin::Stored };
            with(|s| s.loading = Some(origin));
            return grace::loading_begins(ctx);
        }
        Notice::LoadingFailed => {
            followers::may_begin();
            with(|s| s.loading = None);
            grace::loading_failed(ctx);
        }
        Notice::ReplicaCame => return grace::replica_came(ctx),
        Notice::LoadingEnded => {
            followers::may_begin();
            with(|s| s.loading = None);
            grace::loading_ended(ctx);
            mark::loaded(ctx);
        }
        Notice::NextTurn => return with(|s| s.deliveries.next_turn()),
        Notice::ClientGone(id) => {
            let unread = waiters::unread(ctx, ClientId(id));
            if !client_gone(ClientId(id)) && !unread {
                return;
            }
        }
    }
    deadlines::rearm();
}

/// A replica ends no hold with its connection, and will know of none when it is a master again: meanwhile the hold was
/// another's to keep.
fn unbind(ctx: Ctx<'_>) {
    let mut bound = with(|s| s.demoted());
    bound.sort_unstable();
    for holds in bound.chunk_by(|(one, _), (other, _)| one == other) {
        let name = &holds[0].0;
        ctx.select_db(name.db);
        let raw = ctx.string(&name.key);
        if let Ok(mut key) = Key::open_for_read(ctx, raw.raw())
            && let Some(value) = key.value()
        {
            holds.iter().for_each(|(_, token)| value.lock.orphan(token.as_bytes()));
        }
    }
}

/// So many scheduled locks are let go on the spot; more on a thread of their own.
const FREE_ON_THE_SPOT: usize = 1_000;

fn flushing(ctx: Ctx<'_>, db: Option<i32>) {
    let emptied: Vec<Scheduled> = with(|s| {
        let emptied = match db {
            Some(db) => vec![std::mem::take(s.db(db))],
            None => std::mem::take(&mut s.dbs),
        };
        s.ephemerals.retain(|_, holds| {
            holds.retain(|(name, _)| db.is_some_and(|db| name.db != db));
            !holds.is_empty()
        });
        give_back(&mut s.ephemerals);
        emptied
    });
    let held: usize = emptied.iter().map(Scheduled::held).sum();
    if held > 0 {
        grace::forgot(ctx, "locks were flushed");
    }
    if held > FREE_ON_THE_SPOT {
        std::thread::spawn(move || drop(emptied));
    }
    serve_lines(|name| db.is_none_or(|db| name.db == db));
}

/// The lines stay with the number of their database, as the connections in them do; the locks move.
fn swapped(ctx: Ctx<'_>, first: i32, second: i32) {
    if first == second {
        return;
    }
    if with(|s| s.db(first).held() + s.db(second).held()) > 0 {
        grace::forgot(ctx, "databases with locks were swapped");
    }
    with(|s| {
        let one = std::mem::take(s.db(first));
        let other = std::mem::replace(s.db(second), one);
        *s.db(first) = other;
        let swap = |name: &mut Name<'static>| match name.db {
            db if db == first => name.db = second,
            db if db == second => name.db = first,
            _ => {}
        };
        s.ephemerals.values_mut().for_each(|holds| rename_all(holds, swap));
        s.pending.iter_mut().for_each(|task| task.rename_holds(swap));
        s.deliveries.names().for_each(swap);
    });
    serve_lines(|name| name.db == first || name.db == second);
}

pub fn serve_lines(of: impl Fn(&Name<'static>) -> bool) {
    with(|s| {
        let tasks: Vec<Task> = s.waiting.names().filter(|name| of(name)).cloned().map(Task::Serve).collect();
        tasks.into_iter().for_each(|task| s.pending.push_back(task));
    });
}

/// Whether any hold was bound to it.
fn client_gone(client: ClientId) -> bool {
    with(|s| {
        let Some(holds) = s.ephemerals.remove(&client) else { return false };
        s.pending.push_back(Task::Disconnected(client, holds));
        true
    })
}
