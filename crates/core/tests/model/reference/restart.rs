//! A restart of the model.

use super::*;

/// A restart of the server, or the start of another one with the same data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Restart {
    pub same_boot: bool,
    /// The downtime in ms.
    pub down: u64,
    /// The ms by which the wall clock jumped during the downtime. Negative if the clock was set back.
    pub jump: i64,
}

impl Model {
    pub fn restart(&mut self, restart: Restart) {
        let Restart { same_boot, down, jump } = restart;
        // A restart ends all waits, as a demotion does.
        self.demote();
        self.last_waiter = 0;
        self.restarted = true;
        self.grants_from = 0;
        let before = self.now / 1000;
        self.now = (self.now + down * 1000).saturating_add_signed(jump * 1000);
        let now = self.in_ms(0);
        // Within one boot of the machine, the server knows how far its clock jumped, and moves all times by
        // as much. After a reboot, it takes stored times as times of the wall clock, and moves none.
        let moved = |ms: u64| if same_boot { ms.saturating_add_signed(jump) } else { ms };
        if jump < 0 {
            self.marks.push("a clock set back");
        }
        for hold in &mut self.holds {
            hold.end = moved(hold.end).min(now + hold.ttl);
            hold.since = moved(hold.since).min(self.now / 1000);
            hold.unconfirmed = None;
            hold.owner = 0;
            if hold.bond != Bond::None {
                hold.bond = Bond::Orphan;
            }
        }
        for (_, until) in &mut self.delays {
            *until = moved(*until).min(now + until.saturating_sub(before));
        }
    }
}
