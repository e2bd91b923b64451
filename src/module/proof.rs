//! The proof that nothing was forgotten, as this server knows it: whether it is on the disk, and what speaks
//! for one.

use std::path::PathBuf;
use std::sync::mpsc::Receiver;

use dlock_core::Instant;
use dlock_core::proof::Facts;

use crate::disk::{aof::Aof, files::Unfinished};

pub struct Proof {
    pub file: PathBuf,
    pub status: Standing,
    /// What the start has found, or why it is no proof.
    pub found: Result<(), String>,
    /// As they were last; the role, the options of dlock and a grace period that runs are looked at each
    /// time.
    pub facts: Facts,
    /// The append only file of the start.
    pub aof: Option<Aof>,
    /// A thread makes one, and answers there.
    pub making: Option<Receiver<Made>>,
    /// What failed is not tried again before.
    pub pause_until: Instant,
    lacks: String,
}

/// What has come of making one.
pub type Made = Result<Unfinished, String>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    None,
    /// It is on the disk, or may be.
    Stands,
    /// It stands, and must not.
    Stuck,
}

impl Default for Proof {
    fn default() -> Proof {
        Proof {
            file: PathBuf::new(),
            status: Standing::None,
            found: Err("there is none".into()),
            facts: Facts { at_home: true, ..Facts::default() },
            aof: None,
            making: None,
            pause_until: Instant::from_micros(0),
            lacks: String::new(),
        }
    }
}

impl Proof {
    pub fn size_of_file(&self) -> Option<u64> {
        self.aof.as_ref()?.size()
    }

    pub fn stands(&self) -> bool {
        self.status == Standing::Stands
    }

    pub fn is_stuck(&self) -> bool {
        self.status == Standing::Stuck
    }

    pub fn word(&self) -> &'static str {
        match self.status {
            Standing::None => "none",
            Standing::Stands => "ok",
            Standing::Stuck => "failing",
        }
    }

    /// Why there is none; empty where there is.
    pub fn lacks(&self) -> &str {
        if self.stands() { "" } else { &self.lacks }
    }

    pub fn note(&mut self, lack: String) {
        self.lacks = lack;
    }
}
