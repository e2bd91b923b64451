//! The proof that nothing was forgotten, as this server keeps it: what it is true of is decided in the core
//! ([`dlock_core::proof`]); here the facts are gathered, and it gets onto the disk and off it.
//!
//! It is established in the background, whenever that is: without it the next start has a grace period, no more. It is
//! withdrawn in the event that voids it, and while that fails nothing new is granted.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use dlock_core::Instant;
use dlock_core::proof::{Facts, Verdict};

use super::aof::Aof;
use super::disk;
use crate::ffi::{Ctx, Flags, LogLevel};
use crate::files::Unfinished;
use crate::state::with;
use crate::{clock, deadlines, events, mark};

/// What failed is tried again after so long, in microseconds.
const PAUSE: u64 = 5_000_000;

pub struct Proof {
    file: PathBuf,
    status: Status,
    /// What the start has found, or why it is no proof.
    found: Result<(), String>,
    knows_all: bool,
    had_replicas: bool,
    /// The append only file of the start.
    aof: Option<Aof>,
    at_home: bool,
    /// What the options say of the append only file.
    has_file: bool,
    syncs_each_grant: bool,
    making: Option<Receiver<Result<Unfinished, String>>>,
    /// Not tried again before.
    pause_until: Instant,
    lacks: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Status {
    None,
    /// It is on the disk, or may be.
    Stands,
    /// It stands, and must not.
    Stuck,
}

impl Status {
    fn of(file: &Path) -> Status {
        if disk::may_be_there(file) { Status::Stands } else { Status::None }
    }
}

impl Proof {
    pub fn new() -> Proof {
        Proof {
            file: PathBuf::new(),
            status: Status::None,
            found: Err("there is none".into()),
            knows_all: false,
            had_replicas: false,
            aof: None,
            at_home: true,
            has_file: false,
            syncs_each_grant: false,
            making: None,
            pause_until: Instant::from_micros(0),
            lacks: String::new(),
        }
    }

    pub fn is_stuck(&self) -> bool {
        self.status == Status::Stuck
    }

    /// When a proof that is stuck is tried to be removed again.
    pub fn tried_again(&self) -> Instant {
        self.pause_until
    }

    pub fn stands(&self) -> bool {
        self.status == Status::Stands
    }

    pub fn word(&self) -> &'static str {
        match self.status {
            Status::None => "none",
            Status::Stands => "ok",
            Status::Stuck => "failing",
        }
    }

    /// Why there is none; empty where there is.
    pub fn lacks(&self) -> &str {
        if self.status == Status::Stands { "" } else { &self.lacks }
    }

    /// Why the start has to think that the run before granted what it does not know of.
    pub fn found(&self) -> Result<(), String> {
        self.found.clone()
    }

    pub fn has_file(&self) -> bool {
        self.has_file
    }

    pub fn syncs_each_grant(&self) -> bool {
        self.syncs_each_grant
    }

    pub fn size_of_file(&self) -> Option<u64> {
        self.aof.as_ref()?.size()
    }
}

/// The module is loaded, and nothing else.
pub fn start(ctx: Ctx<'_>) {
    let (file, aof) = (mark::file(ctx, "proof"), Aof::of(ctx));
    let mark = with(|s| s.config.fence_mark).then(|| mark::file(ctx, "fence"));
    let found = match (&aof, &mark) {
        (Some(aof), Some(mark)) => disk::look(&file, aof, mark),
        (None, _) => Err("the append only file has no name".into()),
        (_, None) => Err("dlock.fence-mark is off".into()),
    };
    with(|s| {
        let proof = &mut s.grace.proof;
        (proof.file, proof.aof, proof.found) = (file, aof, found);
        // Whatever is there, it goes unless it proves something.
        proof.status = Status::of(&proof.file);
        // That is seen when all is loaded.
        proof.knows_all = proof.found.is_ok();
    });
    read_options(ctx);
    if judge(ctx, true) == Verdict::Withdraw {
        withdraw(ctx);
    }
}

/// CONFIG SET.
pub fn configured(ctx: Ctx<'_>) {
    read_options(ctx);
    let (file, aof) = (mark::file(ctx, "proof"), Aof::of(ctx));
    if with(|s| s.grace.proof.file != file) {
        withdraw(ctx);
        let status = Status::of(&file);
        with(|s| (s.grace.proof.file, s.grace.proof.status) = (file, status));
        // Whatever stands there is not of this run.
        withdraw(ctx);
    }
    with(|s| s.grace.proof.at_home &= s.grace.proof.aof == aof);
    if judge(ctx, true) == Verdict::Withdraw {
        withdraw(ctx);
    }
}

fn read_options(ctx: Ctx<'_>) {
    let is = |option, value| ctx.option(option).is_some_and(|set| set == value);
    let has_file = is("appendonly", "yes");
    let syncs = is("appendfsync", "always") && is("no-appendfsync-on-rewrite", "no");
    with(|s| (s.grace.proof.has_file, s.grace.proof.syncs_each_grant) = (has_file, syncs));
}

/// Nothing is forgotten, or all that may be is over.
pub fn knows_all() {
    with(|s| s.grace.proof.knows_all = true);
}

/// Something may have been forgotten, or others grant what this server does not hear of.
pub fn knows_not_all(ctx: Ctx<'_>) {
    with(|s| s.grace.proof.knows_all = false);
    withdraw(ctx);
}

/// A replica goes on from where it was: noted whatever the options are, for they may change later.
pub fn replica_came(ctx: Ctx<'_>) {
    with(|s| s.grace.proof.had_replicas = true);
    withdraw(ctx);
}

