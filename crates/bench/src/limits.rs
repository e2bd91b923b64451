//! How many files, and so connections, this process and its servers may open.

use std::io::Result;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the limit to the hard limit, which servers inherit, and returns it.
pub fn open_files() -> Result<u64> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(hard)
}
