//! The fence mark as the event loop knows it: where it is, and the thread that writes it.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError};

use dlock_core::marking::{Done, Marking, News, Order, Status};
use dlock_core::{Fences, Instant};

#[derive(Default)]
pub struct Mark {
    marking: Marking,
    file: PathBuf,
    thread: Option<Receiver<Outcome>>,
    /// The first one waits until the files are loaded.
    put_off: bool,
}

/// What has come of a write.
pub type Outcome = Result<Done, String>;

/// One write is wanted.
pub struct Job {
    pub file: PathBuf,
    pub order: Order,
}

impl Mark {
    /// The module is loaded. Whether the first mark is written now.
    pub fn start(&mut self, file: PathBuf, put_off: bool) -> bool {
        (self.file, self.put_off) = (file, put_off);
        !put_off
    }

    pub fn status(&self) -> Status {
        self.marking.status()
    }

    pub fn file(&self) -> String {
        self.file.display().to_string()
    }

    pub fn is_writing(&self) -> bool {
        self.marking.is_writing()
    }

    /// True once, when the first mark has waited.
    pub fn was_put_off(&mut self) -> bool {
        std::mem::take(&mut self.put_off)
    }

    /// CONFIG SET.
    pub fn move_to(&mut self, file: PathBuf) {
        if self.file != file {
            self.file = file;
            self.thread = None;
            self.marking.moved();
        }
    }

    pub fn off(&mut self, fences: &mut Fences) {
        self.marking.off(fences);
    }

    pub fn is_due(&self, fences: &Fences, now: Instant) -> bool {
        self.marking.is_due(fences, now)
    }

    pub fn begin(&mut self, fences: &Fences, now: Instant) -> Job {
        Job { file: self.file.clone(), order: self.marking.begin(fences, now) }
    }

    /// A thread writes, and answers there.
    pub fn wait_for(&mut self, thread: Receiver<Outcome>, now: Instant) {
        self.thread = Some(thread);
        self.marking.handed_over(now);
    }

    pub fn finish(&mut self, outcome: Outcome, fences: &mut Fences, now: Instant) -> Vec<News> {
        self.marking.finish(outcome, fences, now)
    }

    /// What has come of the thread, if that is known by now.
    pub fn outcome(&mut self, now: Instant) -> Option<Outcome> {
        let outcome = match self.thread.as_ref()?.try_recv() {
            Ok(outcome) => outcome,
            Err(TryRecvError::Disconnected) => Err("the thread that writes it has ended".into()),
            Err(TryRecvError::Empty) => {
                return self.marking.is_late(now).then(|| Err("the disk does not answer".into()));
            }
        };
        self.thread = None;
        self.marking.thread_ended();
        Some(outcome)
    }
}
