//! Supervises a program that runs under locks: forwards signals to it, and ends it if a lock is lost. A lock
//! that cannot be renewed counts as lost while there is still time to end the program before the lease ends.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use dlock_client::{Guard, Guards, Instant, Lost, now};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getsid};

use crate::exit::Error;
use crate::output::warn;
use crate::run::program::Program;
use crate::signals::{Received, STOPS, Sender, Signals, stop};

/// Pause between checks whether the program and its descendants have ended after SIGTERM.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Time limit for the end of all processes after SIGKILL. SIGKILL does not end a process that hangs in the
/// kernel or belongs to another user.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// The time that is reserved at the end of a lease to end the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Margin {
    /// Time between SIGTERM and SIGKILL.
    pub kill_after: Duration,
    /// Time between SIGKILL and the end of the lease, for delays of the kernel and of a busy machine.
    pub reserve: Duration,
}

impl Margin {
    /// Fails if `kill_after` and the reserve do not fit into half of the ttl. By default, `kill_after` is a
    /// sixth of the ttl, at most 10 s. With a ttl of 30 s, dlock sends SIGTERM 6 s before the lease ends: 5 s
    /// for a clean end, and 1 s in reserve. Two renewals, after 10 s and 20 s, can fail before SIGTERM is
    /// sent.
    pub fn new(ttl: Duration, kill_after: Option<Duration>) -> Result<Margin, Error> {
        let margin = Margin {
            kill_after: kill_after.unwrap_or((ttl / 6).min(Duration::from_secs(10))),
            reserve: (ttl / 20).min(Duration::from_secs(1)),
        };
        if margin.notice() > ttl / 2 {
            return Err(Error::usage(format_args!(
                "--kill-after {} does not fit into half of the ttl: the command must end before the lease ends; \
                 use a --ttl of {} or more",
                humantime::format_duration(margin.kill_after),
                humantime::format_duration(
                    margin.kill_after.saturating_add(Duration::from_secs(1)).saturating_mul(2)
                ),
            )));
        }
        Ok(margin)
    }

    /// Time between SIGTERM and the end of the lease.
    pub fn notice(&self) -> Duration {
        self.kill_after.saturating_add(self.reserve)
    }
}

/// How a supervision ended.
pub enum Outcome {
    /// The program ended by itself, and no lock is lost.
    Ended(ExitStatus),
    /// A lock was lost. The loss has been reported, and the program has ended.
    Lost,
}

/// A running program, its locks, and the signals to forward to it.
pub struct Supervision<'a> {
    pub guards: &'a Guards,
    pub program: Program,
    pub signals: &'a mut Signals,
    pub margin: Margin,
}

