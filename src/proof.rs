//! The proof that nothing was forgotten, as this server keeps it: what it is true of is decided in the core
//! ([`dlock_core::proof`]); here the facts are gathered, and it gets onto the disk and off it.
//!
//! It is established in the background, whenever that is: without it the next start has a grace period, no
//! more. It is withdrawn in the event that voids it, and while that fails nothing new is granted.

use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::thread;

use dlock_core::Instant;
use dlock_core::proof::{Facts, Verdict};

use crate::disk::{aof::Aof, files, proof as disk};
use crate::ffi::{Ctx, Flags, LogLevel};
use crate::module::{AofOptions, Made, Making, Module, Withdrawn};
use crate::{clock, timer};

/// The module is loaded, and nothing else.
pub fn start(m: &Module, ctx: Ctx<'_>) {
    let (file, aof) = (files::of_this_server(ctx, "proof"), Aof::of(ctx));
    let mark = m.with(|s| s.config.fence_mark).then(|| files::of_this_server(ctx, "fence"));
    let found = match (&aof, &mark) {
        (Some(aof), Some(mark)) => disk::look(&file, aof, mark),
        (None, _) => Err("the append only file has no name".into()),
        (_, None) => Err("dlock.fence-mark is off".into()),
    };
    m.with(|s| s.proof.start(file, aof, found));
    read_options(m, ctx);
    withdraw_if_void(m, ctx);
}

/// CONFIG SET.
pub fn configured(m: &Module, ctx: Ctx<'_>) {
    read_options(m, ctx);
    let (file, aof) = (files::of_this_server(ctx, "proof"), Aof::of(ctx));
    if !m.with(|s| s.proof.is_at(&file)) {
        withdraw(m, ctx);
        m.with(|s| s.proof.move_to(file));
        // Whatever stands there is not of this run.
        withdraw(m, ctx);
    }
    m.with(|s| s.proof.looks_for(aof.as_ref()));
    withdraw_if_void(m, ctx);
}

fn withdraw_if_void(m: &Module, ctx: Ctx<'_>) {
    if facts(m, ctx).judge(true) == Verdict::Withdraw {
        withdraw(m, ctx);
    }
}

fn read_options(m: &Module, ctx: Ctx<'_>) {
    let is = |option, value| ctx.option(option).is_some_and(|set| set == value);
    let has_file = is("appendonly", "yes");
    let syncs_each_grant = is("appendfsync", "always") && is("no-appendfsync-on-rewrite", "no");
    m.with(|s| s.proof.set_options(AofOptions { has_file, syncs_each_grant }));
}

/// Something may have been forgotten, or others grant what this server does not hear of.
pub fn knows_not_all(m: &Module, ctx: Ctx<'_>) {
    m.with(|s| s.proof.knows_not_all());
    withdraw(m, ctx);
}

/// A replica goes on from where it was: noted whatever the options are, for they may change later.
pub fn replica_came(m: &Module, ctx: Ctx<'_>) {
    m.with(|s| s.proof.had_replicas());
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
    if m.with(|s| s.proof.is_stuck() && now >= s.proof.tried_again()) {
        withdraw(m, ctx);
    }
    if m.with(|s| s.config.bounds.grace.is_some() && s.proof.options().syncs_each_grant) {
        // A replica begins with a snapshot, long before it can be promoted.
        if has_replicas(ctx) {
            m.with(|s| s.proof.had_replicas());
        }
        match facts(m, ctx).judge(m.with(|s| s.proof.stands())) {
            Verdict::Withdraw => withdraw(m, ctx),
            Verdict::Establish if m.with(|s| s.proof.is_absent()) => establish(m, ctx, now),
            _ => {}
        }
    }
    let lack = facts(m, ctx).lack().map_or(String::new(), |lack| lack.to_string());
    m.with(|s| s.proof.note(lack));
}

fn facts(m: &Module, ctx: Ctx<'_>) -> Facts {
    let is_master = ctx.flags().contains(Flags::MASTER);
    let mut facts = m.with(|s| s.proof.facts(&s.config, is_master, s.grace.runs()));
    // Asked last, and only where it matters: to establish one.
    if facts.lack().is_none() && m.with(|s| s.proof.is_absent()) {
        facts.is_written = is_written(ctx);
    }
    facts
}

/// The first rewrite after it was switched on is done, and what the server has is with the system.
fn is_written(ctx: Ctx<'_>) -> bool {
    let is = |field, value| ctx.info_number("persistence", field) == Some(value);
    let done = ["aof_rewrite_in_progress", "aof_rewrite_scheduled", "aof_buffer_length", "loading"];
    is("aof_enabled", 1)
        && done.into_iter().all(|field| is(field, 0))
        && ctx.info_text("persistence", "aof_last_bgrewrite_status").is_some_and(|status| status == "ok")
}

/// Begins to make one, or looks how far that is.
fn establish(m: &Module, ctx: Ctx<'_>, now: Instant) {
    let (made, file) = match m.with(|s| s.proof.making(now)) {
        Making::Idle(Some((file, aof))) => return begin_to_make(m, file, aof),
        Making::Idle(None) | Making::Busy => return,
        Making::Done(made, file) => (made, file),
    };
    let stands = made.and_then(|made| disk::establish(made, &file).map_err(|why| why.to_string()));
    // Where it failed late it may be there.
    m.with(|s| s.proof.established());
    match stands {
        Ok(()) => {
            let text = "all that is granted is kept in the append only file: a start from it needs no \
                        dlock.restart-grace";
            ctx.log(LogLevel::Notice, text);
        }
        Err(why) => {
            withdraw(m, ctx);
            m.with(|s| s.proof.failed(&why, now));
        }
    }
}

fn begin_to_make(m: &Module, file: PathBuf, aof: Aof) {
    let (send, making) = channel::<Made>();
    let make = move || send.send(disk::make(&file, &aof).map_err(|why| why.to_string()));
    // Without a thread there is none, and the next tick tries again.
    if thread::Builder::new().name("dlock-proof".into()).spawn(make).is_ok() {
        m.with(|s| s.proof.wait_for(making));
    }
}

/// At once, on the disk. While that fails nothing new is granted: see [`crate::module::State::terms`].
fn withdraw(m: &Module, ctx: Ctx<'_>) {
    let Some(file) = m.with(|s| s.proof.withdraw()) else { return };
    let removed = disk::withdraw(&file);
    let (is_gone, now, name) = (removed.is_ok(), clock::now(), file.display());
    match (m.with(|s| s.proof.withdrawn(is_gone, now)), removed) {
        (Withdrawn::AtLast, _) => {
            ctx.log(LogLevel::Notice, &format!("{name} is removed; locks are granted again"));
            m.with(|s| s.serve(|_| true));
            timer::rearm(m);
        }
        (Withdrawn::NotYet, Err(why)) => {
            let text = format!(
                "{name} says that all that is granted is kept, which is not true any more, and cannot be removed: \
                 {why}. Nothing new is granted until it is. It is tried again each 5 s"
            );
            ctx.log(LogLevel::Warning, &text);
        }
        _ => {}
    }
}
