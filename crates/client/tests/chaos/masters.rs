//! Five masters behind a network, and their faults.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::proxy::{Cut, Proxy};
use dlock_testkit::wall_clock::{HOUR, WallClock, seconds};
use dlock_testkit::{Random, Server, ServerKind, until};

/// Faults of one or two masters at a time. The others are a majority of the five.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Killed and restarted without data.
    Killed,
    /// Stopped by SIGSTOP, and continued.
    Stopped,
    /// Each message has a random delay.
    Slow,
    /// Requests and replies are lost, with their connections.
    Lossy,
    /// Requests are lost, while the connections stay open.
    LosesRequests,
    /// Replies are lost, while the connections stay open.
    LosesReplies,
    /// The wall clock is set forward or back, and later corrected.
    ClockSet,
    /// Killed and restarted without data and with a wrong clock; then again with the right one.
    RestartedWithWrongClock,
}

impl Fault {
    pub const ALL: [Fault; 8] = [
        Fault::Killed,
        Fault::Stopped,
        Fault::Slow,
        Fault::Lossy,
        Fault::LosesRequests,
        Fault::LosesReplies,
        Fault::ClockSet,
        Fault::RestartedWithWrongClock,
    ];
}

pub struct Masters {
    each: Vec<Master>,
    /// Number of injections of each fault by name.
    pub faults: BTreeMap<String, usize>,
}

struct Master {
    server: Server,
    clock: WallClock,
    proxy: Proxy,
}

impl Masters {
    /// Starts the masters. `grace` is in ms.
    pub fn start(kind: &ServerKind, grace: u64, network: &Handle, random: &mut Random) -> Masters {
        let each = (0..5).map(|_| {
            let (kind, clock) = WallClock::of(kind);
            let server = Server::options(&kind).conf(&format!("dlock.restart-grace {grace}")).start();
            let proxy = Proxy::to(server.port(), network, random.branch());
            Master { server, clock, proxy }
        });
        Masters { each: each.collect(), faults: BTreeMap::new() }
    }

    pub fn urls(&self) -> Vec<String> {
        self.each.iter().map(|master| master.proxy.url()).collect()
    }

    pub fn inject(&mut self, place: usize, fault: Fault, random: &mut Random) {
        self.count(&format!("{fault:?}"));
        let master = &mut self.each[place];
        match fault {
            Fault::Killed => master.server.kill9(),
            Fault::Stopped => master.server.pause(),
            Fault::Slow => master.proxy.set_delay(Duration::from_millis(60)),
            Fault::Lossy => master.proxy.set_loses_one_in(8),
            Fault::LosesRequests => master.proxy.set_cut(Cut::Requests),
            Fault::LosesReplies => master.proxy.set_cut(Cut::Answers),
            Fault::ClockSet => {
                let before = master.seconds();
                master.clock.set_offset(*random.of(&[-24, -1, 1, 24]) * HOUR);
                until("the server sees the new time", || (master.seconds() - before).abs() >= HOUR / 2);
            }
            Fault::RestartedWithWrongClock => {
                master.server.kill9();
                master.clock.set_offset(*random.of(&[-24, -1, 1, 24]) * HOUR);
                master.restart_without_files();
            }
        }
    }

    pub fn heal(&mut self, place: usize, fault: Fault) {
        let master = &mut self.each[place];
        match fault {
            Fault::Killed => master.restart_without_files(),
            Fault::Stopped => master.server.resume(),
            Fault::Slow => master.proxy.set_delay(Duration::ZERO),
            Fault::Lossy => master.proxy.set_loses_one_in(0),
            Fault::LosesRequests | Fault::LosesReplies => master.proxy.set_cut(Cut::Nothing),
            Fault::ClockSet => master.clock.set_offset(0),
            Fault::RestartedWithWrongClock => {
                master.server.kill9();
                master.clock.set_offset(0);
                master.restart_without_files();
            }
        }
    }

    /// Kills `count` masters at once and restarts them without data.
    pub fn restart_empty(&mut self, count: usize, random: &mut Random) {
        self.count("RestartedTogether");
        let first = random.below(5);
        // Makes the first `count` masters a random choice.
        self.each.rotate_left(first);
        let restarted = &mut self.each[..count];
        restarted.iter().for_each(|master| master.server.kill9());
        thread::scope(|scope| {
            for master in restarted {
                scope.spawn(|| master.restart_without_files());
            }
        });
    }

    /// Waits until the grace period of every master has ended.
    pub fn wait_out_grace(&self) {
        for master in &self.each {
            until("the grace period has ended", || master.server.info("dlock_grace_ms_left") == "0");
        }
    }

    /// Returns how many pieces of traffic the proxies have delayed, and how many they have lost. A piece is
    /// the result of one read from a socket.
    pub fn pieces(&self) -> (usize, usize) {
        let sum = |count: fn(&Proxy) -> usize| self.each.iter().map(|master| count(&master.proxy)).sum();
        (sum(Proxy::delayed), sum(Proxy::lost))
    }

    fn count(&mut self, fault: &str) {
        *self.faults.entry(fault.to_string()).or_default() += 1;
    }
}

impl Master {
    /// Removes the fence mark, a file that keeps fences rising over restarts, and restarts the server. The
    /// server saves no other data.
    fn restart_without_files(&mut self) {
        let mark = format!("dlock-{}.fence", self.server.port());
        drop(fs::remove_file(self.server.dir().join(mark)));
        self.server.restart();
    }

    fn seconds(&self) -> i64 {
        seconds(&mut self.server.connect())
    }
}
