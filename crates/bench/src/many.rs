//! A server with a great many holds.

use std::io::{Error, Result};
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::contenders::{self, TOKEN};
use crate::resp::{Command, Conn, Expect, KEY, strange};
use crate::run::Run;
use crate::server::{Program, Server};

/// Whose holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Dlock,
    /// Strings that the server expires.
    Set,
}

/// How many are live.
pub const HOLDS: u64 = 1_000_000;

/// Longer than any measurement.
const LONG: Duration = Duration::from_secs(40_000);

/// How many go into one write, all with the same lease.
const BATCH: u64 = 250;

/// A server with its holds.
pub struct Many {
    pub server: Server,
    pub conn: Conn,
    way: Way,
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Way::Dlock => "dlock",
            Way::Set => "SET PX",
        }
    }

    fn as_contender(self) -> contenders::Way {
        match self {
            Way::Dlock => contenders::Way::Dlock,
            Way::Set => contenders::Way::SetDel,
        }
    }
}

impl Many {
    /// With this many holds that outlast the measurement.
    pub fn start(run: &Run, way: Way, holds: u64) -> Result<Many> {
        Many::start_by(&run.program, way, holds)
    }

    pub fn start_by(program: &Program, way: Way, holds: u64) -> Result<Many> {
        let server = program.start(way == Way::Dlock, &[])?;
        let mut many = Many { conn: server.connect()?, server, way };
        many.take_lasting(0..holds)?;
        Ok(many)
    }

    /// Acquires these for longer than any measurement.
    pub fn take_lasting(&mut self, which: Range<u64>) -> Result<()> {
        self.take_for(TOKEN, which, || Ok(LONG)).map_err(|why| self.explain(&why))
    }

    /// As [`Many::take_lasting`], each with a token of its own of so many bytes.
    pub fn take_with_own_tokens(&mut self, which: Range<u64>, bytes: usize) -> Result<()> {
        // The key is filled in here too.
        let token = format!("{KEY}{}", &TOKEN[..bytes - KEY.len()]);
        self.take_for(&token, which, || Ok(LONG)).map_err(|why| self.explain(&why))
    }

    /// Acquires these; all expire at the same moment.
    pub fn take(&mut self, which: Range<u64>, due: Instant) -> Result<()> {
        self.take_for(TOKEN, which, || {
            let left = due.saturating_duration_since(Instant::now());
            let late = || Error::other("acquiring the locks takes longer than their lease");
            if left.as_millis() > 0 { Ok(left) } else { Err(late()) }
        })
    }

    /// The lease is asked for before each write.
    fn take_for(
        &mut self,
        token: &str,
        which: Range<u64>,
        lease: impl Fn() -> Result<Duration>,
    ) -> Result<()> {
        let mut batch = Vec::new();
        for first in which.clone().step_by(BATCH as usize) {
            let ttl = lease()?.as_millis().to_string();
            let (command, expected) = match self.way {
                Way::Dlock => (Command::new(&["DLOCK.ACQUIRE", KEY, token, &ttl]), Expect::Number),
                Way::Set => (Command::new(&["SET", KEY, token, "NX", "PX", &ttl]), Expect::Line("+OK")),
            };
            let numbers = first..which.end.min(first + BATCH);
            batch.clear();
            numbers.clone().for_each(|number| command.push(&mut batch, number));
            self.conn.send(&batch)?;
            for _ in numbers {
                expected.check(self.conn.line()?)?;
            }
        }
        Ok(())
    }

    /// Acquires and releases the locks of these numbers; the others stay.
    pub fn pairs(&mut self, numbers: Range<u64>) -> Result<()> {
        let pair = self.way.as_contender().prepare(&mut self.conn, TOKEN)?;
        let pair = pair.ok_or_else(|| strange("this server lacks a contender's command"))?;
        pair.run_on(&mut self.conn, numbers)
    }

    /// How many more there are than this, expired or not.
    pub fn more_than(&mut self, holds: u64) -> Result<u64> {
        let all = self.conn.call(&["DBSIZE"])?.int();
        Ok((all as u64).saturating_sub(holds))
    }

    /// Deletes these where they are still there.
    pub fn remove(&mut self, which: Range<u64>) -> Result<()> {
        let command = Command::new(&["DEL", KEY]);
        for first in which.clone().step_by(BATCH as usize) {
            let numbers = first..which.end.min(first + BATCH);
            let mut batch = Vec::new();
            numbers.clone().for_each(|number| command.push(&mut batch, number));
            self.conn.send(&batch)?;
            self.conn.skip(numbers.count())?;
        }
        Ok(())
    }

    pub fn explain(&self, why: &Error) -> Error {
        self.server.explain(self.way.name(), why)
    }
}
