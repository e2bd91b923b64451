//! Exit codes and error messages. `run` and `elect` exit with the code of their command, unless a [`Failure`]
//! prevents or ends the command.
//!
//! [`Failure::Attention`] is 1, with which diff and grep report a difference or no match. 64, 69, 71 and 75
//! are from sysexits.h; 79 is the first number above that list. No [`Failure`] has a code of `timeout` (124,
//! 125) or of shells (126, 127, 128 + n). A command that dlock runs may exit with the code of a [`Failure`],
//! too: then dlock prints no message.

use std::fmt;
use std::io::ErrorKind;
use std::process::ExitCode;
use std::time::Duration;

use dlock_client::{AcquireError, BuildError, ExtendError, NoQuorum, ReleaseError};
use nix::sys::signal::Signal;

use crate::output::{NotPrinted, wait_printed, warn};
use crate::signals;

/// Why a subcommand ended without its result.
pub enum Abort {
    Error(Error),
    Signal(Signal),
}

impl<E: Into<Error>> From<E> for Abort {
    fn from(why: E) -> Abort {
        Abort::Error(why.into())
    }
}

impl From<NotPrinted> for Abort {
    /// If the reader has closed the pipe (`dlock list | head -1`), dlock ends without a message, like
    /// programs that SIGPIPE kills.
    fn from(NotPrinted(why): NotPrinted) -> Abort {
        match why.kind() {
            ErrorKind::BrokenPipe => Abort::Signal(Signal::SIGPIPE),
            _ => Error::system("standard output", why).into(),
        }
    }
}

/// The kinds of errors, each with an exit code.
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

    /// The meaning of the exit code, as the manual prints it.
    pub fn meaning(self) -> &'static str {
        match self {
            Failure::Usage => "usage error: invalid arguments, addresses or options",
            Failure::NoQuorum => "too few servers answered, or too few can take part",
            Failure::System => "system error, of a file or of a process",
            Failure::NotAcquired => {
                "another owner held the lock, or it was closed, until the wait timed out; or its wait \
                 queue is full: try again later; or to wait would be a deadlock"
            }
            Failure::Lost => "the lock was lost, and the command ended; or there was no hold",
            Failure::Attention => "status, doctor: it works, but something needs attention",
        }
    }
}

/// A failure, its exit code and its message.
#[derive(Debug)]
pub struct Error {
    pub failure: Failure,
    /// The code of the failure, unless --conflict-code sets another.
    pub code: u8,
    /// Empty with --quiet: then nothing is printed.
    pub message: String,
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

    /// Prints the message and returns the exit code.
    pub fn report(&self) -> ExitCode {
        if !self.message.is_empty() {
            warn(self);
        }
        self.code.into()
    }
}

/// How long to wait until pending messages are printed. Standard error may be a terminal that Ctrl-S has
/// stopped.
pub const PRINT_TIMEOUT: Duration = Duration::from_secs(1);

/// Prints all pending messages, without a time limit. Unblocks signals, so that they can end this process
/// meanwhile.
pub fn flush_stderr() {
    // If unblocking fails, signals stay blocked until everything is printed.
    let _ = signals::unblock();
    wait_printed(Duration::MAX);
}

/// Ends this process by `signal`. If the process survives the signal, returns 128 + its number: the exit code
/// that shells use.
pub fn end_by(signal: Signal) -> u8 {
    wait_printed(PRINT_TIMEOUT);
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
            AcquireError::Taken { .. } | AcquireError::QueueFull { .. } => (Failure::NotAcquired, ""),
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
