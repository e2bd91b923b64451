//! The fence mark as the event loop knows it: where it is, and the thread that writes it.

use std::path::PathBuf;
use std::sync::mpsc::Receiver;

use dlock_core::marking::{Done, Marking, Status};

#[derive(Default)]
pub struct Mark {
    pub marking: Marking,
    pub file: PathBuf,
    /// A thread writes, and answers there.
    pub thread: Option<Receiver<Outcome>>,
}

/// What has come of a write.
pub type Outcome = Result<Done, String>;

impl Mark {
    pub fn status(&self) -> Status {
        self.marking.status()
    }
}
