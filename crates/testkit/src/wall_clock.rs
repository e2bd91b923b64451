//! Servers whose wall clock can be set.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use crate::conn::Conn;
use crate::folder::Folder;
use crate::kinds::ServerKind;
use crate::preload::preloaded;
use crate::wait::until;

pub const HOUR: i64 = 3_600;

/// The wall clock of the servers that are made with it. Their other clocks are the machine's own.
pub struct WallClock(Folder);

impl WallClock {
    /// The same server with a clock that can be set.
    pub fn of(kind: &ServerKind) -> (ServerKind, WallClock) {
        let clock = WallClock(Folder::fresh());
        clock.set_off_by(0);
        let file = clock.0.path().join("clock");
        (preloaded(kind, "crates/testkit/src/wall_clock.c", &[("WALL_CLOCK", &file)]), clock)
    }

    /// It runs, so many seconds ahead of the machine's.
    pub fn set_off_by(&self, seconds: i64) {
        self.write(seconds * 1_000_000, 0);
    }

    /// It stands at what this server takes for the time. Valkey 9.1 asks for it each millisecond and adds
    /// what the processor counts in between.
    pub fn freeze(&self, conn: &mut Conn) {
        let stands_at = micros(conn);
        self.write(0, stands_at);
        let since = Instant::now();
        let stands = |at: i64| (stands_at..stands_at + 2_000).contains(&at);
        until("the server's clock stands", || stands(micros(conn)) && since.elapsed().as_millis() > 20);
    }

    fn write(&self, off: i64, stands_at: i64) {
        // In place and in one write: the servers have this file mapped.
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).open(self.0.path().join("clock"));
        let bytes = [off.to_ne_bytes(), stands_at.to_ne_bytes()].concat();
        file.and_then(|file| file.write_all_at(&bytes, 0)).expect("the clock can be set");
    }
}

/// What the server takes for the time, in seconds.
#[track_caller]
pub fn seconds(conn: &mut Conn) -> i64 {
    micros(conn) / 1_000_000
}

#[track_caller]
fn micros(conn: &mut Conn) -> i64 {
    let time = conn.ok("TIME");
    let part = |at: usize| time.items()[at].text().parse::<i64>().expect("a number");
    part(0) * 1_000_000 + part(1)
}
