//! A server with very many holds.

use std::io::{Error, Result};
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::contenders::{self, TOKEN};
use crate::resp::{Command, Conn, Expect, KEY, Value, strange};
use crate::run::Run;
use crate::server::Server;

/// Whose holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Dlock,
    /// Strings that the server lets expire by itself.
    Set,
}

/// All that are live.
pub const HOLDS: u64 = 1_000_000;

/// Until nobody measures any more.
const LONG: Duration = Duration::from_secs(40_000);

/// In one write; all of its holds last equally long.
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
    /// With so many holds that last.
    pub fn start(run: &Run, way: Way, holds: u64) -> Result<Many> {
        let server = run.program.start(way == Way::Dlock, &["--enable-debug-command", "yes"])?;
        let mut many = Many { conn: server.connect()?, server, way };
        many.take_lasting(0..holds)?;
        Ok(many)
    }

    /// Takes these until nobody measures any more.
    pub fn take_lasting(&mut self, which: Range<u64>) -> Result<()> {
        self.take(which, Instant::now() + LONG).map_err(|why| self.explain(&why))
    }

    /// Takes these, all until the same moment.
    pub fn take(&mut self, which: Range<u64>, due: Instant) -> Result<()> {
        let mut batch = Vec::new();
        for first in which.clone().step_by(BATCH as usize) {
            let left = due.saturating_duration_since(Instant::now()).as_millis();
            if left == 0 {
                return Err(Error::other("taking the locks takes longer than they last"));
            }
            let ttl = left.to_string();
            let (command, expected) = match self.way {
                Way::Dlock => (Command::new(&["DLOCK.ACQUIRE", KEY, TOKEN, &ttl]), Expect::Number),
                Way::Set => (Command::new(&["SET", KEY, TOKEN, "NX", "PX", &ttl]), Expect::Line("+OK")),
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

    /// Takes and frees the locks of these numbers, beside those that last.
    pub fn pairs(&mut self, numbers: Range<u64>) -> Result<()> {
        let contender = self.way.as_contender().prepare(&mut self.conn, TOKEN)?;
        let contender = contender.ok_or_else(|| strange("a contender is not on this server"))?;
        contender.pairs(&mut self.conn, numbers)
    }

    /// How many there are besides so many, over or not.
    pub fn besides(&mut self, holds: u64) -> Result<u64> {
        match self.conn.call(&["DBSIZE"])? {
            Value::Int(all) => Ok((all as u64).saturating_sub(holds)),
            other => Err(strange(&format!("{other:?}"))),
        }
    }

    /// Ends these, those that are over and still there.
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
