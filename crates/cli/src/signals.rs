//! Signals, read one after the other instead of handled.
//!
//! They are blocked and come through a signalfd. That tells who sent them, which a handler of the usual kind does not,
//! and leaves ignored ones ignored, for the program that is run too: `nohup dlock run` is what it says.

use std::fs;
use std::io;
use std::thread;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Signals that are for the program, and end whoever does not expect them.
const FOR_THE_PROGRAM: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// How a terminal stops whoever has no turn: Ctrl-Z, reading in the background, writing there.
pub const STOPS: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];

/// What was heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// A child ended or stopped.
    Child,
    /// Anything else.
    Signal(Signal, From),
}

impl Heard {
    fn of(info: &siginfo) -> Option<Heard> {
        let signal = Signal::try_from(info.ssi_signo as i32).ok()?;
        // Above zero the kernel speaks (sigaction(2)); what a process sends is zero or less.
        let from = if info.ssi_code > 0 { From::Terminal } else { From::Process };
        Some(if signal == Signal::SIGCHLD { Heard::Child } else { Heard::Signal(signal, from) })
    }
}

/// Who sent a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// The kernel, for a terminal: a key, a hang-up. The whole process group has been sent it.
    Terminal,
    /// A process.
    Process,
}

/// Blocks what will be listened to, for this thread and those that it starts. To be called before there are others.
pub fn block() -> io::Result<()> {
    Ok(ours().thread_block()?)
}

/// Takes back [`block`].
pub fn unblock() -> io::Result<()> {
    Ok(ours().thread_unblock()?)
}

fn ours() -> SigSet {
    FOR_THE_PROGRAM.into_iter().chain(STOPS).chain([Signal::SIGCHLD]).collect()
}

/// Ends this process by a signal, as if it had never been blocked. Returns only if the signal is ignored.
pub fn die_by(signal: Signal) {
    // Whatever fails here, the caller has an exit code to end with.
    let _ = unblock();
    let _ = raise(signal);
}

/// Stops this process until somebody continues it.
pub fn stop() {
    let _ = raise(Signal::SIGSTOP);
}

/// Stops this process by a signal that was heard, as if it had not been blocked: the kernel lets it pass where no shell is there
/// to continue whoever stops.
fn stop_by(signal: Signal) -> io::Result<()> {
    let only = SigSet::from(signal);
    // In this order: raised first, it is for this thread alone.
    raise(signal)?;
    only.thread_unblock()?;
    Ok(only.thread_block()?)
}

/// The listener to what [`block`] has blocked.
pub struct Signals {
    heard: UnboundedReceiver<io::Result<Heard>>,
    /// Who started dlock wants these to be without effect.
    ignored: Vec<Signal>,
}

impl Signals {
    /// After [`block`], in a runtime.
    pub fn listen() -> io::Result<Signals> {
        let ignored = ignored()?;
        // Of whoever ignores this one the kernel keeps no dead children, and says nothing when they end. A handler is the one
        // way out of it that is not `unsafe`; it is never called, and the program starts without it.
        let _ = signal(SignalKind::child())?;
        let source = SignalFd::with_flags(&ours(), SfdFlags::SFD_CLOEXEC)?;
        let (tell, heard) = unbounded_channel();
        // A thread that reads: to register the descriptor with the runtime would be `unsafe`.
        thread::Builder::new().name("signals".into()).spawn(move || {
            loop {
                let news = match source.read_signal() {
                    Ok(info) => info.as_ref().and_then(Heard::of).map(Ok),
                    Err(Errno::EINTR) => None,
                    Err(why) => Some(Err(why.into())),
                };
                let last = matches!(news, Some(Err(_)));
                if news.is_some_and(|news| tell.send(news).is_err()) || last {
                    return;
                }
            }
        })?;
        Ok(Signals { heard, ignored })
    }

    /// The next one. Dropped, the future loses none.
    pub async fn next(&mut self) -> io::Result<Heard> {
        match self.heard.recv().await {
            Some(heard) => heard,
            None => Err(io::Error::other("signals are not listened to any more")),
        }
    }

    /// Waits for a signal that asks to end, and stops where one asks for that.
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

/// What was ignored when dlock was started: blocked, it would be heard all the same.
fn ignored() -> io::Result<Vec<Signal>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    Ok(Signal::iterator().filter(|signal| mask & (1 << (*signal as i32 - 1)) != 0).collect())
}
