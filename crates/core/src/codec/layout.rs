//! The types and constants of the layout that its writer and its reader share.

/// What a clock's readings can be compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Names this start of this machine.
    pub boot: u64,
    /// Server clock - boot-time clock, ms.
    pub offset: i64,
}

impl Anchor {
    /// What a boot is called whose id the kernel tells as this text, in a time namespace whose boot-time
    /// clock is off by `offset` ns. None where the text is no id. It is stored, so it stays what it is
    /// whatever it is compiled with: the first 8 bytes of the id, moved by the offset so that each offset has
    /// a name of its own.
    pub fn boot(id: &str, offset: i128) -> Option<u64> {
        let digits: String = id.trim().chars().filter(|c| *c != '-').collect();
        let first = digits.get(..16).filter(|_| digits.len() == 32)?;
        let id = u64::from_str_radix(first, 16).ok()?;
        // By an odd number, so that no two products are the same.
        Some(id.wrapping_add((offset as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }
}

/// Where bytes came from, which decides what their deadlines mean on another boot or machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Written by a living server, over the replication link or for RESTORE: leases count from the arrival.
    Live,
    /// Taken from storage: only the wall clocks relate the two times.
    Stored,
}

/// Why bytes were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// They end too early.
    Short,
    /// They go on behind the end.
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
/// Beside the mode.
pub(super) const PART: u8 = 4;
/// In the number of the ttl.
pub(super) const MORE: u64 = 1;

/// The longest lock-delay a hold can ask for, ms.
pub(super) const MAX_DELAY: u64 = u32::MAX as u64;
