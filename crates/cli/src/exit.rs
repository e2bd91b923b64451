//! Exit codes and error messages, unless dlock exits like the program it runs.
//!
//! 1 is what diff and grep end with when they have something to tell. 64, 69, 71 and 75 are from sysexits.h.
//! 79 is the first number above that list; `timeout` uses 124 and 125, shells use 126, 127 and 128 + n. A
//! program that is run may exit with any of these too: the message on standard error tells them apart.

use std::fmt;
use std::io::{self, Write, stderr};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use dlock_client::{AcquireError, BuildError, ExtendError, NoQuorum, ReleaseError};
use nix::sys::signal::Signal;

use crate::shown::plain;
use crate::signals;

/// The kinds of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    Usage,
    NoQuorum,
    System,
    NotAcquired,
    Lost,
    Attention,
}

impl Failure {
    pub const ALL: [Failure; 6] = [
        Failure::Attention,
        Failure::Usage,
        Failure::NoQuorum,
        Failure::System,
        Failure::NotAcquired,
        Failure::Lost,
    ];

    pub fn code(self) -> u8 {
        match self {
            Failure::Usage => 64,
            Failure::NoQuorum => 69,
            Failure::System => 71,
            Failure::NotAcquired => 75,
            Failure::Lost => 79,
            Failure::Attention => 1,
        }
    }

    /// For the manual.
    pub fn meaning(self) -> &'static str {
        match self {
            Failure::Usage => "usage error: invalid arguments, addresses or options",
            Failure::NoQuorum => "too few servers answered, or they cannot take part",
            Failure::System => "system error: a file, a process",
            Failure::NotAcquired => "somebody else held the lock until the wait timed out",
            Failure::Lost => "the lock was lost: the command was ended, or there was no hold",
            Failure::Attention => "status, doctor: it works, but something needs attention",
        }
    }
}

/// A failure and its message.
#[derive(Debug)]
pub struct Error {
    pub failure: Failure,
    code: u8,
    /// Empty: nothing is printed.
    message: String,
}

impl Error {
    pub fn new(failure: Failure, message: impl fmt::Display) -> Error {
        Error { failure, code: failure.code(), message: message.to_string() }
    }

    pub fn usage(message: impl fmt::Display) -> Error {
        Error::new(Failure::Usage, message)
    }

    pub fn system(what: impl fmt::Display, why: impl fmt::Display) -> Error {
        Error::new(Failure::System, format!("{what}: {why}"))
    }

    /// The same with another exit code.
    pub fn with_code(self, code: u8) -> Error {
        Error { code, ..self }
    }

    pub fn without_message(self) -> Error {
        Error { message: String::new(), ..self }
    }

    /// Prints the message and returns the exit code.
    pub fn report(&self) -> ExitCode {
        if !self.message.is_empty() {
            complain(self);
        }
        self.code.into()
    }
}

/// Prints to standard error, on one line.
pub fn complain(message: impl fmt::Display) {
    let line = format!("dlock: {}\n", plain(message));
    print_later(move || line);
}

/// A text, as it is when it is printed.
type Text = Box<dyn FnOnce() -> String + Send>;

/// `None`: there was no thread to be had.
static PRINTER: OnceLock<Option<Sender<Text>>> = OnceLock::new();

/// Prints to standard error. It may be a terminal that Ctrl-S has stopped, or a pipe that nobody reads: a
/// thread of its own waits for it, so that renewals, signals and the end of a command do not.
pub fn print_later(text: impl FnOnce() -> String + Send + 'static) {
    match PRINTER.get_or_init(|| printer().ok()) {
        Some(printer) => _ = printer.send(Box::new(text)),
        None => write(&text()),
    }
}

fn printer() -> io::Result<Sender<Text>> {
    let (texts, received) = channel::<Text>();
    let print = move || received.iter().for_each(|text| write(&text()));
    thread::Builder::new().name("printer".into()).spawn(print)?;
    Ok(texts)
}

/// It may be closed, on which eprint would panic.
fn write(text: &str) {
    let _ = stderr().write_all(text.as_bytes());
}

/// How long to wait for a terminal, which may be stopped.
pub const PRINTING: Duration = Duration::from_secs(1);

/// Waits until all that was to be printed is, at most for `limit`.
pub fn wait_printed(limit: Duration) {
    if PRINTER.get().is_some() {
        let (printed, is_printed) = channel::<()>();
        print_later(move || {
            drop(printed);
            String::new()
        });
        let _ = is_printed.recv_timeout(limit);
    }
}

/// Prints what is left to be printed before this process ends, unless a signal ends it first.
pub fn flush_complaints() {
    // If this fails, the signal has to wait.
    let _ = signals::unblock();
    wait_printed(Duration::MAX);
}

/// Ends this process by a signal. Returns the exit code where that does not end it.
pub fn end_by(signal: Signal) -> u8 {
    wait_printed(PRINTING);
    signals::die_by(signal);
    128 + signal as u8
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<BuildError> for Error {
    fn from(why: BuildError) -> Error {
        let failure = if matches!(why, BuildError::Unusable(_)) { Failure::NoQuorum } else { Failure::Usage };
        Error::new(failure, why)
    }
}

impl From<AcquireError> for Error {
    fn from(why: AcquireError) -> Error {
        let (failure, advice) = match why {
            AcquireError::Taken { .. } => (Failure::NotAcquired, ""),
            AcquireError::Deadlock { .. } => (
                Failure::NotAcquired,
                "; release the locks you hold and try again. To avoid it, acquire them in one run, or in the same order everywhere",
            ),
            AcquireError::TooLate { .. } => (Failure::NoQuorum, "; use a longer --ttl"),
            AcquireError::Option(_) | AcquireError::Misuse { .. } => (Failure::Usage, ""),
            _ => (Failure::NoQuorum, ""),
        };
        Error::new(failure, format!("{why}{advice}"))
    }
}

impl From<ExtendError> for Error {
    fn from(why: ExtendError) -> Error {
        let failure = match why {
            ExtendError::Lost(_) => Failure::Lost,
            ExtendError::Option(_) | ExtendError::Misuse(_) => Failure::Usage,
            _ => Failure::NoQuorum,
        };
        Error::new(failure, why)
    }
}

impl From<ReleaseError> for Error {
    fn from(why: ReleaseError) -> Error {
        let failure = if matches!(why, ReleaseError::NotHeld(_)) { Failure::Lost } else { Failure::NoQuorum };
        Error::new(failure, why)
    }
}

impl From<NoQuorum> for Error {
    fn from(why: NoQuorum) -> Error {
        Error::new(Failure::NoQuorum, why)
    }
}
