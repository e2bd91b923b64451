//! Signals, read one after the other instead of handled.
//!
//! They are blocked and come through a signalfd. That tells who sent them, which a handler of the usual kind does not,
//! and leaves ignored ones ignored, for the program that is run too: `nohup dlock run` is what it says.

use std::io;
use std::thread;

use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
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

/// The listener to what [`block`] has blocked.
pub struct Signals(UnboundedReceiver<Heard>);

impl Signals {
    /// After [`block`].
    pub fn listen() -> io::Result<Signals> {
        let source = SignalFd::with_flags(&ours(), SfdFlags::SFD_CLOEXEC)?;
        let (heard, listener) = unbounded_channel();
        // A thread that reads: to register the descriptor with the runtime would be `unsafe`.
        thread::Builder::new().name("signals".into()).spawn(move || {
            while let Ok(info) = source.read_signal() {
                if info.as_ref().and_then(Heard::of).is_some_and(|what| heard.send(what).is_err()) {
                    return;
                }
            }
        })?;
        Ok(Signals(listener))
    }

    /// The next one. Dropped, the future loses none.
    pub async fn next(&mut self) -> Heard {
        match self.0.recv().await {
            Some(heard) => heard,
            // The thread reads for as long as there is somebody to listen.
            None => std::future::pending().await,
        }
    }

    /// Waits for a signal that asks to end, and stops where one asks for that.
    pub async fn end(&mut self) -> Signal {
        loop {
            match self.next().await {
                Heard::Child => {}
                Heard::Signal(signal, _) if STOPS.contains(&signal) => stop(),
                Heard::Signal(signal, _) => return signal,
            }
        }
    }
}
