//! Supervises a program that runs while a lock is held, and no longer.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use dlock_client::{Guard, Guards, Instant, Lost, now};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getsid};

use crate::exit::{Error, complain};
use crate::program::Program;
use crate::signals::{From, Heard, STOPS, Signals, stop};

/// How often to check whether a program that should end has ended, with all that it has started.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// How long to wait for SIGKILL: it does not end a process that hangs in the kernel or belongs to another
/// user.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// The time to end a program whose lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Margin {
    /// From SIGTERM to SIGKILL.
    pub kill_after: Duration,
    /// From SIGKILL to the end of the lease: for the kernel, a busy machine, and dlock itself.
    pub reserve: Duration,
}

impl Margin {
    /// By default a sixth of the ttl, at most 10 s: a ttl of 30 s leaves 5 s for a clean end and 1 s in
    /// reserve, and two renewals can fail before that.
    pub fn new(ttl: Duration, kill_after: Option<Duration>) -> Result<Margin, Error> {
        let margin = Margin {
            kill_after: kill_after.unwrap_or((ttl / 6).min(Duration::from_secs(10))),
            reserve: (ttl / 20).min(Duration::from_secs(1)),
        };
        if margin.notice() > ttl / 2 {
            return Err(Error::usage(format_args!(
                "--kill-after {} does not fit into half of the ttl, as the command must end before the lease; \
                 use a --ttl of {} or more",
                humantime::format_duration(margin.kill_after),
                humantime::format_duration(
                    margin.kill_after.saturating_add(Duration::from_secs(1)).saturating_mul(2)
                ),
            )));
        }
        Ok(margin)
    }

    /// How long before the end of the lease SIGTERM must be sent.
    pub fn notice(&self) -> Duration {
        self.kill_after.saturating_add(self.reserve)
    }
}

/// The outcome of a supervision.
pub enum Outcome {
    /// The program ended by itself, and the lock is still held.
    Ended(ExitStatus),
    /// The lock was lost, which has been reported, and the program was ended.
    Lost,
}

/// A program, its locks, and the signals for it.
pub struct Supervision<'a> {
    pub guards: &'a Guards,
    pub program: Program,
    pub signals: &'a mut Signals,
    pub margin: Margin,
}

impl Supervision<'_> {
    /// Returns when the program has ended.
    pub async fn watch(mut self) -> io::Result<Outcome> {
        loop {
            tokio::select! {
                // After a stop or a suspend the loss comes first.
                biased;
                why = self.guards.lost() => {
                    complain(format_args!("the lock is lost: {}; ending the command", reason(&why)));
                    self.end().await?;
                    return Ok(Outcome::Lost);
                }
                heard = self.signals.next() => self.forward(heard?)?,
            }
            if let Some(status) = self.program.ended() {
                // A shell that is killed leaves its children behind, which would go on without the lock. A
                // program that ends by itself may have started something that is meant to stay.
                if status.signal().is_some() {
                    self.end().await?;
                }
                return Ok(match self.guards.iter().find_map(Guard::loss) {
                    None => Outcome::Ended(status),
                    Some(why) => {
                        complain(format_args!("the lock was lost while the command ended: {}", reason(&why)));
                        Outcome::Lost
                    }
                });
            }
        }
    }

    /// Signals to dlock are meant for the program.
    fn forward(&mut self, heard: Heard) -> io::Result<()> {
        match heard {
            Heard::Child => {
                if self.program.look()? && self.program.shares_our_group() {
                    self.stop_together()?;
                }
            }
            Heard::Signal(signal, From::Terminal) if self.needs_no_help(signal) => {}
            Heard::Signal(signal, _) => self.program.signal(signal),
        }
        Ok(())
    }

    /// Whether a signal from the terminal has reached the program too, which must not get it twice.
    fn needs_no_help(&self, signal: Signal) -> bool {
        // A terminal that hangs up signals only the leader of its session.
        let told_alone = signal == Signal::SIGHUP && getsid(None) == Ok(Pid::this());
        // A stop that has reached only dlock is not for the program, which is in another group.
        STOPS.contains(&signal) || (self.program.shares_our_group() && !told_alone)
    }

    /// Ctrl-Z has stopped the program, and the shell waits for dlock to stop as well. Meanwhile the lease is
    /// not renewed, so everything that was started under it stops, and is killed if it continues after the
    /// end of the lease.
    fn stop_together(&self) -> io::Result<()> {
        self.program.signal_all(Signal::SIGSTOP)?;
        stop();
        if !self.left().is_zero() {
            self.program.signal_all(Signal::SIGCONT)?;
        }
        Ok(())
    }

    /// Ends the program and everything it has started: SIGTERM, then SIGKILL when the time is up.
    async fn end(&mut self) -> io::Result<()> {
        let began = now();
        self.program.signal_all(Signal::SIGTERM)?;
        if !self.must_kill(began) {
            // A stopped process could not end cleanly.
            self.program.signal_all(Signal::SIGCONT)?;
        }
        let mut killed_at = None;
        loop {
            self.program.look()?;
            let alive = self.program.alive()?;
            if alive.is_empty() && self.program.ended().is_some() {
                return Ok(());
            }
            if self.must_kill(began) {
                let killed_at = *killed_at.get_or_insert_with(|| {
                    complain(format_args!("the command did not end after SIGTERM in time, and is killed"));
                    now()
                });
                self.program.signal_all(Signal::SIGKILL)?;
                if self.left().is_zero() && now().saturating_since(killed_at) > KILL_TIMEOUT {
                    let pids: Vec<String> = alive.iter().map(Pid::to_string).collect();
                    complain(format_args!(
                        "could not kill process {}, which continues without the lock",
                        pids.join(", ")
                    ));
                    return Ok(());
                }
            }
            tokio::select! {
                heard = self.signals.next() => { heard?; }
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
            }
        }
    }

    fn must_kill(&self, began: Instant) -> bool {
        now().saturating_since(began) >= self.margin.kill_after || self.left() <= self.margin.reserve
    }

    /// The time left of the lease, lost or not; of several the first to end.
    fn left(&self) -> Duration {
        let ends = self.guards.iter().map(Guard::valid_until).min();
        ends.map_or(Duration::ZERO, |end| end.saturating_since(now()))
    }
}

/// Locks of commands are always renewed, so there is one way for their time to be up.
fn reason(why: &Lost) -> String {
    match why {
        Lost::Ended => "the time of --max-hold is up".into(),
        why => why.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_margin_longer_than_half_of_the_lease_is_rejected() {
        let ttl = Duration::from_secs(30);
        assert!(Margin::new(ttl, Some(Duration::from_secs(14))).is_ok());
        for kill_after in [Duration::from_millis(14_001), Duration::from_secs(u64::MAX), Duration::MAX] {
            assert!(Margin::new(ttl, Some(kill_after)).is_err(), "{kill_after:?}");
        }
    }
}
