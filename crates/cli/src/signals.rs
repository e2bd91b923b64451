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

/// Signals for the program, which end a process by default.
const FOR_THE_PROGRAM: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// The stop signals of a terminal: Ctrl-Z, reading or writing in the background.
pub const STOPS: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];

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
        // Above zero it is from the kernel (sigaction(2)); from a process it is zero or less.
        let from = if info.ssi_code > 0 { From::Terminal } else { From::Process };
        Some(if signal == Signal::SIGCHLD { Heard::Child } else { Heard::Signal(signal, from) })
    }
}

/// The sender of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// The kernel, for a terminal: a key, a hang-up. The whole process group gets it.
    Terminal,
    /// A process.
    Process,
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
    FOR_THE_PROGRAM.into_iter().chain(STOPS).chain([Signal::SIGCHLD]).collect()
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
                Heard::Signal(signal, _) if self.ignored.contains(&signal) => {}
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
