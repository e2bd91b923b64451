//! The proof that nothing was forgotten, as this server knows it: whether it is on the disk, and what speaks
//! for one.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError};

use dlock_core::Instant;
use dlock_core::proof::Facts;

use crate::config::Config;
use crate::disk::{self, aof::Aof, files::Unfinished};

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
    options: AofOptions,
    making: Option<Receiver<Made>>,
    /// Not tried again before.
    pause_until: Instant,
    lacks: String,
}

/// What has come of making one.
pub type Made = Result<Unfinished, String>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    None,
    /// It is on the disk, or may be.
    Stands,
    /// It stands, and must not.
    Stuck,
}

/// What the options say of the append only file.
#[derive(Clone, Copy, Default)]
pub struct AofOptions {
    /// `appendonly yes`.
    pub has_file: bool,
    /// `appendfsync always` and `no-appendfsync-on-rewrite no`.
    pub syncs_each_grant: bool,
}

/// How far the thread is that makes one.
pub enum Making {
    /// There is none. With what one begins, where that may be tried by now.
    Idle(Option<(PathBuf, Aof)>),
    Busy,
    Done(Made, PathBuf),
}

/// What a withdrawal came to, as far as it is news.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Withdrawn {
    AsExpected,
    /// It had been tried for a while.
    AtLast,
    NotYet,
    StillNot,
}

impl Status {
    fn of(file: &Path) -> Status {
        if disk::proof::may_be_there(file) { Status::Stands } else { Status::None }
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
            options: AofOptions::default(),
            making: None,
            pause_until: Instant::from_micros(0),
            lacks: String::new(),
        }
    }

    /// The module is loaded, and has looked there.
    pub fn start(&mut self, file: PathBuf, aof: Option<Aof>, found: Result<(), String>) {
        // Whatever is there, it goes unless it proves something.
        self.status = Status::of(&file);
        // That is seen when all is loaded.
        self.knows_all = found.is_ok();
        (self.file, self.aof, self.found) = (file, aof, found);
    }

    pub fn is_at(&self, file: &Path) -> bool {
        self.file == file
    }

    pub fn move_to(&mut self, file: PathBuf) {
        self.status = Status::of(&file);
        self.file = file;
    }

    pub fn set_options(&mut self, options: AofOptions) {
        self.options = options;
    }

    pub fn options(&self) -> AofOptions {
        self.options
    }

    /// The append only file is looked for there from now on.
    pub fn looks_for(&mut self, aof: Option<&Aof>) {
        self.at_home &= self.aof.as_ref() == aof;
    }

    pub fn size_of_file(&self) -> Option<u64> {
        self.aof.as_ref()?.size()
    }

    /// Why the start has to think that the run before granted what it does not know of.
    pub fn found(&self) -> Result<(), String> {
        self.found.clone()
    }

    /// Nothing is forgotten, or all that may be has expired.
    pub fn knows_all(&mut self) {
        self.knows_all = true;
    }

    /// Something may have been forgotten.
    pub fn knows_not_all(&mut self) {
        self.knows_all = false;
    }

    pub fn had_replicas(&mut self) {
        self.had_replicas = true;
    }

    /// What is known, but for whether the file is written: only the server can tell that.
    pub fn facts(&self, config: &Config, is_master: bool, grace_runs: bool) -> Facts {
        Facts {
            has_grace: config.bounds.grace.is_some(),
            is_master,
            has_mark: config.fence_mark,
            had_replicas: self.had_replicas,
            knows_all: self.knows_all && !grace_runs,
            has_file: self.options.has_file,
            syncs_each_grant: self.options.syncs_each_grant,
            at_home: self.at_home,
            is_written: true,
        }
    }

    pub fn stands(&self) -> bool {
        self.status == Status::Stands
    }

    pub fn is_absent(&self) -> bool {
        self.status == Status::None
    }

    pub fn is_stuck(&self) -> bool {
        self.status == Status::Stuck
    }

    /// When a proof that is stuck is tried to be removed again.
    pub fn tried_again(&self) -> Instant {
        self.pause_until
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
        if self.stands() { "" } else { &self.lacks }
    }

    /// Why there may be none, if there is such a reason. How far making one is stays known.
    pub fn note(&mut self, lack: String) {
        if !lack.is_empty() || self.stands() {
            self.lacks = lack;
        }
    }

    pub fn making(&mut self, now: Instant) -> Making {
        let Some(making) = self.making.take() else {
            let aof = self.aof.clone().filter(|_| now >= self.pause_until);
            return Making::Idle(aof.map(|aof| (self.file.clone(), aof)));
        };
        match making.try_recv() {
            Err(TryRecvError::Empty) => {
                self.making = Some(making);
                Making::Busy
            }
            Err(TryRecvError::Disconnected) => {
                Making::Done(Err("its thread has ended".into()), self.file.clone())
            }
            Ok(made) => Making::Done(made, self.file.clone()),
        }
    }

    /// A thread makes one, and answers there.
    pub fn wait_for(&mut self, making: Receiver<Made>) {
        self.making = Some(making);
        self.lacks = "it is being written".into();
    }

    /// It has its name, or may have.
    pub fn established(&mut self) {
        self.status = Status::Stands;
    }

    pub fn failed(&mut self, why: &str, now: Instant) {
        self.lacks = format!("it cannot be written: {why}");
        self.pause_until = Instant::from_micros(now.micros() + PAUSE);
    }

    /// It has to go: where it is, if it may be there. What a thread makes meanwhile is of before, and goes
    /// with it.
    pub fn withdraw(&mut self) -> Option<PathBuf> {
        self.making = None;
        (!self.is_absent()).then(|| self.file.clone())
    }

    pub fn withdrawn(&mut self, is_gone: bool, now: Instant) -> Withdrawn {
        let was_stuck = self.is_stuck();
        self.status = if is_gone { Status::None } else { Status::Stuck };
        if !is_gone {
            self.pause_until = Instant::from_micros(now.micros() + PAUSE);
        }
        match (is_gone, was_stuck) {
            (true, false) => Withdrawn::AsExpected,
            (true, true) => Withdrawn::AtLast,
            (false, false) => Withdrawn::NotYet,
            (false, true) => Withdrawn::StillNot,
        }
    }
}
