//! The file of the fence mark: one write, as the thread does it. Touches nothing but the file.

use std::path::{Path, PathBuf};

use dlock_core::mark::{self, NoMark};
use dlock_core::{Fences, Instant};

use crate::files::{self, Unfinished};

/// A mark that is further ahead of the clock than this at a start is worth a word to the operator.
const WORTH_TELLING: u64 = 10_000_000;

/// One write, with all it needs.
pub struct Job {
    pub file: PathBuf,
    pub now: Instant,
    /// The greatest number up to now.
    pub last: u64,
    /// What this server wrote there last.
    pub written: Option<u64>,
}

pub struct Done {
    pub mark: u64,
    pub found: Found,
}

/// What stood in the file before.
pub enum Found {
    /// Nothing, or what this server wrote.
    Nothing,
    /// The mark of the run before.
    Before(u64),
    /// The mark of somebody else, who runs now.
    Theirs(u64),
    Damaged,
}

impl Job {
    /// Whatever stands in the file may have been issued, by whomever: the new mark is above it.
    pub fn run(self) -> Result<Done, String> {
        let found = match read(&self.file)? {
            Found::Before(there) if self.written == Some(there) => Found::Nothing,
            Found::Before(there) if self.written.is_some() => Found::Theirs(there),
            found => found,
        };
        let mark = Fences::mark_for(self.now, self.last.max(found.number()));
        write(&self.file, mark).map_err(|why| why.to_string())?;
        Ok(Done { mark, found })
    }
}

impl Found {
    pub fn number(&self) -> u64 {
        match self {
            Found::Before(number) | Found::Theirs(number) => *number,
            Found::Nothing | Found::Damaged => 0,
        }
    }

    /// What an operator should hear of.
    pub fn news(&self, now: Instant) -> Option<String> {
        match self {
            Found::Before(mark) if *mark > now.micros() + WORTH_TELLING => {
                let seconds = (mark - now.micros()) / 1_000_000;
                Some(format!("is {seconds} s ahead of the clock: fences go on above it"))
            }
            Found::Theirs(_) => {
                Some("is written by another server too: give each a port or a dir of its own".into())
            }
            Found::Damaged => Some("was damaged: fences go on from the clock alone".into()),
            _ => None,
        }
    }
}

/// Nothing, a mark, or a damaged one. What cannot be read, or only by a newer module, is an error: not to be replaced.
fn read(file: &Path) -> Result<Found, String> {
    let Some(bytes) = files::read(file, mark::MAX_LEN)? else { return Ok(Found::Nothing) };
    match mark::read(&bytes) {
        Ok(mark) => Ok(Found::Before(mark)),
        Err(NoMark::Damaged) => Ok(Found::Damaged),
        Err(newer) => Err(newer.to_string()),
    }
}

/// All of it or nothing, and on the disk when it is done, whatever happens meanwhile.
fn write(file: &Path, mark: u64) -> std::io::Result<()> {
    let mut unfinished = Unfinished::beside(file)?;
    unfinished.write(&mark::write(mark))?;
    unfinished.becomes(file)?;
    files::sync_folder(file)
}