impl Supervision<'_> {
    /// Supervises the program until it has ended.
    pub async fn watch(mut self) -> io::Result<Outcome> {
        loop {
            tokio::select! {
                // Biased, so that the loop handles a loss before any signal. Both can be pending when dlock
                // was stopped or the machine suspended.
                biased;
                why = self.guards.lost() => {
                    warn(format_args!("the lock is lost: {}; ending the command", reason(&why)));
                    self.end().await?;
                    return Ok(Outcome::Lost);
                }
                received = self.signals.next() => self.forward(received?)?,
            }
            if let Some(status) = self.program.ended() {
                // A program that was killed, for example a shell, leaves children behind, which must not
                // continue without the lock. The children of a program that has exited may continue, because
                // it may have started them on purpose.
                if status.signal().is_some() {
                    self.end().await?;
                }
                return Ok(match self.guards.iter().find_map(Guard::loss) {
                    None => Outcome::Ended(status),
                    Some(why) => {
                        warn(format_args!("the lock was lost while the command ended: {}", reason(&why)));
                        Outcome::Lost
                    }
                });
            }
        }
    }

    /// Forwards a received signal to the program. After SIGCHLD, checks whether the program has ended or
    /// stopped.
    fn forward(&mut self, received: Received) -> io::Result<()> {
        match received {
            Received::Child => {
                if self.program.reap()? && self.program.shares_our_group() {
                    self.stop_together()?;
                }
            }
            Received::Signal(signal, Sender::Terminal) if self.must_not_forward(signal) => {}
            Received::Signal(signal, _) => self.program.signal(signal),
        }
        Ok(())
    }

    /// Returns true for every stop signal of the terminal, and for its other signals if the program has
    /// received them as well.
    fn must_not_forward(&self, signal: Signal) -> bool {
        // When a terminal hangs up, only the leader of its session receives SIGHUP.
        let only_dlock_received = signal == Signal::SIGHUP && getsid(None) == Ok(Pid::this());
        // Ctrl-Z for dlock's process group must not stop a program in another group.
        STOPS.contains(&signal) || (self.program.shares_our_group() && !only_dlock_received)
    }

    /// Called after Ctrl-Z has stopped the program. Stops its descendants, and then dlock itself, because the
    /// shell waits for dlock to stop as well. A stopped dlock renews nothing. If the lease has ended when
    /// dlock is continued, the program stays stopped, until `watch` handles the loss and kills it.
    fn stop_together(&self) -> io::Result<()> {
        self.program.signal_all(Signal::SIGSTOP)?;
        stop();
        if !self.left().is_zero() {
            self.program.signal_all(Signal::SIGCONT)?;
        }
        Ok(())
    }

    /// Ends the program and its descendants: sends SIGTERM, and SIGKILL after `kill_after` or when only the
    /// reserve of the lease is left.
    async fn end(&mut self) -> io::Result<()> {
        let began = now();
        self.program.signal_all(Signal::SIGTERM)?;
        if !self.must_kill(began) {
            // A stopped process handles SIGTERM only after SIGCONT. If SIGKILL follows at once, the process
            // must not continue.
            self.program.signal_all(Signal::SIGCONT)?;
        }
        let mut killed_at = None;
        loop {
            self.program.reap()?;
            let alive = self.program.alive()?;
            if alive.is_empty() && self.program.ended().is_some() {
                return Ok(());
            }
            if self.must_kill(began) {
                let killed_at = *killed_at.get_or_insert_with(|| {
                    warn(format_args!("the command did not end after SIGTERM in time, and is killed"));
                    now()
                });
                self.program.signal_all(Signal::SIGKILL)?;
                if self.left().is_zero() && now().saturating_since(killed_at) > KILL_TIMEOUT {
                    let pids: Vec<String> = alive.iter().map(Pid::to_string).collect();
                    warn(format_args!(
                        "could not kill process {}, which continues without the lock",
                        pids.join(", ")
                    ));
                    return Ok(());
                }
            }
            tokio::select! {
                received = self.signals.next() => { received?; }
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
            }
        }
    }

    fn must_kill(&self, began: Instant) -> bool {
        now().saturating_since(began) >= self.margin.kill_after || self.left() <= self.margin.reserve
    }

    /// The time left of the lease that ends first, whether or not its lock is lost.
    fn left(&self) -> Duration {
        let ends = self.guards.iter().map(Guard::valid_until).min();
        ends.map_or(Duration::ZERO, |end| end.saturating_since(now()))
    }
}

/// The reason of a loss, for messages. The client renews the lock until the command has ended, so only
/// --max-hold can be the cause of [`Lost::Ended`].
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
    fn margin_is_refused_when_it_exceeds_half_of_the_ttl() {
        let ttl = Duration::from_secs(30);
        assert!(Margin::new(ttl, Some(Duration::from_secs(14))).is_ok());
        for kill_after in [Duration::from_millis(14_001), Duration::from_secs(u64::MAX), Duration::MAX] {
            assert!(Margin::new(ttl, Some(kill_after)).is_err(), "{kill_after:?}");
        }
    }
}
