//! Reads signals one after the other, instead of handling them.
//!
//! Signals are blocked and read from a signalfd. Unlike a handler, a signalfd shows whether the terminal or a
//! process sent a signal, and leaves the disposition unchanged: a signal that was ignored at the start is
//! also ignored in the program that dlock runs, so `nohup dlock run` works.

use std::fs;
use std::io;
use std::thread;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// The signals that are not read. Faults (SIGSEGV ..) are read, because another process can send them, too.
/// If a thread causes a fault while the signal is blocked, the kernel ends the process.
const NOT_READ: [Signal; 3] = [
    // Cannot be blocked.
    Signal::SIGKILL,
    Signal::SIGSTOP,
    // Rust's runtime ignores it, so that writing to a closed pipe returns an error instead.
    Signal::SIGPIPE,
];

/// The stop signals of a terminal: for Ctrl-Z, and for reading or writing in the background.
pub const STOPS: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];

/// The other signals that a terminal sends: for its keys, a hang-up, a new size.
const FROM_TERMINALS: [Signal; 5] =
    [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP, Signal::SIGCONT, Signal::SIGWINCH];

/// Signals that by default neither end nor stop a process.
const HARMLESS: [Signal; 3] = [Signal::SIGCONT, Signal::SIGURG, Signal::SIGWINCH];

/// A signal that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// A child ended or stopped.
    Child,
    /// Any other signal.
    Signal(Signal, Sender),
}

impl Received {
    fn of(info: &siginfo) -> Option<Received> {
        let signal = Signal::try_from(info.ssi_signo as i32).ok()?;
        Some(match signal {
            Signal::SIGCHLD => Received::Child,
            _ => Received::Signal(signal, Sender::of(signal, info.ssi_code)),
        })
    }
}

/// The sender of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// The kernel on behalf of a terminal, for a key or a hang-up. The whole process group gets the signal.
    Terminal,
    /// A process, or the kernel for an alarm or a resource limit. `dlock run` assumes that only dlock
    /// received the signal, and forwards it to the program.
    Other,
}

impl Sender {
    fn of(signal: Signal, code: i32) -> Sender {
        // The code is positive if the kernel sent the signal, and zero or negative if a process did
        // (sigaction(2)).
        let can_be_terminal = STOPS.contains(&signal) || FROM_TERMINALS.contains(&signal);
        if code > 0 && can_be_terminal { Sender::Terminal } else { Sender::Other }
    }
}

/// Unblocks the signals that [`Signals`] has blocked.
pub fn unblock() -> io::Result<()> {
    Ok(signals_to_read().thread_unblock()?)
}

/// The signals that are read.
fn signals_to_read() -> SigSet {
    Signal::iterator().filter(|signal| !NOT_READ.contains(signal)).collect()
}

/// Ends this process by a signal, as if the signal had not been blocked. Returns if the process survives.
pub fn die_by(signal: Signal) {
    // If unblocking fails, the caller ends the process by an exit code.
    let _ = unblock();
    let _ = raise(signal);
    // The first SIGSEGV or SIGBUS only removes the handler of Rust's runtime.
    let _ = raise(signal);
}

/// Stops this process until it receives SIGCONT.
pub fn stop() {
    let _ = raise(Signal::SIGSTOP);
}

/// Stops this process by a stop signal that [`Signals`] has read, as if the signal had not been blocked.
/// The kernel ignores the signal if no shell could continue the process.
fn stop_by(signal: Signal) -> io::Result<()> {
    let only = SigSet::from(signal);
    // The signal is raised while it is blocked, so it is pending for this thread, and unblocking it here
    // stops the process.
    raise(signal)?;
    only.thread_unblock()?;
    Ok(only.thread_block()?)
}

/// Receives signals.
pub struct Signals {
    receiver: UnboundedReceiver<io::Result<Received>>,
    /// The signals that were ignored when dlock was started. They must have no effect.
    ignored: Vec<Signal>,
}

impl Signals {
    /// Blocks the signals in this thread and the threads that it starts later, and starts to read them. Call
    /// it in a tokio runtime, before other threads exist.
    pub fn listen() -> io::Result<Signals> {
        signals_to_read().thread_block()?;
        let ignored = ignored()?;
        // If dlock was started with SIGCHLD ignored, the kernel would neither keep ended children nor report
        // their end. Installing a handler changes this, and needs no `unsafe`. The handler is never called,
        // because the signal is blocked, and the program does not inherit the handler.
        let _ = signal(SignalKind::child())?;
        let source = SignalFd::with_flags(&signals_to_read(), SfdFlags::SFD_CLOEXEC)?;
        let (sender, receiver) = unbounded_channel();
        // A thread reads, because registering the descriptor with the runtime would need `unsafe`.
        thread::Builder::new().name("signals".into()).spawn(move || {
            loop {
                let received = match source.read_signal() {
                    Ok(info) => info.as_ref().and_then(Received::of).map(Ok),
                    Err(Errno::EINTR) => None,
                    Err(why) => Some(Err(why.into())),
                };
                let is_last = matches!(received, Some(Err(_)));
                if received.is_some_and(|received| sender.send(received).is_err()) || is_last {
                    return;
                }
            }
        })?;
        Ok(Signals { receiver, ignored })
    }

    /// The next signal. Cancel safe.
    pub async fn next(&mut self) -> io::Result<Received> {
        match self.receiver.recv().await {
            Some(received) => received,
            None => Err(io::Error::other("the thread that reads signals has ended")),
        }
    }

    /// Waits for a signal that ends dlock, and returns it. A stop signal stops this process until it is
    /// continued.
    pub async fn end(&mut self) -> io::Result<Signal> {
        loop {
            match self.next().await? {
                Received::Child => {}
                Received::Signal(signal, _)
                    if self.ignored.contains(&signal) || HARMLESS.contains(&signal) => {}
                Received::Signal(signal, _) if STOPS.contains(&signal) => stop_by(signal)?,
                Received::Signal(signal, _) => return Ok(signal),
            }
        }
    }
}

/// The error if a file of /proc cannot be used.
pub fn no_proc(why: io::Error) -> io::Error {
    io::Error::other(format!("dlock requires /proc, which cannot be read: {why}"))
}

/// The signals that were ignored when dlock was started. A signalfd returns blocked signals even if they are
/// ignored.
fn ignored() -> io::Result<Vec<Signal>> {
    let status = fs::read_to_string("/proc/self/status").map_err(no_proc)?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    Ok(Signal::iterator().filter(|signal| mask & (1 << (*signal as i32 - 1)) != 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The SIGALRM of `perl -e 'alarm 60; exec "dlock", ..'` comes from the kernel too, and must be
    /// forwarded.
    #[test]
    fn sender_is_the_terminal_only_for_signals_of_a_terminal() {
        let kernel = 0x80;
        for (signal, code, sender) in [
            (Signal::SIGINT, kernel, Sender::Terminal),
            (Signal::SIGWINCH, kernel, Sender::Terminal),
            (Signal::SIGTSTP, kernel, Sender::Terminal),
            (Signal::SIGALRM, kernel, Sender::Other),
            (Signal::SIGXCPU, kernel, Sender::Other),
            (Signal::SIGINT, 0, Sender::Other),
            (Signal::SIGWINCH, 0, Sender::Other),
        ] {
            assert_eq!(Sender::of(signal, code), sender, "{signal} {code}");
        }
    }
}
