//! Servers with a wall clock that the test sets.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use crate::conn::Conn;
use crate::folder::Folder;
use crate::kinds::ServerKind;
use crate::preload::preloaded;
use crate::wait::until;

/// An hour, in seconds.
pub const HOUR: i64 = 3_600;

/// The wall clock of the servers that [`WallClock::of`] returns. Their other clocks are the machine's.
pub struct WallClock(Folder);

impl WallClock {
    /// Returns the server with a wall clock that the test can set.
    pub fn of(kind: &ServerKind) -> (ServerKind, WallClock) {
        let clock = WallClock(Folder::fresh());
        clock.set_offset(0);
        let file = clock.0.path().join("clock");
        (preloaded(kind, "crates/testkit/src/wall_clock.c", &[("WALL_CLOCK", &file)]), clock)
    }

    /// Lets the clock run this many seconds ahead of the machine's clock.
    pub fn set_offset(&self, seconds: i64) {
        self.write(seconds * 1_000_000, 0);
    }

    /// Stops the clock at the current time of this server.
    pub fn freeze(&self, conn: &mut Conn) {
        let frozen_at = micros(conn);
        self.write(0, frozen_at);
        let since = Instant::now();
        // Valkey 9.1 reads the clock only once a millisecond, and adds the processor's counter in between. So
        // the time of a stopped clock varies by less than 2 ms. A running clock advances further in 20 ms.
        let is_near = |at: i64| (frozen_at..frozen_at + 2_000).contains(&at);
        until("the server's clock is stopped", || is_near(micros(conn)) && since.elapsed().as_millis() > 20);
    }

    /// Both arguments are in microseconds. The clock runs if `frozen_at` is 0.
    fn write(&self, ahead: i64, frozen_at: i64) {
        // In place and in one write, because the servers map this file.
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).open(self.0.path().join("clock"));
        let bytes = [ahead.to_ne_bytes(), frozen_at.to_ne_bytes()].concat();
        file.and_then(|file| file.write_all_at(&bytes, 0)).expect("the clock can be set");
    }
}

/// Returns the server's time in seconds.
#[track_caller]
pub fn seconds(conn: &mut Conn) -> i64 {
    micros(conn) / 1_000_000
}

/// Returns the server's time in microseconds.
#[track_caller]
pub fn micros(conn: &mut Conn) -> i64 {
    let time = conn.ok("TIME");
    let part = |at: usize| time.items()[at].text().parse::<i64>().expect("a number");
    part(0) * 1_000_000 + part(1)
}
