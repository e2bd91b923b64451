//! A holder of a resource, as an inspection and the error of an acquisition show it.

use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// A holder of a resource on one master.
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Token as text, escaped if it has a backslash or is not UTF-8.
    pub token: String,
    /// Hold count.
    pub count: u64,
    /// Fence of the hold.
    pub fence: u64,
    /// Remaining lease in ms.
    pub left_ms: u64,
    /// Label given with the request.
    pub label: String,
    /// True if the hold ends with its connection.
    pub ephemeral: bool,
    /// CLIENT ID of the holder's connection on that master. 0 means unknown.
    pub client: u64,
    /// Address of that connection. Empty means unknown.
    pub address: String,
    /// Age of the hold in ms.
    pub held_ms: u64,
}

impl fmt::Display for Holder {
    /// Describes the holder without its token, by which any client could release the hold.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("held")?;
        if !self.label.is_empty() {
            write!(f, " by {:?}", self.label)?;
        }
        if !self.address.is_empty() {
            write!(f, " at {}", self.address)?;
        }
        write!(f, " for {:?}", Duration::from_millis(self.held_ms))
    }
}
