//! A client that pings: what delays it delays every client.

use std::io::Result;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::resp::{Command, Conn, Expect};
use crate::server::{Server, kept_us_waiting};

const EVERY: Duration = Duration::from_millis(1);

/// Explains the columns "own".
pub const OWN: &str =
    "Own: without the time in which other processes had the processor that the server or the client needed.";

/// How many microseconds something took.
#[derive(Clone, Copy)]
pub struct Took {
    pub all: f64,
    /// Without the time in which other processes had the processor that the server or the client needed.
    pub own: f64,
}

/// How long the server and the client have waited for a processor, before something is measured.
pub struct Delays<'a> {
    server: &'a Server,
    before: Duration,
}

impl Delays<'_> {
    pub fn start(server: &Server) -> Delays<'_> {
        Delays { server, before: server.kept_waiting() + kept_us_waiting() }
    }

    /// What began at `start` ends now.
    pub fn end(self, start: Instant) -> Took {
        let all = start.elapsed();
        let delayed = self.server.kept_waiting() + kept_us_waiting() - self.before;
        let own = all.saturating_sub(delayed);
        Took { all: all.as_secs_f64() * 1e6, own: own.as_secs_f64() * 1e6 }
    }
}

/// Pings for this long, one per millisecond, or as soon as the one before is answered.
pub fn ping_for(server: &Server, conn: &mut Conn, time: Duration) -> Result<Vec<Took>> {
    let start = Instant::now();
    let mut took = Vec::new();
    while start.elapsed() < time {
        took.push(ping(server, conn)?);
        let next = EVERY * took.len() as u32;
        sleep(next.saturating_sub(start.elapsed()));
    }
    Ok(took)
}

pub fn ping(server: &Server, conn: &mut Conn) -> Result<Took> {
    let delays = Delays::start(server);
    let start = Instant::now();
    conn.send(&Command::new(&["PING"]).on_key(0))?;
    Expect::Line("+PONG").check(conn.line()?)?;
    Ok(delays.end(start))
}
