//! Signals are read one after the other instead of handled.
//!
//! They are blocked and come through a signalfd. It tells who sent them, which an ordinary handler does not,
//! and ignored signals stay ignored, also for the program that is run: `nohup dlock run` works as expected.

use std::fs;
use std::io;
use std::thread;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// All that are not read; every other signal is for the program, except SIGCHLD.
const NOT_READ: [Signal; 9] = [
    // Nobody can.
    Signal::SIGKILL,
    Signal::SIGSTOP,
    // Faults of dlock itself.
    Signal::SIGSEGV,
    Signal::SIGBUS,
    Signal::SIGFPE,
    Signal::SIGILL,
    Signal::SIGTRAP,
    Signal::SIGSYS,
    // Ignored by Rust, so that writing fails instead.
    Signal::SIGPIPE,
];

/// The stop signals of a terminal: Ctrl-Z, reading or writing in the background.
pub const STOPS: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];

/// The other signals that a terminal sends: its keys, a hang-up, a new size.
const FROM_TERMINALS: [Signal; 5] =
    [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP, Signal::SIGCONT, Signal::SIGWINCH];

/// What ends no process by default.
const HARMLESS: [Signal; 3] = [Signal::SIGCONT, Signal::SIGURG, Signal::SIGWINCH];

/// A signal that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// A child ended or stopped.
    Child,
    /// Any other signal.
    Signal(Signal, From),
}

impl Heard {
    fn of(info: &siginfo) -> Option<Heard> {
        let signal = Signal::try_from(info.ssi_signo as i32).ok()?;
        Some(match signal {
            Signal::SIGCHLD => Heard::Child,
            _ => Heard::Signal(signal, From::of(signal, info.ssi_code)),
        })
    }
}

/// The sender of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// The kernel, for a terminal: a key, a hang-up. The whole process group gets it.
    Terminal,
    /// Anybody else, who means this process: another one, or the kernel for an alarm or a limit.
    Other,
}

impl From {
    fn of(signal: Signal, code: i32) -> From {
        // Above zero it is from the kernel (sigaction(2)); from a process it is zero or less.
        let can_be_terminal = STOPS.contains(&signal) || FROM_TERMINALS.contains(&signal);
        if code > 0 && can_be_terminal { From::Terminal } else { From::Other }
    }
}

/// Blocks the signals to listen to, for this thread and those that it starts. Call it before there are
/// others.
pub fn block() -> io::Result<()> {
    Ok(ours().thread_block()?)
}

/// Reverts [`block`].
pub fn unblock() -> io::Result<()> {
    Ok(ours().thread_unblock()?)
}

fn ours() -> SigSet {
    Signal::iterator().filter(|signal| !NOT_READ.contains(signal)).collect()
}

/// Ends this process by a signal, as if it had never been blocked. Returns only if the signal is ignored.
pub fn die_by(signal: Signal) {
    // If this fails, the caller still has an exit code.
    let _ = unblock();
    let _ = raise(signal);
}

/// Stops this process until somebody continues it.
pub fn stop() {
    let _ = raise(Signal::SIGSTOP);
}

/// Stops this process by a signal that was read, as if it had not been blocked: the kernel ignores it if
/// there is no shell that could continue the process.
fn stop_by(signal: Signal) -> io::Result<()> {
    let only = SigSet::from(signal);
    // In this order: raised first, it is only for this thread.
    raise(signal)?;
    only.thread_unblock()?;
    Ok(only.thread_block()?)
}

/// Reads the signals that [`block`] has blocked.
pub struct Signals {
    receiver: UnboundedReceiver<io::Result<Heard>>,
    /// Ignored when dlock was started, so they must have no effect.
    ignored: Vec<Signal>,
}

impl Signals {
    /// Call it after [`block`], in a runtime.
    pub fn listen() -> io::Result<Signals> {
        let ignored = ignored()?;
        // If SIGCHLD is ignored, the kernel neither keeps dead children nor reports their end. A handler is
        // the only way out that is not `unsafe`; it is never called, and the program starts without it.
        let _ = signal(SignalKind::child())?;
        let source = SignalFd::with_flags(&ours(), SfdFlags::SFD_CLOEXEC)?;
        let (sender, receiver) = unbounded_channel();
        // A thread reads, as registering the descriptor with the runtime would be `unsafe`.
        thread::Builder::new().name("signals".into()).spawn(move || {
            loop {
                let heard = match source.read_signal() {
                    Ok(info) => info.as_ref().and_then(Heard::of).map(Ok),
                    Err(Errno::EINTR) => None,
                    Err(why) => Some(Err(why.into())),
                };
                let last = matches!(heard, Some(Err(_)));
                if heard.is_some_and(|heard| sender.send(heard).is_err()) || last {
                    return;
                }
            }
        })?;
        Ok(Signals { receiver, ignored })
    }

    /// The next signal. Cancel safe.
    pub async fn next(&mut self) -> io::Result<Heard> {
        match self.receiver.recv().await {
            Some(heard) => heard,
            None => Err(io::Error::other("the thread that reads signals has ended")),
        }
    }

    /// Waits for a signal that ends dlock; a stop signal stops it meanwhile.
    pub async fn end(&mut self) -> io::Result<Signal> {
        loop {
            match self.next().await? {
                Heard::Child => {}
                Heard::Signal(signal, _) if self.ignored.contains(&signal) || HARMLESS.contains(&signal) => {}
                Heard::Signal(signal, _) if STOPS.contains(&signal) => stop_by(signal)?,
                Heard::Signal(signal, _) => return Ok(signal),
            }
        }
    }
}

/// The signals that were ignored when dlock was started: once blocked, they are read all the same.
fn ignored() -> io::Result<Vec<Signal>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    Ok(Signal::iterator().filter(|signal| mask & (1 << (*signal as i32 - 1)) != 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `perl -e 'alarm 60; exec "dlock", ..'`: the command must get it, though the kernel has sent it.
    #[test]
    fn only_what_a_terminal_can_send_comes_from_one() {
        let kernel = 0x80;
        for (signal, code, from) in [
            (Signal::SIGINT, kernel, From::Terminal),
            (Signal::SIGWINCH, kernel, From::Terminal),
            (Signal::SIGTSTP, kernel, From::Terminal),
            (Signal::SIGALRM, kernel, From::Other),
            (Signal::SIGXCPU, kernel, From::Other),
            (Signal::SIGINT, 0, From::Other),
            (Signal::SIGWINCH, 0, From::Other),
        ] {
            assert_eq!(From::of(signal, code), from, "{signal} {code}");
        }
    }
}
