//! The proof that nothing was forgotten, as this server keeps it: what it is true of is decided in the core
//! ([`dlock_core::proof`]); here the facts are gathered, and it gets onto the disk and off it.
//!
//! It is established in the background, whenever that is: without it the next start has a grace period, no
//! more. It is withdrawn in the event that voids it, and while that fails nothing new is granted.

use std::path::Path;
use std::sync::mpsc::{TryRecvError, channel};
use std::thread;

use dlock_core::Instant;
use dlock_core::proof::Facts;

use crate::disk::{aof::Aof, files, proof as disk};
use crate::ffi::{Ctx, Flags, LogLevel};
use crate::module::{Made, Module, Standing};
use crate::{clock, timer};

/// What failed is tried again after so long, in microseconds.
const PAUSE: u64 = 5_000_000;

/// The module is loaded, and nothing else.
pub fn start(m: &Module, ctx: Ctx<'_>) {
    let (file, aof) = (files::of_this_server(ctx, "proof"), Aof::of(ctx));
    let mark = m.with(|s| s.config.fence_mark).then(|| files::of_this_server(ctx, "fence"));
    let found = match (&aof, &mark) {
        (Some(aof), Some(mark)) => disk::look(&file, aof, mark),
        (None, _) => Err("the append only file has no name".into()),
        (_, None) => Err("dlock.fence-mark is off".into()),
    };
    m.with(|s| {
        // Whatever is there, it goes unless it proves something.
        s.proof.status = standing(&file);
        // That is seen when all is loaded.
        s.proof.facts.knows_all = found.is_ok();
        (s.proof.file, s.proof.aof, s.proof.found) = (file, aof, found);
    });
    read_options(m, ctx);
    withdraw_if_void(m, ctx);
}

fn standing(file: &Path) -> Standing {
    if disk::may_be_there(file) { Standing::Stands } else { Standing::None }
}

/// CONFIG SET.
pub fn configured(m: &Module, ctx: Ctx<'_>) {
    read_options(m, ctx);
    let (file, aof) = (files::of_this_server(ctx, "proof"), Aof::of(ctx));
    if m.with(|s| s.proof.file != file) {
        withdraw(m, ctx);
        m.with(|s| (s.proof.status, s.proof.file) = (standing(&file), file));
        // Whatever stands there is not of this run.
        withdraw(m, ctx);
    }
    m.with(|s| s.proof.facts.at_home &= s.proof.aof == aof);
    withdraw_if_void(m, ctx);
}

fn withdraw_if_void(m: &Module, ctx: Ctx<'_>) {
    if facts(m, ctx).lack().is_some() {
        withdraw(m, ctx);
    }
}

fn read_options(m: &Module, ctx: Ctx<'_>) {
    let is = |option, value| ctx.option(option).is_some_and(|set| set == value);
    let has_file = ctx.info_number("persistence", "aof_enabled") == Some(1);
    let syncs_each_grant = is("appendfsync", "always") && is("no-appendfsync-on-rewrite", "no");
    m.with(|s| s.proof.facts = Facts { has_file, syncs_each_grant, ..s.proof.facts });
}

/// Something may have been forgotten, or others grant what this server does not hear of.
pub fn knows_not_all(m: &Module, ctx: Ctx<'_>) {
    m.with(|s| s.proof.facts.knows_all = false);
    withdraw(m, ctx);
}

/// A replica goes on from where it was: noted whatever the options are, for they may change later.
pub fn replica_came(m: &Module, ctx: Ctx<'_>) {
    m.with(|s| s.proof.facts.had_replicas = true);
    withdraw(m, ctx);
}

/// A child was forked, maybe to send a replica all there is. It can be promoted before it has said that it
/// has that.
pub fn forked(m: &Module, ctx: Ctx<'_>) {
    if has_replicas(ctx) {
        replica_came(m, ctx);
    }
}

fn has_replicas(ctx: Ctx<'_>) -> bool {
    ctx.info_number("replication", "connected_slaves") != Some(0)
}

/// A tick of a server that is up.
pub fn keep(m: &Module, ctx: Ctx<'_>) {
    let now = clock::now();
    if m.with(|s| s.proof.is_stuck() && now >= s.proof.pause_until) {
        withdraw(m, ctx);
    }
    // A replica begins with a snapshot, long before it can be promoted.
    let matters = m.with(|s| s.config.bounds.grace.is_some() && s.proof.facts.syncs_each_grant);
    if matters && has_replicas(ctx) {
        m.with(|s| s.proof.facts.had_replicas = true);
    }
    match (m.with(|s| s.proof.status), facts(m, ctx).lack()) {
        (status, Some(lack)) => {
            m.with(|s| s.proof.note(lack.into()));
            if status == Standing::Stands {
                withdraw(m, ctx);
            }
        }
        (Standing::None, None) if is_written(ctx) => establish(m, ctx, now),
        // Only for a moment: it voids no proof that stands.
        (Standing::None, None) => m.with(|s| s.proof.note("the append only file is being rewritten".into())),
        (Standing::Stands | Standing::Stuck, None) => {}
    }
}