/// A child was forked, maybe to send a replica all there is. It can be promoted before it has said that it has that.
pub fn forked(ctx: Ctx<'_>) {
    if ctx.info_number("replication", "connected_slaves") != Some(0) {
        replica_came(ctx);
    }
}

/// A tick of a server that is up.
pub fn keep(ctx: Ctx<'_>) {
    let now = clock::now();
    if with(|s| s.grace.proof.is_stuck() && now >= s.grace.proof.pause_until) {
        withdraw(ctx);
    }
    if !with(|s| s.config.restart_grace > 0 && s.grace.proof.syncs_each_grant) {
        return note(ctx);
    }
    // A replica begins with a snapshot, long before it can be promoted.
    if ctx.info_number("replication", "connected_slaves") != Some(0) {
        with(|s| s.grace.proof.had_replicas = true);
    }
    match judge(ctx, with(|s| s.grace.proof.status == Status::Stands)) {
        Verdict::Withdraw => withdraw(ctx),
        Verdict::Establish if with(|s| s.grace.proof.status == Status::None) => establish(ctx, now),
        _ => {}
    }
    note(ctx);
}

fn note(ctx: Ctx<'_>) {
    let lack = facts(ctx).lack().map_or(String::new(), |lack| lack.to_string());
    with(|s| {
        let proof = &mut s.grace.proof;
        if !lack.is_empty() || proof.status == Status::Stands {
            proof.lacks = lack;
        }
    });
}

fn judge(ctx: Ctx<'_>, stands: bool) -> Verdict {
    facts(ctx).judge(stands)
}

fn facts(ctx: Ctx<'_>) -> Facts {
    let flags = ctx.flags();
    let mut facts = with(|s| {
        let proof = &s.grace.proof;
        Facts {
            has_grace: s.config.restart_grace > 0,
            is_master: flags.contains(Flags::MASTER),
            has_mark: s.config.fence_mark,
            had_replicas: proof.had_replicas,
            knows_all: proof.knows_all && !s.grace.runs,
            has_file: proof.has_file,
            syncs_each_grant: proof.syncs_each_grant,
            at_home: proof.at_home,
            is_written: true,
        }
    });
    // Asked last, and only where it matters: to establish one.
    if facts.lack().is_none() && with(|s| s.grace.proof.status == Status::None) {
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
fn establish(ctx: Ctx<'_>, now: Instant) {
    let Some(making) = with(|s| s.grace.proof.making.take()) else {
        return begin_to_make(now);
    };
    let (made, file) = match making.try_recv() {
        Err(TryRecvError::Empty) => return with(|s| s.grace.proof.making = Some(making)),
        Err(TryRecvError::Disconnected) => (Err("its thread has ended".into()), PathBuf::new()),
        Ok(made) => (made, with(|s| s.grace.proof.file.clone())),
    };
    let stands = made.and_then(|made| disk::establish(made, &file).map_err(|why| why.to_string()));
    // Where it failed late it may be there.
    with(|s| s.grace.proof.status = Status::Stands);
    match stands {
        Ok(()) => {
            let text = "all that is granted is kept in the append only file: a start from it needs no \
                        dlock.restart-grace";
            ctx.log(LogLevel::Notice, text);
        }
        Err(why) => {
            withdraw(ctx);
            with(|s| {
                s.grace.proof.lacks = format!("it cannot be written: {why}");
                s.grace.proof.pause_until = Instant::from_micros(now.micros() + PAUSE);
            });
        }
    }
}

fn begin_to_make(now: Instant) {
    let Some((file, aof)) = with(|s| {
        let proof = &s.grace.proof;
        proof.aof.clone().filter(|_| now >= proof.pause_until).map(|aof| (proof.file.clone(), aof))
    }) else {
        return;
    };
    let (send, making) = channel();
    let make = move || send.send(disk::make(&file, &aof).map_err(|why| why.to_string()));
    // Without a thread there is none, and the next tick tries again.
    if thread::Builder::new().name("dlock-proof".into()).spawn(make).is_ok() {
        with(|s| {
            s.grace.proof.making = Some(making);
            s.grace.proof.lacks = "it is being written".into();
        });
    }
}

/// At once, on the disk. While that fails nothing new is granted: see [`super::Grace::grants_from`].
pub fn withdraw(ctx: Ctx<'_>) {
    // What a thread makes meanwhile is of before, and goes with it.
    let Some((file, before)) = with(|s| {
        let proof = &mut s.grace.proof;
        proof.making = None;
        (proof.status != Status::None).then(|| (proof.file.clone(), proof.status))
    }) else {
        return;
    };
    let withdrawn = disk::withdraw(&file);
    let name = file.display();
    match withdrawn {
        Ok(()) => {
            with(|s| s.grace.proof.status = Status::None);
            if before == Status::Stuck {
                ctx.log(LogLevel::Notice, &format!("{name} is removed; locks are granted again"));
                events::serve_lines(|_| true);
                deadlines::rearm();
            }
        }
        Err(why) => {
            let until = Instant::from_micros(clock::now().micros() + PAUSE);
            with(|s| (s.grace.proof.status, s.grace.proof.pause_until) = (Status::Stuck, until));
            if before != Status::Stuck {
                let text = format!(
                    "{name} says that all that is granted is kept, which is not true any more, and cannot be \
                     removed: {why}. Nothing new is granted until it is. It is tried again each 5 s"
                );
                ctx.log(LogLevel::Warning, &text);
            }
        }
    }
}
