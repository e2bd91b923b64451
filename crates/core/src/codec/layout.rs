//! The types and constants of the layout that its writer and its reader share.

/// Relates the times of one clock to those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Identifies this boot of this machine.
    pub boot: u64,
    /// Server clock - boot-time clock, ms.
    pub offset: i64,
}

impl Anchor {
    /// The number of a boot, from the id that the kernel shows as text and the offset in ns of the time
    /// namespace. `None` if the text is no id. Stored, so it must stay as it is: the first 8 bytes of the id,
    /// moved by the offset so that each offset has a number of its own.
    pub fn boot(id: &str, offset: i128) -> Option<u64> {
        let digits: String = id.trim().chars().filter(|c| *c != '-').collect();
        let first = digits.get(..16).filter(|_| digits.len() == 32)?;
        let id = u64::from_str_radix(first, 16).ok()?;
        // The factor is odd, so that no two products are the same.
        Some(id.wrapping_add((offset as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }
}

/// The source of bytes. Decides what their deadlines mean on another boot or machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A running server, by the replication link or RESTORE: leases count from the arrival.
    Live,
    /// A file: only the wall clocks relate the two times.
    Stored,
}

/// The reason why bytes are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// They end too early.
    Short,
    /// They continue after the end.
    Long,
    /// A version this module does not read.
    Version(u8),
    /// A value outside its range.
    Value(&'static str),
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Malformed::Short => write!(f, "the bytes of a lock end too early"),
            Malformed::Long => write!(f, "there are bytes behind the end of a lock"),
            Malformed::Version(v) => {
                write!(f, "the bytes of a lock have version {v}, this module reads {VERSION}")
            }
            Malformed::Value(what) => write!(f, "the bytes of a lock have an impossible {what}"),
        }
    }
}

pub(super) const VERSION: u8 = 4;
/// Added to the mode of a change.
pub(super) const PART: u8 = 4;
/// Added to the number of the ttl.
pub(super) const MORE: u64 = 1;

/// Longest lock-delay of a hold, in ms.
pub(super) const MAX_DELAY: u64 = u32::MAX as u64;