fn facts(m: &Module, ctx: Ctx<'_>) -> Facts {
    let is_master = ctx.flags().contains(Flags::MASTER);
    m.with(|s| Facts {
        has_grace: s.config.bounds.grace.is_some(),
        is_master,
        has_mark: s.config.fence_mark,
        knows_all: s.proof.facts.knows_all && !s.grace.runs(),
        ..s.proof.facts
    })
}

/// The file holds what was granted before it was switched on, for the first rewrite after that is done; and
/// all that was written is with the system.
fn is_written(ctx: Ctx<'_>) -> bool {
    let is = |field, value| ctx.info_number("persistence", field) == Some(value);
    let done = ["aof_rewrite_in_progress", "aof_rewrite_scheduled", "aof_buffer_length", "loading"];
    is("aof_enabled", 1)
        && done.into_iter().all(|field| is(field, 0))
        && ctx.info_text("persistence", "aof_last_bgrewrite_status").is_some_and(|status| status == "ok")
}

/// Begins to make one, or looks how far that is.
fn establish(m: &Module, ctx: Ctx<'_>, now: Instant) {
    let Some(making) = m.with(|s| s.proof.making.take()) else {
        return if m.with(|s| now >= s.proof.pause_until) {
            begin_to_make(m)
        };
    };
    let made = match making.try_recv() {
        Err(TryRecvError::Empty) => return m.with(|s| s.proof.making = Some(making)),
        Err(TryRecvError::Disconnected) => Err("its thread has ended".into()),
        Ok(made) => made,
    };
    let file = m.with(|s| s.proof.file.clone());
    let stands = made.and_then(|made| disk::establish(made, &file).map_err(|why| why.to_string()));
    // Where it failed late it may be there.
    m.with(|s| s.proof.status = Standing::Stands);
    if let Err(why) = stands {
        withdraw(m, ctx);
        return m.with(|s| {
            s.proof.note(format!("it cannot be written: {why}"));
            s.proof.pause_until = after_a_pause(now);
        });
    }
    let text =
        "all that is granted is kept in the append only file: a start from it needs no dlock.restart-grace";
    ctx.log(LogLevel::Notice, text);
}

fn begin_to_make(m: &Module) {
    let (file, aof) = m.with(|s| (s.proof.file.clone(), s.proof.aof.clone()));
    let Some(aof) = aof else { return };
    let (send, making) = channel::<Made>();
    let make = move || send.send(disk::make(&file, &aof).map_err(|why| why.to_string()));
    // Without a thread there is none, and the next tick tries again.
    if thread::Builder::new().name("dlock-proof".into()).spawn(make).is_ok() {
        m.with(|s| {
            s.proof.making = Some(making);
            s.proof.note("it is being written".into());
        });
    }
}

fn after_a_pause(now: Instant) -> Instant {
    Instant::from_micros(now.micros() + PAUSE)
}

/// At once, on the disk. While that fails nothing new is granted: see [`crate::module::State::terms`]. What a
/// thread makes meanwhile is of before, and goes with it.
fn withdraw(m: &Module, ctx: Ctx<'_>) {
    m.with(|s| s.proof.making = None);
    let (file, before) = m.with(|s| (s.proof.file.clone(), s.proof.status));
    if before == Standing::None {
        return;
    }
    let (removed, name) = (disk::withdraw(&file), file.display());
    if let Err(why) = removed {
        let now = clock::now();
        m.with(|s| (s.proof.status, s.proof.pause_until) = (Standing::Stuck, after_a_pause(now)));
        if before != Standing::Stuck {
            let text = format!(
                "{name} says that all that is granted is kept, which is not true any more, and cannot be removed: \
                 {why}. Nothing new is granted until it is. It is tried again each 5 s"
            );
            ctx.log(LogLevel::Warning, &text);
        }
        return;
    }
    m.with(|s| s.proof.status = Standing::None);
    if before == Standing::Stuck {
        ctx.log(LogLevel::Notice, &format!("{name} is removed; locks are granted again"));
        m.with(|s| s.serve(None));
        timer::rearm(m);
    }
}
