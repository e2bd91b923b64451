//! How the command ends, when it does not end as the program it runs.
//!
//! 64, 69, 71 and 75 mean what sysexits.h says. 79 is the first number above that list; `timeout` has 124 and 125,
//! shells have 126, 127 and 128 + n. A program that is run may still end with any of these: the message on standard
//! error tells who spoke.

use std::fmt;
use std::io::{Write, stderr};
use std::process::ExitCode;

use dlock_client::{AcquireError, BuildError, ExtendError, NoQuorum, ReleaseError};

use crate::shown::plain;

/// Why the command did not do what it was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    Usage,
    NoQuorum,
    System,
    NotObtained,
    Lost,
}

impl Failure {
    pub const ALL: [Failure; 5] =
        [Failure::Usage, Failure::NoQuorum, Failure::System, Failure::NotObtained, Failure::Lost];

    pub fn code(self) -> u8 {
        match self {
            Failure::Usage => 64,
            Failure::NoQuorum => 69,
            Failure::System => 71,
            Failure::NotObtained => 75,
            Failure::Lost => 79,
        }
    }

    /// For the manual.
    pub fn meaning(self) -> &'static str {
        match self {
            Failure::Usage => "the command was called wrongly: arguments, addresses, options",
            Failure::NoQuorum => "too few servers answered, or they cannot take part",
            Failure::System => "the system refused something: a file, a process",
            Failure::NotObtained => "somebody else holds the lock, until the wait was over",
            Failure::Lost => "the lock was lost: the program was ended, or there was no hold any more",
        }
    }
}

/// A failure and its story.
#[derive(Debug)]
pub struct Error {
    pub failure: Failure,
    story: String,
}

impl Error {
    pub fn new(failure: Failure, story: impl fmt::Display) -> Error {
        Error { failure, story: story.to_string() }
    }

    pub fn usage(story: impl fmt::Display) -> Error {
        Error::new(Failure::Usage, story)
    }

    pub fn system(what: impl fmt::Display, why: impl fmt::Display) -> Error {
        Error::new(Failure::System, format!("{what}: {why}"))
    }

    /// Tells the story and answers the exit code.
    pub fn report(&self) -> ExitCode {
        complain(self);
        self.failure.code().into()
    }
}

/// To standard error, on one line. It may be gone, which must not keep us from our work, as a panic of
/// eprintln would.
pub fn complain(story: impl fmt::Display) {
    let _ = writeln!(stderr(), "dlock: {}", plain(story));
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.story)
    }
}

impl From<BuildError> for Error {
    fn from(why: BuildError) -> Error {
        let failure = match why {
            BuildError::Unusable(_) => Failure::NoQuorum,
            _ => Failure::Usage,
        };
        Error::new(failure, why)
    }
}

impl From<AcquireError> for Error {
    fn from(why: AcquireError) -> Error {
        let (failure, advice) = match why {
            AcquireError::Taken { .. } => (Failure::NotObtained, "; `dlock inspect` shows by whom"),
            AcquireError::Deadlock { .. } => (Failure::NotObtained, "; release what you hold, and try again"),
            AcquireError::TooLate { .. } => (Failure::NoQuorum, "; ask for a longer --ttl"),
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
        let failure = match why {
            ReleaseError::NotHeld(_) => Failure::Lost,
            _ => Failure::NoQuorum,
        };
        Error::new(failure, why)
    }
}

impl From<NoQuorum> for Error {
    fn from(why: NoQuorum) -> Error {
        Error::new(Failure::NoQuorum, why)
    }
}
