//! A client that pings: what it has to wait for is what any client has to wait for.

use std::io::Result;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::resp::{Command, Conn, Expect};

const EVERY: Duration = Duration::from_millis(1);

/// Microseconds of each ping, one a millisecond, or as soon as the one before is answered.
pub fn ping_for(conn: &mut Conn, time: Duration) -> Result<Vec<f64>> {
    let start = Instant::now();
    let mut took = Vec::new();
    while start.elapsed() < time {
        took.push(ping(conn)?);
        let next = EVERY * took.len() as u32;
        sleep(next.saturating_sub(start.elapsed()));
    }
    Ok(took)
}

/// Microseconds of one ping.
pub fn ping(conn: &mut Conn) -> Result<f64> {
    let start = Instant::now();
    conn.send(&Command::new(&["PING"]).on_key(0))?;
    Expect::Line("+PONG").check(conn.line()?)?;
    Ok(start.elapsed().as_secs_f64() * 1e6)
}
