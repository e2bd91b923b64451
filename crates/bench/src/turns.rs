//! How long a server's event loop is busy at a stretch, by its processor time: so it needs no quiet machine.

use std::fs::{self, OpenOptions};
use std::io::Result;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use dlock_testkit::Folder;

use crate::server::Program;

/// Explains the columns "turn".
pub const TURN: &str = "Turn: one round of the server's event loop, by the processor time that its main thread used: \
    nobody is answered meanwhile. The time in which others had the processor is not in it.";

/// The turns of the server that is started by the program that came with it.
pub struct Turns(Folder);

/// Since they were last asked for.
pub struct Longest {
    pub us: f64,
    /// How many took more than a millisecond.
    pub over_a_ms: f64,
}

impl Turns {
    pub fn of(program: &Program) -> Result<(Program, Turns)> {
        let turns = Turns(Folder::fresh());
        fs::write(turns.file(), [0; 16])?;
        Ok((program.preloading("crates/bench/src/turns.c", &[("TURNS", &turns.file())]), turns))
    }

    /// What there was since this was called before.
    pub fn take(&self) -> Result<Longest> {
        // In place: the server has the file mapped.
        let file = OpenOptions::new().read(true).write(true).open(self.file())?;
        let mut figures = [0; 16];
        file.read_exact_at(&mut figures, 0)?;
        file.write_all_at(&[0; 16], 0)?;
        let (longest, over) = figures.split_at(8);
        let [longest, over] =
            [longest, over].map(|figure| figure.iter().rev().fold(0.0, |n, b| n * 256.0 + f64::from(*b)));
        Ok(Longest { us: longest / 1e3, over_a_ms: over })
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("turns")
    }
}
