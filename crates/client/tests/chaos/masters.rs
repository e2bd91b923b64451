//! Five masters behind a network, and what can be done to them.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::proxy::{Cut, Proxy};
use dlock_testkit::wall_clock::{HOUR, WallClock, seconds};
use dlock_testkit::{Random, Server, ServerKind, until};

/// What a majority bears on one or two of the masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Killed, and back without a memory.
    Killed,
    /// Stopped by SIGSTOP, and continued.
    Stopped,
    /// Late with everything.
    Slow,
    /// Loses requests and answers, and the connections with them.
    Lossy,
    /// Gets no requests, while its connections stay open.
    Deaf,
    /// Gets requests, but its answers are lost.
    Mute,
    /// Its wall clock is set forth or back, and right again.
    ClockSet,
    /// Killed, and back without a memory and with a wrong clock; then once more with the right one.
    BackWithWrongClock,
}

impl Fault {
    pub const ALL: [Fault; 8] = [
        Fault::Killed,
        Fault::Stopped,
        Fault::Slow,
        Fault::Lossy,
        Fault::Deaf,
        Fault::Mute,
        Fault::ClockSet,
        Fault::BackWithWrongClock,
    ];
}

pub struct Masters {
    each: Vec<Master>,
    /// How often each fault was injected, by its name.
    pub faults: BTreeMap<String, usize>,
}

struct Master {
    server: Server,
    clock: WallClock,
    proxy: Proxy,
}

impl Masters {
    /// `grace` in ms.
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

    pub fn strike(&mut self, place: usize, fault: Fault, random: &mut Random) {
        self.count(&format!("{fault:?}"), 1);
        let master = &mut self.each[place];
        match fault {
            Fault::Killed => master.server.kill9(),
            Fault::Stopped => master.server.pause(),
            Fault::Slow => master.proxy.set_delay(Duration::from_millis(60)),
            Fault::Lossy => master.proxy.set_loses(8),
            Fault::Deaf => master.proxy.set_cut(Cut::Requests),
            Fault::Mute => master.proxy.set_cut(Cut::Answers),
            Fault::ClockSet => {
                let before = master.seconds();
                let off = *random.of(&[-24, -1, 1, 24]) * HOUR;
                master.clock.set_off_by(off);
                until("the server sees the step", || (master.seconds() - before).abs() >= HOUR / 2);
            }
            Fault::BackWithWrongClock => {
                master.server.kill9();
                master.clock.set_off_by(*random.of(&[-24, -1, 1, 24]) * HOUR);
                master.come_back();
            }
        }
    }

    pub fn heal(&mut self, place: usize, fault: Fault) {
        let master = &mut self.each[place];
        match fault {
            Fault::Killed => master.come_back(),
            Fault::Stopped => master.server.resume(),
            Fault::Slow => master.proxy.set_delay(Duration::ZERO),
            Fault::Lossy => master.proxy.set_loses(0),
            Fault::Deaf | Fault::Mute => master.proxy.set_cut(Cut::Nothing),
            Fault::ClockSet => master.clock.set_off_by(0),
            Fault::BackWithWrongClock => {
                master.server.kill9();
                master.clock.set_off_by(0);
                master.come_back();
            }
        }
    }

    /// Kills so many of them at once, and starts them again, as empty as on the first day.
    pub fn restart_empty(&mut self, count: usize, random: &mut Random) {
        self.count("RestartedTogether", 1);
        let first = random.below(5);
        self.each.rotate_left(first);
        let struck = &mut self.each[..count];
        struck.iter().for_each(|master| master.server.kill9());
        thread::scope(|scope| {
            for master in struck {
                scope.spawn(|| master.come_back());
            }
        });
    }

    /// Waits until all of them take part again.
    pub fn wait_out_grace(&self) {
        for master in &self.each {
            until("the grace period has ended", || master.server.info("dlock_grace_ms_left") == "0");
        }
    }

    /// How much the network has done to them: pieces that were late, and pieces that were lost.
    pub fn weather(&self) -> (usize, usize) {
        let sum = |of: fn(&Proxy) -> usize| self.each.iter().map(|master| of(&master.proxy)).sum();
        (sum(Proxy::delayed), sum(Proxy::lost))
    }

    fn count(&mut self, what: &str, by: usize) {
        *self.faults.entry(what.to_string()).or_default() += by;
    }
}

impl Master {
    /// With nothing of before on its disk, not even its fence mark.
    fn come_back(&mut self) {
        let mark = format!("dlock-{}.fence", self.server.port());
        drop(fs::remove_file(self.server.dir().join(mark)));
        self.server.restart();
    }

    fn seconds(&self) -> i64 {
        seconds(&mut self.server.connect())
    }
}
